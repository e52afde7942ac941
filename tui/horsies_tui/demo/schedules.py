"""What starts by the clock in the invented system."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from horsies.model.task import TaskStatus
from horsies_ops.reads.schedules import ScheduleRow

if TYPE_CHECKING:
    from horsies_tui.demo.system import System


def schedules(system: System) -> tuple[ScheduleRow, ...]:
    """Three that run and one that is switched off; none where nothing was ever sent."""
    if not system.tasks:
        return ()
    return (
        _row(system, "digest", "mail.digest", "interval minutes=15", next_s=628, last_s=272, runs=9_120),
        _row(system, "nightly-etl", "etl.load", "daily time=02:00", next_s=50_129, last_s=36_271, runs=311),
        _row(
            system,
            "purge-tokens",
            "billing.charge",
            "weekly days=['monday'] time=04:30",
            next_s=145_529,
            last_s=459_271,
            runs=44,
            timezone="Europe/Oslo",
        ),
        _row(system, "legacy-sync", "scrape.page", "interval minutes=5", next_s=None, last_s=1_036_800, runs=1_002),
    )


def _row(
    system: System,
    name: str,
    task_name: str,
    pattern: str,
    *,
    next_s: float | None,
    last_s: float,
    runs: int,
    timezone: str = "UTC",
) -> ScheduleRow:
    now = system.now()
    last = next((task for task in reversed(system.in_state(*_ENDED)) if task.name == task_name), None)
    return ScheduleRow(
        name=name, task_name=task_name, pattern=pattern, timezone=timezone, is_enabled=next_s is not None,
        next_run_at=None if next_s is None else now + timedelta(seconds=next_s),
        due_in=None if next_s is None else timedelta(seconds=next_s), last_run_at=now - timedelta(seconds=last_s),
        last_task_id=last.id if last else None, last_status=last.status if last else None,
        last_error_code=last.error_code if last else None, run_count=runs,
    )  # fmt: skip


_ENDED = (TaskStatus.COMPLETED, TaskStatus.FAILED)
