"""Schedules: what is configured here, and what the database remembers of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta
    from uuid import UUID

    from horsies.model.settings import TaskSchedule
    from horsies.store.db import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRow:
    """One schedule; task and pattern are None where only the database knows it."""

    name: str
    task_name: str | None
    pattern: str | None
    timezone: str | None
    is_enabled: bool | None
    next_run_at: datetime | None
    due_in: timedelta | None
    last_run_at: datetime | None
    last_task_id: UUID | None
    last_status: str | None
    last_error_code: str | None
    run_count: int


async def list_schedules(database: Database, configured: Sequence[TaskSchedule] = ()) -> tuple[ScheduleRow, ...]:
    """Every schedule that the settings or the database name, the soonest first."""
    raise NotImplementedError
