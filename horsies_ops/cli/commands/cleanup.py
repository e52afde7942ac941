"""`horsies cleanup`: delete or count rows past their retention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import humanize

from horsies.errors import ExitCode
from horsies_ops.cli.option_types import ActorOption, DryRunOption, ExitCodeOption, ReasonOption
from horsies_ops.cli.options import GlobalOptions, JsonOption, group, with_global_options
from horsies_ops.cli.output import (
    TableColumn,
    format_size,
    print_json,
    print_line,
    print_rows,
    progress_bar,
    row_document,
)

if TYPE_CHECKING:
    from horsies.model.retention import CategoryCleanup
    from horsies_ops.cleanup import CleanupReport

app = group("cleanup")


@app.command()
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
    """Delete rows past their retention, or count them with --dry-run."""
    with progress_bar("deleting", enabled=not (json or dry_run or options.quiet)) as progress:
        report = options.act(lambda ops: ops.cleanup(dry_run=dry_run, reason=reason, progress=progress), actor=actor)
    if json:
        print_json(_document(report))
    else:
        _print_report(options, report)
    return ExitCode.WORK_FOUND if exit_code and dry_run and report.matched else ExitCode.DONE


def _document(report: CleanupReport) -> dict[str, Any]:
    return {
        "dry_run": report.is_dry_run,
        "complete": report.cleaned.is_complete,
        "rows": report.cleaned.rows,
        "bytes": report.cleaned.bytes,
        "audit_id": report.audit_id,
        "categories": [row_document(part, category="name") for part in report.cleaned.categories],
    }


def _print_report(options: GlobalOptions, report: CleanupReport) -> None:
    cleaned = report.cleaned
    print_rows(cleaned.categories, COLUMNS)
    verb = "would delete" if report.is_dry_run else "deleted"
    print_line(f"{verb} {humanize.intcomma(cleaned.rows)} rows, about {format_size(cleaned.bytes)}")
    if not cleaned.is_complete:
        options.print_message("incomplete: another process is also cleaning up and will delete the rest")


def _window(part: CategoryCleanup) -> str:
    return "forever" if part.window is None else humanize.precisedelta(part.window, minimum_unit="hours", format="%d")


def _dependent(part: CategoryCleanup) -> str:
    """Return the number of rows of other tables that are deleted with them."""
    dependent = sum(part.tables.values()) - part.rows
    return humanize.intcomma(dependent) if dependent else ""


COLUMNS: tuple[TableColumn[CategoryCleanup], ...] = (
    TableColumn("category", lambda part: part.category.replace("_", " ")),
    TableColumn("retention", _window),
    TableColumn("rows", lambda part: humanize.intcomma(part.rows), right=True),
    TableColumn("dependent", _dependent, right=True),
    TableColumn("size", lambda part: format_size(part.bytes) if part.rows else "", right=True),
    TableColumn("oldest", lambda part: "" if part.oldest_at is None else f"{part.oldest_at:%Y-%m-%d %H:%M}Z"),
)
