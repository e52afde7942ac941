"""Cleanup, as a change to look at first: rows are deleted, so it takes more than a key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import humanize

from horsies_ops.reads.durations import duration_text
from horsies_tui.format import age, clock
from horsies_tui.proposals import Line, Outcome, Proposal

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from datetime import datetime

    from horsies.model.retention import Cleaned, Portion
    from horsies_ops.actions.report import Progress
    from horsies_ops.cleanup import CleanupReport
    from horsies_tui.source import Source


async def for_cleanup(source: Source, *, where: str, now: datetime) -> Proposal:
    """What a cleanup would delete now; whoever wants that must type which database it is about."""
    due = await source.cleanup_candidates()

    async def apply(reason: str | None, progress: Callable[[Progress], None], stop: asyncio.Event) -> Outcome:
        return _outcome(await source.cleanup(reason=reason, progress=progress, stop=stop))

    return Proposal(
        title=f"Delete {due.rows:,} old rows",
        verb=f"delete {due.rows:,}",
        selected_by=f"what is past its window at {clock(now)}",
        lines=tuple(sorted((_line(portion, now) for portion in due.portions), key=lambda line: line.is_skipped)),
        warnings=_warnings(due),
        command="horsies cleanup",
        to_type=f"delete {where}",
        apply=apply,
    )


def _line(portion: Portion, now: datetime) -> Line:
    name = _name(portion)
    if portion.window is None:
        return Line(count=0, kind=name, effect="kept for ever", is_skipped=True)
    if not portion.rows:
        return Line(
            count=0,
            kind=f"{name} older than {duration_text(portion.window)}",
            effect="nothing to delete",
            is_skipped=True,
        )
    along = sum(portion.tables.values()) - portion.rows
    others = f", with {along:,} rows that go along" if along else ""
    oldest = f", up to {age(now - portion.oldest_at)}" if portion.oldest_at else ""
    return Line(
        count=portion.rows,
        kind=f"{name} older than {duration_text(portion.window)}{oldest}, about {_size(portion.bytes)}{others}",
        effect="are deleted for good",
    )


def _warnings(due: Cleaned) -> tuple[str, ...]:
    return (f"there is no way back; about {_size(due.bytes)} go",) if due.rows else ()


def _name(portion: Portion) -> str:
    return portion.category.replace("_", " ")


def _size(number: int) -> str:
    return humanize.naturalsize(number, gnu=True)


def _outcome(report: CleanupReport) -> Outcome:
    cleaned = report.cleaned
    parts = [f"{_name(each)} {each.rows:,}" for each in cleaned.portions if each.rows]
    rest = () if cleaned.is_complete else ("ended before all was deleted; the rest is as it was",)
    return Outcome(
        title="Cleaned up",
        lines=(f"deleted {cleaned.rows:,} rows", "   ".join(parts), *rest, f"operator log {report.audit_id}"),
    )
