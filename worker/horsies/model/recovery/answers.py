"""What recovery hooks are told, and what they may answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from datetime import datetime

    from horsies.model.info import TaskInfo
    from horsies.model.recovery.verdicts import RecoveryReason

MOST_ATTEMPTS: Final = 2**31 - 1


class Wish(StrEnum):
    """What a hook wants for a task."""

    DEFAULT = "default"
    RESCHEDULE = "reschedule"
    FAIL_WITH_BACKOFF = "fail_with_backoff"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A hook's answer about one task; made by the four methods below."""

    wish: Wish
    run_at: datetime | None = None
    """For a reschedule, and only then: when the task is due."""
    attempts: int | None = None
    """For a reschedule: the retries that count as spent; None keeps them."""

    def __post_init__(self) -> None:
        if (self.run_at is None) != (self.wish is not Wish.RESCHEDULE):
            raise ValueError("run_at belongs to a reschedule")
        if self.run_at is not None and self.run_at.utcoffset() is None:
            raise ValueError(f"run_at must have a time zone, got {self.run_at.isoformat()}")
        if self.attempts is not None and not 0 <= self.attempts <= MOST_ATTEMPTS:
            raise ValueError(f"attempts must be 0 or more, got {self.attempts}")

    @classmethod
    def default(cls) -> Recovery:
        """Whatever would happen without a hook."""
        return cls(wish=Wish.DEFAULT)

    @classmethod
    def reschedule(cls, run_at: datetime, attempts: int | None = None) -> Recovery:
        """Run again at exactly `run_at`, which must know its time zone, with `attempts` retries spent.

        A crash still counts, a task that crashed too often still fails, and `good_until` still holds.
        """
        return cls(wish=Wish.RESCHEDULE, run_at=run_at, attempts=attempts)

    @classmethod
    def fail_with_backoff(cls) -> Recovery:
        """Count a failed attempt, and retry after the policy's own delay while retries remain, listed or not."""
        return cls(wish=Wish.FAIL_WITH_BACKOFF)

    @classmethod
    def skip(cls) -> Recovery:
        """Leave the task as it is, and ask again when one more threshold has passed."""
        return cls(wish=Wish.SKIP)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryContext:
    """A task that was interrupted, as it was read; `recovering_worker_id` is None for a sweep by hand."""

    task: TaskInfo
    recovering_worker_id: str | None
    previous_worker_id: str | None
    reason: RecoveryReason
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredWorkers:
    """What one sweep has settled: of how many tasks, and whose they were."""

    worker_ids: tuple[str, ...]
    recovered_count: int
    recovering_worker_id: str | None
