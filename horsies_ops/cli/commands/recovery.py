"""`horsies sweep` and `horsies cleanup`: recover stale tasks, and delete rows past their retention."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from horsies.errors import ExitCode, HorsiesError, UsageError
from horsies.model.recovery.fleet import SweepOptions
from horsies.model.task import short_form
from horsies.model.text import format_age, sanitize_text
from horsies.recovery.report import PAST_TENSE, SweepReport, SweepStatus, SweptTask
from horsies_ops.cli.option_types import (
    ActorOption,
    AppOption,
    DryRunOption,
    ExitCodeOption,
    ReasonOption,
    duration_option,
    id_option,
    resolve_worker_id,
)
from horsies_ops.cli.options import (
    GlobalOptions,
    JsonOption,
    group,
    load_and_export_settings,
    run_on_database,
    with_global_options,
)
from horsies_ops.cli.output import (
    TableColumn,
    format_instant,
    format_size,
    print_json,
    print_line,
    print_rows,
    print_warning,
    progress_bar,
    row_document,
)

if TYPE_CHECKING:
    from horsies.app import Horsies
    from horsies.config import LoadedSettings
    from horsies.model.retention import CategoryCleanup
    from horsies_ops.actions.sweep import CleanupReport
    from horsies_ops.ops import Ops

sweep_app, cleanup_app = group("sweep"), group("cleanup")


@sweep_app.command()
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
        typer.Option(
            min=1, metavar="N", help="Multiply the threshold of resilient tasks by this [default: the workers' setting]"
        ),
    ] = None,
    resilient_flag: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Flag that marks a task as resilient; may be repeated [default: the workers' setting]"
        ),
    ] = None,
    worker: Annotated[str | None, id_option("Only tasks owned by this worker [default: all workers]")] = None,
    locator: AppOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Skip the outage grace period; allow short thresholds.")
    ] = False,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    json: JsonOption = False,
) -> int:
    """Recover stale tasks now: requeue, retry or fail them.

    Example: horsies sweep --dry-run --threshold 5m
    """
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
) -> tuple[SweepReport, Sequence[SweptTask]]:
    """Return the report and, unless tasks were recovered, forecasts for those that are silent but not stale yet."""
    options = replace(options, worker_id=None if worker is None else await resolve_worker_id(ops, worker))
    report = await ops.sweep(options, app=app, reason=reason)
    is_preview = report.dry_run or report.status is SweepStatus.NOTHING
    return report, await ops.silent_tasks(options) if is_preview else ()


def _exit_code(report: SweepReport, *, has_exit_code: bool) -> int:
    match report.status:
        case SweepStatus.BUSY | SweepStatus.OUTAGE_GRACE:
            return ExitCode.BUSY
        case SweepStatus.WOULD_ACT:
            return ExitCode.WORK_FOUND if has_exit_code else ExitCode.DONE
        case SweepStatus.NOTHING | SweepStatus.DONE:
            return ExitCode.FAILED if report.refused else ExitCode.DONE


# The report of a sweep

_MAX_NAME_WIDTH = 40

MAX_SILENT_LINES: Final = 10
"""Most silent tasks that a terminal shows."""

_TASK_FIELDS = {
    "task_id": "id",
    "task_name": "name",
    "queue_name": "queue",
    "owner_id": "owner",
    "effective_threshold": "threshold",
    "due_in": None,
}
"""Fields of a task in the JSON document, where they differ from those of the row."""


_FORECAST_FIELDS = {**_TASK_FIELDS, "due_in": "due_in", "reason": None, "applied": None, "hook": None}


def sweep_document(report: SweepReport, silent: Sequence[SweptTask] = ()) -> dict[str, Any]:
    """Return the document of `sweep --json`."""
    return {
        **row_document(report),
        "thresholds": row_document(report.thresholds),
        "tasks": [row_document(task, **_TASK_FIELDS) for task in report.tasks],
        "not_yet_stale": _silent_document(silent) if silent else None,
    }


def _silent_document(silent: Sequence[SweptTask]) -> dict[str, Any]:
    return {
        "count": len(silent),
        "longest_s": longest_silence(silent),
        "tasks": [row_document(task, **_FORECAST_FIELDS) for task in silent],
    }


def longest_silence(silent: Sequence[SweptTask]) -> timedelta:
    return max(task.heartbeat_age or timedelta(0) for task in silent)


def print_sweep(report: SweepReport, silent: Sequence[SweptTask] = ()) -> None:
    """Print one line per task and workflow, then the totals, silent tasks with their forecasts, and warnings.

    A terminal shows only the silent tasks that are due first.
    """
    if report.tasks:
        print_rows(report.tasks, SWEEP_COLUMNS)
    for workflow in report.workflows:
        print_line(f"workflow {workflow.id}  heal  case {sanitize_text(workflow.case)}")
    print_line(_summary(report))
    if silent:
        tasks = "1 task" if len(silent) == 1 else f"{len(silent):,} tasks"
        longest = format_age(longest_silence(silent))
        print_line(
            f"\n{tasks} silent for up to {longest}, not stale yet; if they stay silent (--threshold acts sooner):"
        )
        # They are sorted by due time. A busy fleet has thousands: the first ones tell what comes next.
        shown = silent[:MAX_SILENT_LINES] if sys.stdout.isatty() else silent
        print_rows(shown, SILENT_COLUMNS)
        if len(shown) < len(silent):
            print_line(f"and {len(silent) - len(shown):,} more; horsies sweep --dry-run --json lists all")
    for warning in report.warnings:
        print_warning(warning)


def _owner(task: SweptTask) -> str:
    owner = "-" if task.owner_id is None else short_form(task.owner_id)
    return owner if task.owner_state in {None, "running"} else f"{owner} {task.owner_state}"


def _note(task: SweptTask) -> str:
    notes = (
        task.code,
        "resilient" if task.resilient else None,
        f"at {format_instant(task.run_at)}" if task.run_at else None,
        f"until {format_instant(task.held_until)}" if task.held_until else None,
        f"by {task.hook}" if task.hook else None,
        f"refused: {task.refusal}" if task.refusal else None,
    )
    return "  ".join(note for note in notes if note)


SWEEP_COLUMNS: tuple[TableColumn[SweptTask], ...] = (
    TableColumn("id", lambda task: str(task.task_id)),
    TableColumn("name", lambda task: sanitize_text(task.task_name, limit=_MAX_NAME_WIDTH)),
    TableColumn("state", lambda task: task.state),
    TableColumn("owner", _owner),
    TableColumn("silent", lambda task: format_age(task.heartbeat_age), right=True),
    TableColumn("limit", lambda task: format_age(task.effective_threshold), right=True),
    TableColumn("decision", lambda task: task.decision),
    TableColumn("reason", lambda task: task.reason),
    TableColumn("note", _note),
)


SILENT_COLUMNS: tuple[TableColumn[SweptTask], ...] = (
    *SWEEP_COLUMNS[:6],
    TableColumn("due", lambda task: f"in {format_age(task.due_in)}", right=True),
    TableColumn("decision", lambda task: task.phrase),
)


def _summary(report: SweepReport) -> str:
    match report.status:
        case SweepStatus.BUSY:
            return "busy: another sweep is running"
        case SweepStatus.OUTAGE_GRACE:
            until = max((task.held_until for task in report.tasks if task.held_until), default=None)
            when = "" if until is None else f" until {format_instant(until)}"
            held_back = f"all stale tasks ({len(report.tasks)}) held back{when}"
            return f"outage grace: no worker connected for a full threshold; {held_back}"
        case SweepStatus.NOTHING if not report.refused and not report.locked_runs:
            return "nothing to do"
        case SweepStatus.NOTHING | SweepStatus.DONE | SweepStatus.WOULD_ACT:
            return _counts(report)


def _counts(report: SweepReport) -> str:
    counts = Counter(task.decision for task in report.tasks if task.changes_state and (report.dry_run or task.applied))
    parts = [f"{counts[decision]} {word}" for decision, word in PAST_TENSE.items() if counts[decision]]
    parts += [f"{len(report.workflows)} workflows healed"] if report.workflows else []
    changed = sum(task.changes_state and not task.applied and not task.refusal for task in report.tasks)
    parts += [f"{changed} changed meanwhile"] if changed and not report.dry_run else []
    parts += [f"{len(report.refused)} refused by the database"] if report.refused else []
    parts += [f"{len(report.locked_runs)} workflows locked by another transaction"] if report.locked_runs else []
    # A sweep that recovered no task but was not idle has only marked workers lost.
    return ("would be: " if report.dry_run else "") + (", ".join(parts) or f"{len(report.worker_ids)} workers lost")


# Cleanup


@cleanup_app.command()
@with_global_options
def cleanup(
    options: GlobalOptions,
    *,
    dry_run: DryRunOption = False,
    exit_code: ExitCodeOption = False,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    json: JsonOption = False,
) -> int:
    """Delete rows older than the retention settings.

    Example: horsies cleanup --dry-run
    """
    with progress_bar("deleting", enabled=not (json or dry_run or options.quiet)) as progress:
        report = options.act(lambda ops: ops.cleanup(dry_run=dry_run, reason=reason, progress=progress), actor=actor)
    if json:
        print_json(_cleanup_document(report))
    else:
        _print_cleanup(options, report)
    return ExitCode.WORK_FOUND if exit_code and dry_run and report.matched else ExitCode.DONE


def _cleanup_document(report: CleanupReport) -> dict[str, Any]:
    return {
        "dry_run": report.is_dry_run,
        "complete": report.cleaned.is_complete,
        "rows": report.cleaned.rows,
        "bytes": report.cleaned.bytes,
        "audit_id": report.audit_id,
        "categories": [row_document(part, category="name") for part in report.cleaned.categories],
    }


def _print_cleanup(options: GlobalOptions, report: CleanupReport) -> None:
    cleaned = report.cleaned
    print_rows(cleaned.categories, CLEANUP_COLUMNS)
    verb = "would delete" if report.is_dry_run else "deleted"
    size = f"{verb} {cleaned.rows:,} rows, about {format_size(cleaned.bytes)}"
    print_line(size if cleaned.rows else "nothing to delete")
    if not cleaned.is_complete:
        options.print_message("incomplete: another process is also cleaning up and will delete the rest")


def _window(part: CategoryCleanup) -> str:
    # Imported here: it loads the reads, which --help does not need.
    from horsies_ops.reads.filters import format_duration

    return "forever" if part.window is None else format_duration(part.window)


def _dependent(part: CategoryCleanup) -> str:
    """Return the number of rows of other tables that are deleted with them."""
    dependent = sum(part.tables.values()) - part.rows
    return f"{dependent:,}" if dependent else ""


CLEANUP_COLUMNS: tuple[TableColumn[CategoryCleanup], ...] = (
    TableColumn("category", lambda part: part.category.label),
    TableColumn("retention", _window),
    TableColumn("rows", lambda part: f"{part.rows:,}", right=True),
    TableColumn("dependent", _dependent, right=True),
    TableColumn("size", lambda part: format_size(part.bytes) if part.rows else "", right=True),
    TableColumn("oldest", lambda part: "" if part.oldest_at is None else f"{part.oldest_at:%Y-%m-%d %H:%M}Z"),
)
