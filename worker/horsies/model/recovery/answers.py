"""What recovery hooks are told, and what they may answer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from horsies.model.expiry import EARLIEST, LATEST

if TYPE_CHECKING:
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
        if fault := fault_of(self):
            raise ValueError(fault)
        if self.run_at is not None:
            object.__setattr__(self, "run_at", self.run_at.astimezone(UTC))  # as every instant that is told or stored

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


def fault_of(answer: Recovery) -> str | None:
    """What is wrong with an answer, however it was made; its types are a promise that user code may break."""
    wish, run_at, attempts = (getattr(answer, name, None) for name in ("wish", "run_at", "attempts"))
    if not isinstance(wish, Wish):
        return f"a Recovery is made by its own methods, got the wish {wish!r}"
    if (run_at is None) != (wish is not Wish.RESCHEDULE):
        return "run_at belongs to a reschedule"
    if run_at is not None and (fault := _fault_of_instant(run_at)):
        return fault
    if attempts is not None and (type(attempts) is not int or not 0 <= attempts <= MOST_ATTEMPTS):
        return f"attempts must be a whole number, 0 or more, got {attempts!r}"
    return None


def _fault_of_instant(run_at: object) -> str | None:
    if not isinstance(run_at, datetime):
        return f"run_at must be a datetime, got {type(run_at).__qualname__}"
    if run_at.utcoffset() is None:
        return f"run_at must have a time zone, got {run_at.isoformat()}"
    if not EARLIEST <= run_at <= LATEST:
        return f"run_at must be within the years 1 to 9999 in every time zone, got {run_at.isoformat()}"
    return None


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
