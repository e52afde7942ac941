"""`horsies cleanup`: delete or count rows past their retention."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import humanize
import typer

from horsies.errors import ExitCode
from horsies.model.retention import CategoryCleanup
from horsies.model.settings import AppConfig
from horsies_ops.actions.report import ActionProgress
from horsies_ops.cleanup import CleanupReport
from horsies_ops.cli.options import GlobalOptions, JsonOption, group, with_global_options
from horsies_ops.cli.output import print_json, print_line, print_table, progress_bar
from horsies_ops.ops import open_ops

app = group("cleanup")


@app.command()
@with_global_options
def cleanup(
    options: GlobalOptions,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the rows; delete nothing.")] = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 3 if a dry run found work.")] = False,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Reason for the audit log.")] = None,
    actor: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Actor for the audit log [default: your login].")
    ] = None,
    json: JsonOption = False,
) -> int:
    """Delete rows past their retention, or count them with --dry-run."""
    with progress_bar("deleting", enabled=not (json or dry_run or options.quiet)) as progress:
        cleaning = _clean(options.load_settings().app, actor, dry_run=dry_run, reason=reason, progress=progress)
        report = asyncio.run(cleaning)
    if json:
        print_json(_document(report))
    else:
        _print_report(options, report)
    return ExitCode.WORK_FOUND if exit_code and dry_run and report.matched else ExitCode.DONE


async def _clean(
    settings: AppConfig,
    actor: str | None,
    *,
    dry_run: bool,
    reason: str | None,
    progress: Callable[[ActionProgress], None] | None,
) -> CleanupReport:
    async with open_ops(settings, actor=actor, via="cli") as ops:
        return await ops.cleanup(dry_run=dry_run, reason=reason, progress=progress)


def _document(report: CleanupReport) -> dict[str, Any]:
    cleaned = report.cleaned
    return {
        "dry_run": report.is_dry_run,
        "complete": cleaned.is_complete,
        "rows": cleaned.rows,
        "bytes": cleaned.bytes,
        "audit_id": report.audit_id,
        "categories": [
            {
                "name": part.category,
                "window_s": part.window,
                "rows": part.rows,
                "bytes": part.bytes,
                "oldest_at": part.oldest_at,
                "tables": part.tables,
            }
            for part in cleaned.categories
        ],
    }


def _print_report(options: GlobalOptions, report: CleanupReport) -> None:
    cleaned = report.cleaned
    print_table(
        ("category", "retention", "rows", "dependent", "size", "oldest"),
        [_cells(part) for part in cleaned.categories],
        right=("rows", "dependent", "size"),
    )
    verb = "would delete" if report.is_dry_run else "deleted"
    print_line(f"{verb} {humanize.intcomma(cleaned.rows)} rows, about {_size(cleaned.bytes)}")
    if not cleaned.is_complete:
        options.print_message("incomplete: another process is also cleaning up and will delete the rest")


def _cells(part: CategoryCleanup) -> tuple[str, ...]:
    dependent = sum(part.tables.values()) - part.rows  # rows of other tables that go with them
    return (
        part.category.replace("_", " "),
        "forever" if part.window is None else humanize.precisedelta(part.window, minimum_unit="hours", format="%d"),
        humanize.intcomma(part.rows),
        humanize.intcomma(dependent) if dependent else "",
        _size(part.bytes) if part.rows else "",
        "" if part.oldest_at is None else f"{part.oldest_at:%Y-%m-%d %H:%M}Z",
    )


def _size(number: int) -> str:
    return humanize.naturalsize(number, binary=True)
