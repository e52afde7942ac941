"""Until when a task is worth running."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from horsies.model.codes import OutcomeCode
from horsies.model.task_error import TaskError

# The database takes the first and the last moment for endless; a day less leaves every time zone room to show it.
EARLIEST = datetime.min.replace(tzinfo=UTC) + timedelta(days=1)
LATEST = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)


def check_good_until(good_until: datetime) -> None:
    """Refuse what is no time, has no time zone or is at the edge of time; one in the past is allowed, and expires."""
    if not isinstance(good_until, datetime) or good_until.utcoffset() is None:
        raise ValueError("good_until must have a time zone, such as datetime.now(timezone.utc) + timedelta(hours=1)")
    if not EARLIEST <= good_until <= LATEST:
        raise ValueError("good_until must be at least a day away from the earliest and the latest time there is")


def has_expired(good_until: datetime | None, at: datetime) -> bool:
    """Whether a task may no longer be started at this instant; `good_until` itself is already too late."""
    return good_until is not None and good_until <= at


def expired_error(*, task_id: str, good_until: datetime, worker_id: str | None = None) -> TaskError:
    """What is stored for a task that expired; the worker is named where one held the task."""
    return TaskError(
        error_code=OutcomeCode.TASK_EXPIRED,
        message=f"not started before its good_until, {good_until.isoformat()}",
        data={"task_id": task_id, "worker_id": worker_id},
    )
