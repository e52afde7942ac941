"""`horsies sweep`: settle work whose owner fell silent, or list it."""

from __future__ import annotations

import asyncio
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import timedelta
from typing import Annotated

import typer

from horsies.app import Horsies
from horsies.config import LoadedSettings
from horsies.errors import ExitCode, HorsiesError, UsageError
from horsies.model.recovery.fleet import SweepOptions
from horsies.model.settings import AppConfig
from horsies.recovery.report import SweepReport, SweepStatus
from horsies_ops.cli.ids import resolve_worker_id
from horsies_ops.cli.option_types import duration_option, id_option
from horsies_ops.cli.options import GlobalOptions, JsonOption, group, load_and_export_settings, with_global_options
from horsies_ops.cli.output import print_json, print_warning
from horsies_ops.cli.sweep_views import print_sweep, sweep_document
from horsies_ops.ops import open_ops
from horsies_ops.reads.stale import SilentTasks

app = group("sweep")


@app.command()
@with_global_options
def sweep(
    options: GlobalOptions,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be done; no lock, no write.")] = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 3 when a dry run found work.")] = False,
    threshold: Annotated[timedelta | None, duration_option("The silence that condemns; as the fleet has it.")] = None,
    recovery_delay: Annotated[
        timedelta | None, duration_option("Not to start again before; as the fleet has it.")
    ] = None,
    resilient_multiplier: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Times the threshold, for flagged tasks.")
    ] = None,
    resilient_flag: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A flag of such tasks; may be given again.")
    ] = None,
    worker: Annotated[str | None, id_option("Only the tasks of this worker.")] = None,
    locator: Annotated[str | None, typer.Option("--app", metavar="APP", help="The app whose hooks are asked.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Skip outage grace; allow short thresholds.")] = False,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why, for the audit.")] = None,
    actor: Annotated[str | None, typer.Option("--as", metavar="NAME", help="Who acts, for the audit.")] = None,
    json: JsonOption = False,
) -> int:
    """Settle work whose owner fell silent, or list it with --dry-run."""
    asked = _asked(
        sweep_threshold=threshold,
        recovery_delay=recovery_delay,
        dry_run=dry_run,
        force=force,
        resilient_multiplier=resilient_multiplier,
        resilient_flags=resilient_flag or None,
    )
    settings = load_and_export_settings(options)
    with redirect_stdout(sys.stderr):  # what the app and its hooks print is not our data
        found = _app(locator, settings)
        configured = found.config if found else settings.app
        report, silent = asyncio.run(_sweep(configured, asked, found, worker=worker, actor=actor, reason=reason))
    print_json(sweep_document(report, silent)) if json else print_sweep(report, silent)
    return _exit_code(report, tells_work=exit_code)


def _asked(**values: object) -> SweepOptions:
    try:
        return SweepOptions(**values)  # pyright: ignore[reportArgumentType]
    except ValueError as error:
        raise UsageError(str(error)) from None


def _app(locator: str | None, settings: LoadedSettings) -> Horsies | None:
    """The app that was named, or None with a warning: a sweep must work where the code does not."""
    from horsies.discover import import_app_with_tasks

    if locator is None and settings.locator is None:
        return None
    try:
        return import_app_with_tasks(locator, settings)
    except HorsiesError as error:
        print_warning(f"no hooks are asked, for the app cannot be loaded: {error.message}", hint=error.help_text)
        return None


async def _sweep(
    settings: AppConfig,
    asked: SweepOptions,
    found: Horsies | None,
    *,
    worker: str | None,
    actor: str | None,
    reason: str | None,
) -> tuple[SweepReport, SilentTasks | None]:
    """The report and, where there was nothing to do, what may be there to do soon."""
    async with open_ops(settings, actor=actor, via="cli") as ops:
        only = None if worker is None else await resolve_worker_id(ops, worker)
        meant = replace(asked, worker_id=only)
        report = await ops.sweep(meant, app=found, reason=reason)
        return report, await ops.silent_tasks(meant) if report.status is SweepStatus.NOTHING else None


def _exit_code(report: SweepReport, *, tells_work: bool) -> int:
    match report.status:
        case SweepStatus.BUSY | SweepStatus.OUTAGE_GRACE:
            return ExitCode.BUSY
        case SweepStatus.WOULD_ACT:
            return ExitCode.WORK_FOUND if tells_work else ExitCode.DONE
        case SweepStatus.NOTHING | SweepStatus.DONE:
            return ExitCode.FAILED if report.refused else ExitCode.DONE
