"""The whole system at one glance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime, timedelta

    from horsies.store.db import Database
    from horsies_ops.reads.counts import Count
    from horsies_ops.reads.queues import QueueRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """What an operator looks at first; every age is by the database's clock at the moment `at`."""

    at: datetime
    counts: Mapping[str, Count]
    """By status, all seven; ended tasks are estimated in a large table."""
    queues: tuple[QueueRow, ...]
    done_last_minute: int
    failed_last_minute: int
    failed_last_hour: Count
    failed_last_day: Count
    expired_last_day: Count
    delayed: int
    """PENDING tasks that are not yet due; `counts` has them too."""
    oldest_due: timedelta | None
    next_due: timedelta | None
    """Until the soonest delayed task is due."""
    oldest_claimed: timedelta | None
    longest_running: timedelta | None
    stale_claimed: int
    stale_running: int
    workers: Mapping[str, int]
    """By state."""
    workflows: Mapping[str, Count]
    """By status."""
    slots: int
    """Processes of the workers that beat."""
    running: int

    @property
    def stale(self) -> int:
        """Live tasks that have been silent for longer than their threshold."""
        return self.stale_claimed + self.stale_running


async def overview(database: Database) -> Overview:
    raise NotImplementedError
