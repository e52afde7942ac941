"""`horsies scheduler`: fire schedules without running tasks."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated

import typer

from horsies.app import Horsies
from horsies.check import first_failed_phase
from horsies.client.schedules import encode_schedules
from horsies.discover import import_app_with_tasks
from horsies.engine.scheduler import run_scheduler
from horsies.errors import ExitCode, raise_together
from horsies_ops.cli import json_log
from horsies_ops.cli.option_types import DryRunOption
from horsies_ops.cli.options import AppArgument, GlobalOptions, group, load_and_export_settings, with_global_options
from horsies_ops.cli.output import format_value, print_line

SHOWN_SLOTS = 3

scheduler_app = group("scheduler")


@scheduler_app.command()
@with_global_options
def scheduler(
    options: GlobalOptions,
    locator: AppArgument = None,
    *,
    dry_run: DryRunOption = False,
    log_format: Annotated[
        str | None, typer.Option("--log-format", metavar="text|json", help="Log format [default: text]")
    ] = None,
) -> int:
    """Run the scheduler alone, without a worker.

    With --dry-run, print the next slots of each schedule and exit.

    Example: horsies scheduler shop:app --dry-run
    """
    settings = load_and_export_settings(options, **{"log.format": log_format})
    if settings.log.format == "json":
        json_log.redirect_streams()  # before the app is imported, because its modules may print
    user_app = import_app_with_tasks(locator, settings)
    if failed := first_failed_phase(user_app, live=False):
        raise_together(failed.phase, failed.errors)
    if dry_run:
        _print_next_slots(user_app)
        return ExitCode.DONE
    user_app.set_role("scheduler")
    schedules = encode_schedules(user_app, user_app.get_schedules())
    options.print_message(f"scheduler of app {schedules.owner}: {len(schedules.definitions)} schedules")
    asyncio.run(run_scheduler(user_app.config, schedules))
    return ExitCode.DONE


def _print_next_slots(user_app: Horsies) -> None:
    now = datetime.now(UTC)
    for definition in encode_schedules(user_app, user_app.get_schedules()).definitions:
        policy = definition.policy.anchored(now)
        first = policy.next_slot(now)
        slots = islice(policy.slots_from(first), SHOWN_SLOTS) if first and definition.enabled else ()
        print_line(f"{definition.name}: {', '.join(map(format_value, slots)) or 'disabled'}")
