"""`horsies cleanup`: delete what is past its window, or count it."""

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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count what would go, and delete nothing.")] = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 3 when a dry run found work.")] = False,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why, for the audit.")] = None,
    actor: Annotated[str | None, typer.Option("--as", metavar="NAME", help="Who acts, for the audit.")] = None,
    json: JsonOption = False,
) -> int:
    """Delete what is past its window, or count it with --dry-run."""
    with progress_bar("deleting", wanted=not (json or dry_run or options.quiet)) as progress:
        cleaning = _clean(options.load_settings().app, actor, dry_run=dry_run, reason=reason, progress=progress)
        report = asyncio.run(cleaning)
    if json:
        print_json(_document(report))
    else:
        _show(options, report)
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
                "name": each.category,
                "window_s": each.window,
                "rows": each.rows,
                "bytes": each.bytes,
                "oldest_at": each.oldest_at,
                "tables": each.tables,
            }
            for each in cleaned.categories
        ],
    }


def _show(options: GlobalOptions, report: CleanupReport) -> None:
    cleaned = report.cleaned
    print_table(
        ("category", "kept for", "rows", "with them", "size", "oldest"),
        [_row(portion) for portion in cleaned.categories],
        right=("rows", "with them", "size"),
    )
    verb = "would delete" if report.is_dry_run else "deleted"
    print_line(f"{verb} {humanize.intcomma(cleaned.rows)} rows, about {_size(cleaned.bytes)}")
    if not cleaned.is_complete:
        options.print_message("another process is cleaning too; it takes the rest")


def _row(portion: CategoryCleanup) -> tuple[str, ...]:
    along = sum(portion.tables.values()) - portion.rows
    return (
        portion.category.replace("_", " "),
        "ever" if portion.window is None else humanize.precisedelta(portion.window, minimum_unit="hours", format="%d"),
        humanize.intcomma(portion.rows),
        humanize.intcomma(along) if along else "",
        _size(portion.bytes) if portion.rows else "",
        "" if portion.oldest_at is None else f"{portion.oldest_at:%Y-%m-%d %H:%M}Z",
    )


def _size(number: int) -> str:
    return humanize.naturalsize(number, binary=True)
