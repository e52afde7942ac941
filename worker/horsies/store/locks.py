"""Our advisory locks: every role that may connect can take them, so we report who holds one for too long."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from horsies.store.queries import Query, load_queries

if TYPE_CHECKING:
    from horsies.store.database import Executor

logger = logging.getLogger("horsies.locks")

CLAIM_LOCK: Final = "claim"
"""Lock of claims under a cap of the whole cluster; those of queues are `claim/<queue>`."""
SWEEP_LOCK: Final = "sweep"
"""The leader lock."""
RETENTION_LOCK: Final = "retention"
"""Lock of a full retention pass."""
HEARTBEAT_RETENTION_LOCK: Final = "retention of heartbeats"
"""Lock of the reaper's heartbeat cleanup."""
SCHEDULE_SYNC_LOCK: Final = "schedules"
"""Lock of a sync of schedule definitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """A session that holds one of our locks."""

    purpose: str
    pid: int | None
    """None for a prepared transaction."""
    role: str | None
    application_name: str | None
    age: timedelta | None
    """Age of its transaction; None if our role may not see it."""
    is_ours: bool
    """Whether its role may change our tables; any other role has no use for the lock."""

    def is_suspicious(self, limit: timedelta) -> bool:
        """Whether it is a stranger, or has held the lock for longer than `limit`."""
        return not self.is_ours or (self.age is not None and self.age > limit)

    def __str__(self) -> str:
        if self.pid is None:
            return f"lock {self.purpose!r} is held by a prepared transaction (see pg_prepared_xacts)"
        age = "an unknown time, hidden from this role" if self.age is None else f"{self.age.total_seconds():.1f} s"
        application = self.application_name or "unnamed"
        stranger = "" if self.is_ours else ", which may not change our tables"
        return (
            f"lock {self.purpose!r} is held for {age} by pid {self.pid}: "
            f"application {application}, role {self.role or 'unknown'}{stranger}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LockQueries:
    holders: Query[LockHolder]
    claim_lock_purposes: Query[str]


LOCKS = load_queries(LockQueries, "horsies.store", "locks")


async def lock_holders(executor: Executor, purposes: Sequence[str]) -> list[LockHolder]:
    """Other sessions that hold these locks."""
    return await executor.fetch(LOCKS.holders, list(purposes))


async def log_suspicious_holders(executor: Executor, purpose: str, *, limit: timedelta) -> None:
    """Log who keeps us from taking a lock, unless it is one of our processes that took it a moment ago."""
    for holder in await lock_holders(executor, [purpose]):
        if holder.is_suspicious(limit):
            logger.warning("%s", holder, extra={"hint": "run: horsies doctor"})


async def all_lock_holders(executor: Executor) -> list[LockHolder]:
    """Other sessions that hold a lock on which claims, sweeps or cleanup depend.

    The locks of NOTIFY coalescing are left out: a send that does not get one notifies a moment later.
    """
    claims = await executor.fetch(LOCKS.claim_lock_purposes)
    ours = (CLAIM_LOCK, SWEEP_LOCK, RETENTION_LOCK, HEARTBEAT_RETENTION_LOCK, SCHEDULE_SYNC_LOCK)
    return await lock_holders(executor, [*ours, *claims])
