"""`horsies schedule`: list schedules."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from horsies_ops.cli.options import GlobalOptions, JsonOption, group, with_global_options
from horsies_ops.cli.output import format_age, print_json, print_table, to_json
from horsies_ops.ops import open_ops
from horsies_ops.reads.schedules import ScheduleRow

app = group("schedule")


@app.callback()
def schedule() -> None:
    """Keep this a command group although it has a single command."""


@app.command("list")
@with_global_options
def list_(options: GlobalOptions, *, json: JsonOption = False) -> None:
    """List schedules from the settings and the database, and their next runs."""
    schedules = asyncio.run(_read_schedules(options))
    if json:
        print_json({"schedules": [_document(schedule) for schedule in schedules]})
    elif schedules:
        columns = ("schedule", "task", "pattern", "next", "last", "result", "runs")
        print_table(columns, [_cells(schedule) for schedule in schedules], right=("runs",))
    else:
        options.print_message("no schedules")


async def _read_schedules(options: GlobalOptions) -> Sequence[ScheduleRow]:
    async with open_ops(options.load_settings().app, read_only=True, via="cli") as ops:
        return await ops.list_schedules()


def _document(schedule: ScheduleRow) -> dict[str, Any]:
    document = to_json(schedule)
    return {**document, "due_in_s": document.pop("due_in")}


def _cells(schedule: ScheduleRow) -> tuple[str, ...]:
    zone = "" if schedule.timezone in {None, "UTC"} else f" {schedule.timezone}"
    return (
        schedule.name,
        schedule.task_name or "?",
        f"{schedule.pattern or '?'}{zone}",
        "disabled" if schedule.is_enabled is False else f"in {format_age(schedule.due_in)}" if schedule.due_in else "-",
        "-" if schedule.last_run_at is None else to_json(schedule.last_run_at),
        schedule.last_error_code or schedule.last_status or "-",
        f"{schedule.run_count:,}",
    )
