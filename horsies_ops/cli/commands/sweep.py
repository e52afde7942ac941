"""`horsies sweep`: recover or list tasks of dead workers."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from horsies.errors import ExitCode, HorsiesError, UsageError
from horsies.model.recovery.fleet import SweepOptions
from horsies.recovery.report import SweepReport, SweepStatus
from horsies_ops.cli.ids import resolve_worker_id
from horsies_ops.cli.option_types import (
    ActorOption,
    DryRunOption,
    ExitCodeOption,
    ReasonOption,
    duration_option,
    id_option,
)
from horsies_ops.cli.options import (
    GlobalOptions,
    JsonOption,
    group,
    load_and_export_settings,
    run_on_database,
    with_global_options,
)
from horsies_ops.cli.output import print_json, print_warning
from horsies_ops.cli.sweep_views import print_sweep, sweep_document

if TYPE_CHECKING:
    from horsies.app import Horsies
    from horsies.config import LoadedSettings
    from horsies_ops.ops import Ops
    from horsies_ops.reads.stale import SilentTasks

app = group("sweep")


@app.command()
@with_global_options
def sweep(
    options: GlobalOptions,
    *,
    dry_run: DryRunOption = False,
    exit_code: ExitCodeOption = False,
    threshold: Annotated[
        timedelta | None,
        duration_option("Treat tasks silent for longer than this as stale [default: the workers' setting]"),
    ] = None,
    recovery_delay: Annotated[
        timedelta | None,
        duration_option("Delay before recovered tasks may start [default: the workers' setting]"),
    ] = None,
    resilient_multiplier: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Multiply the threshold of tasks with a resilient flag by N."),
    ] = None,
    resilient_flag: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Task flag that counts as resilient; repeatable.")
    ] = None,
    worker: Annotated[str | None, id_option("Only tasks of this worker.")] = None,
    locator: Annotated[str | None, typer.Option("--app", metavar="APP", help="App whose recovery hooks run.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Skip outage grace; allow short thresholds.")] = False,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    json: JsonOption = False,
) -> int:
    """Recover tasks of dead workers, or list them with --dry-run."""
    sweep_options = _sweep_options(
        sweep_threshold=threshold,
        recovery_delay=recovery_delay,
        dry_run=dry_run,
        force=force,
        resilient_multiplier=resilient_multiplier,
        resilient_flags=resilient_flag or None,
    )
    settings = load_and_export_settings(options)
    with redirect_stdout(sys.stderr):  # keep what the app and its hooks print out of our data
        user_app = _load_app(locator, settings)
        # The app's own configuration counts: its code may set the database.
        config = user_app.config if user_app else settings.app
        report, silent = run_on_database(
            config, lambda ops: _sweep(ops, sweep_options, worker, app=user_app, reason=reason), actor=actor
        )
    print_json(sweep_document(report, silent)) if json else print_sweep(report, silent)
    return _exit_code(report, has_exit_code=exit_code)


def _sweep_options(**values: object) -> SweepOptions:
    try:
        return SweepOptions(**values)  # pyright: ignore[reportArgumentType]
    except ValueError as error:
        raise UsageError(str(error)) from None


def _load_app(locator: str | None, settings: LoadedSettings) -> Horsies | None:
    """Load the configured app; warn and return None on failure, because a sweep must work without the app's code."""
    from horsies.discover import import_app_with_tasks

    if locator is None and settings.locator is None:
        return None
    try:
        return import_app_with_tasks(locator, settings)
    except HorsiesError as error:
        print_warning(f"recovery hooks skipped, cannot load the app: {error.message}", hint=error.help_text)
        return None


async def _sweep(
    ops: Ops, options: SweepOptions, worker: str | None, *, app: Horsies | None, reason: str | None
) -> tuple[SweepReport, SilentTasks | None]:
    """Return the report and, if nothing was stale, the tasks that are silent but not stale yet."""
    options = replace(options, worker_id=None if worker is None else await resolve_worker_id(ops, worker))
    report = await ops.sweep(options, app=app, reason=reason)
    return report, await ops.silent_tasks(options) if report.status is SweepStatus.NOTHING else None


def _exit_code(report: SweepReport, *, has_exit_code: bool) -> int:
    match report.status:
        case SweepStatus.BUSY | SweepStatus.OUTAGE_GRACE:
            return ExitCode.BUSY
        case SweepStatus.WOULD_ACT:
            return ExitCode.WORK_FOUND if has_exit_code else ExitCode.DONE
        case SweepStatus.NOTHING | SweepStatus.DONE:
            return ExitCode.FAILED if report.refused else ExitCode.DONE
