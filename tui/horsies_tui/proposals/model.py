"""A change before it is made, in words: one shape for all that a capital letter does, so that one dialog serves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import UUID

from horsies.model.operator_actions import Action, ActionOptions
from horsies_ops.actions.report import ActionProgress, ActionReport
from horsies_ops.reads.filters import format_filter
from horsies_tui.data.source import DataSource
from horsies_tui.format import format_time, plural, short_id

if TYPE_CHECKING:
    import asyncio

    from horsies_ops.actions.plan import Plan, Selector

MAX_SAMPLES = 2
"""So many tasks are named, to recognise the others by."""

_DONE = {
    Action.REQUEUE: "Requeued",
    Action.RETRY: "Retried",
    Action.FAIL: "Marked as failed",
    Action.CANCEL: "Cancelled",
    Action.EXPIRE: "Expired",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalLine:
    """So many things of a kind, and what would become of them."""

    count: int
    kind: str
    effect: str
    is_skipped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalReport:
    """What came of it."""

    title: str
    lines: tuple[str, ...]
    changed_ids: tuple[UUID, ...] = ()
    undo: Callable[[], Awaitable[str]] | None = None
    """Takes it back as far as that is still possible, and says how far that was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What would be done, to what, and how sure one must be. Nothing has been changed yet."""

    title: str
    apply_label: str
    """What the key does, with the number: `retry 3`."""
    selected_by: str
    lines: tuple[ProposalLine, ...]
    warnings: tuple[str, ...] = ()
    command: str | None = None
    """The command line that does the same."""
    confirmation_text: str | None = None
    """What must be typed before it is done; None where a key is enough."""
    option_text: str | None = None
    """How the option stands that can be changed, where there is one."""
    with_next_option: Callable[[], Awaitable[Proposal]] | None = None
    """The same with that option changed."""
    apply: Callable[[str | None, Callable[[ActionProgress], None], asyncio.Event], Awaitable[ProposalReport]]
    """Do it, for this reason; the event stops it between two batches."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing would change."""
        return all(line.is_skipped for line in self.lines)


async def propose_task_action(
    source: DataSource,
    action: Action,
    selector: Selector,
    options: ActionOptions | None = None,
    *,
    cautions: tuple[str, ...] = (),
) -> Proposal:
    """What an action would do to these tasks; `cautions` are warnings beyond those of the plan."""
    plan = await source.plan(action, selector, options or ActionOptions())
    count, further = len(plan.targets), _next_options(action, plan.options)

    async def edited() -> Proposal:
        return await propose_task_action(source, action, selector, further, cautions=cautions)

    async def apply(
        reason: str | None, progress: Callable[[ActionProgress], None], stop: asyncio.Event
    ) -> ProposalReport:
        decided = replace(plan, options=replace(plan.options, reason=reason or None))
        return _task_report(source, action, await source.apply(decided, progress=progress, stop=stop))

    return Proposal(
        title=f"{action.capitalize()} {plural(count, 'task')}",
        apply_label=f"{action} {count:,}",
        selected_by=_selected_by(plan),
        lines=_lines(plan),
        warnings=(*cautions, *plan.warnings),
        command=plan.command,
        confirmation_text=str(count) if plan.confirmation_tier > 1 else None,
        option_text=_option(plan.options) if further != plan.options else None,
        with_next_option=edited if further != plan.options else None,
        apply=apply,
    )


def _selected_by(plan: Plan) -> str:
    selector = plan.selector
    if selector.filter is None:
        named = ", ".join(f"{short_id(sample.id)} {sample.name}" for sample in plan.samples[:MAX_SAMPLES])
        more = ", …" if plan.matched > MAX_SAMPLES and named else ""
        return f"{plural(len(selector.ids or ()), 'row')}  {named}{more}"
    # Rows that come to match later are not meant, and the one who decides must know that.
    return f"filter  {format_filter(selector.filter)}   as of {format_time(selector.as_of)}, later ones are left out"


def _lines(plan: Plan) -> tuple[ProposalLine, ...]:
    return tuple(
        ProposalLine(
            count=group.count,
            kind=f"{group.status}  {group.error_code or ''}".rstrip(),
            effect=group.effect,
            is_skipped=group.refusal is not None,
        )
        for group in plan.groups
    )


def _next_options(action: Action, options: ActionOptions) -> ActionOptions:
    """The next way of treating tasks that run: leave them, take them too, and for cancel also kill them."""
    if action in (Action.RETRY, Action.EXPIRE):
        return options
    if not options.include_running:
        return replace(options, include_running=True)
    if action is Action.CANCEL and not options.kill:
        return replace(options, kill=True)
    return replace(options, include_running=False, kill=False)


def _option(options: ActionOptions) -> str:
    if options.kill:
        return "running ones: killed"
    return "running ones: included" if options.include_running else "running ones: left alone"


def _task_report(source: DataSource, action: Action, report: ActionReport) -> ProposalReport:
    reasons: dict[str, int] = {}
    for skipped in report.skipped:
        reasons[skipped.why] = reasons.get(skipped.why, 0) + 1
    why = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())
    lines = [f"changed {report.affected:,}   skipped {report.skipped_count:,}{f' ({why})' if why else ''}"]
    if report.was_stopped:
        lines.append("stopped before the end; the rest is as it was")
    lines.append(f"operator log {report.audit_id}" if report.audit_id is not None else "")

    async def undo() -> str:
        undone = await source.undo_retry(report)
        return f"{undone.affected:,} of {len(report.new_ids):,} new tasks taken back"

    return ProposalReport(
        title=_DONE[action],
        lines=(*lines, *report.warnings),
        changed_ids=report.task_ids,
        undo=undo if report.new_ids else None,
    )
