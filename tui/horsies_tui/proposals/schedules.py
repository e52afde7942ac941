"""Proposals of actions on schedules: pause or resume, run now, and backfill."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from horsies.errors import Refused
from horsies_ops.actions.plan import SINGLE_KEY_LIMIT
from horsies_ops.reads.schedules import ScheduleRow
from horsies_tui.format import format_age, format_day_time, plural
from horsies_tui.proposals.model import Confirmation, Proposal, ProposalLine, ProposalReport, log_lines

if TYPE_CHECKING:
    from horsies_ops.actions.report import ActionReport
    from horsies_ops.source import DataSource


BACKFILL_WINDOWS: Final = (timedelta(days=1), timedelta(days=7), timedelta(days=30), timedelta(hours=1))


async def propose_schedule_pause_toggle(source: DataSource, name: str, now: datetime) -> Proposal:
    """The proposal to resume a paused schedule, or to pause any other."""
    row = await source.schedule(name)  # read again: another operator may have paused or resumed it
    if not row.is_paused:
        line = ProposalLine(count=1, kind=_kind(row), effect="does not fire until it is resumed; survives deploys")
        return _proposal("pause", row, line, lambda reason: source.pause_schedule(name, reason=reason), "paused")
    since = "" if row.paused_at is None else f"paused {format_age(now - row.paused_at)} ago by {row.paused_by}"
    line = ProposalLine(count=1, kind=f"{_kind(row)}   {since}", effect="fires again from the first slot after now")
    return _proposal("resume", row, line, lambda reason: source.resume_schedule(name, reason=reason), "resumed")


async def propose_schedule_run(source: DataSource, name: str) -> Proposal:
    """The proposal to run a schedule now, besides its slots."""
    row = await source.schedule(name)
    effect = "starts a run" if row.is_workflow else "sends a task"
    line = ProposalLine(count=1, kind=row.target or "?", effect=f"{effect} now; the next slots stay")
    return _proposal("run", row, line, lambda reason: source.run_schedule(name, reason=reason), "started")


async def propose_backfill(source: DataSource, name: str, window: timedelta = BACKFILL_WINDOWS[0]) -> Proposal:
    """The proposal to backfill the slots of the last day; the option chooses a longer or shorter time.

    A time with too many slots is left out.
    """
    row, now = await source.schedule(name), await source.database_time()
    first = now - window

    async def with_next_option() -> Proposal:
        following = BACKFILL_WINDOWS[(BACKFILL_WINDOWS.index(window) + 1) % len(BACKFILL_WINDOWS)]
        return await propose_backfill(source, name, following)

    try:
        plan = await source.plan_backfill(name, first, now)
    except Refused:
        if window == min(BACKFILL_WINDOWS):
            raise
        return await with_next_option()
    count = len(plan.slots)

    async def apply(confirmed: Confirmation) -> ProposalReport:
        report = await source.backfill_schedule(name, first, now, reason=confirmed.reason)
        return _report(name, f"{plural(report.affected, 'slot')} fired", report)

    return Proposal(
        title=f"Backfill schedule {name}",
        apply_label=f"backfill {count:,}",
        selected_by=f"{_kind(row)}   {format_day_time(first)} to {format_day_time(now)}",
        lines=(
            ProposalLine(count=count, kind="slots not fired", effect="fire now", is_skipped=not count),
            ProposalLine(count=plan.already_fired, kind="slots fired", effect="unchanged", is_skipped=True),
        ),
        command=shlex.join(["horsies", "schedule", "backfill", name, "--from", first.isoformat()]),
        confirmation_text=str(count) if count > SINGLE_KEY_LIMIT else None,
        option_text=f"the last {format_age(window)}",
        with_next_option=with_next_option,
        apply=apply,
    )


def _proposal(
    verb: str,
    row: ScheduleRow,
    line: ProposalLine,
    act: Callable[[str | None], Awaitable[ActionReport]],
    done: str,
) -> Proposal:
    async def apply(confirmed: Confirmation) -> ProposalReport:
        report = await act(confirmed.reason)
        return _report(row.name, f"{row.name} {done}" if report.affected else f"{row.name} was not {done}", report)

    return Proposal(
        title=f"{verb.capitalize()} schedule {row.name}",
        apply_label=f"{verb} {row.name}",
        selected_by=_kind(row),
        lines=(line,),
        command=shlex.join(["horsies", "schedule", verb, row.name]),
        apply=apply,
    )


def _report(name: str, result: str, report: ActionReport) -> ProposalReport:
    title = f"Schedule {name}" if report.affected else "Nothing changed"
    return ProposalReport(title=title, lines=(result, *log_lines(report)), changed_ids=report.new_ids)


def _kind(row: ScheduleRow) -> str:
    return f"schedule {row.name}, {row.pattern}"
