"""`horsies schedule`: list schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horsies_ops.cli.options import GlobalOptions, JsonOption, group, with_global_options
from horsies_ops.cli.output import TableColumn, format_age, format_value, show_rows

if TYPE_CHECKING:
    from horsies_ops.reads.schedules import ScheduleRow

app = group("schedule")


@app.callback()
def schedule() -> None:
    """Keep this a command group although it has a single command."""


@app.command("list")
@with_global_options
def list_(options: GlobalOptions, *, json: JsonOption = False) -> None:
    """List schedules from the settings and the database, and their next runs."""
    schedules = options.read(lambda ops: ops.list_schedules())
    show_rows(options, "schedules", schedules, COLUMNS, json=json)


def _pattern(schedule: ScheduleRow) -> str:
    zone = "" if schedule.timezone in {None, "UTC"} else f" {schedule.timezone}"
    return f"{schedule.pattern or '?'}{zone}"


def _next_run(schedule: ScheduleRow) -> str:
    if schedule.is_enabled is False:
        return "disabled"
    return f"in {format_age(schedule.due_in)}" if schedule.due_in else "-"


COLUMNS: tuple[TableColumn[ScheduleRow], ...] = (
    TableColumn("schedule", lambda schedule: schedule.name),
    TableColumn("task", lambda schedule: schedule.task_name or "?"),
    TableColumn("pattern", _pattern),
    TableColumn("next", _next_run),
    TableColumn("last", lambda schedule: format_value(schedule.last_run_at) if schedule.last_run_at else "-"),
    TableColumn("result", lambda schedule: schedule.last_error_code or schedule.last_status or "-"),
    TableColumn("runs", lambda schedule: f"{schedule.run_count:,}", right=True),
)
