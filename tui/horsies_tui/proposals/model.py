"""Proposals: the preview of an operator action in one form for all actions, and those of task actions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from horsies.model.operator_actions import Action, ActionOptions
from horsies.model.task import TaskStatus
from horsies_ops.actions.report import ActionProgress, ActionReport
from horsies_ops.reads.filters import format_filter
from horsies_ops.source import DataSource
from horsies_tui.format import format_time, plural, short_id

if TYPE_CHECKING:
    import asyncio

    from horsies_ops.actions.plan import Plan, Selector

MAX_SAMPLES: Final = 2
"""Example tasks named in the preview."""

_REPORT_TITLES: Final = {
    Action.REQUEUE: "Requeued",
    Action.RETRY: "Retried",
    Action.FAIL: "Marked as failed",
    Action.CANCEL: "Cancelled",
    Action.EXPIRE: "Expired",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalLine:
    """A number of rows of one kind and the effect on them."""

    count: int
    kind: str
    effect: str
    is_skipped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalReport:
    """The result of an applied proposal."""

    title: str
    lines: tuple[str, ...]
    changed_ids: tuple[UUID, ...] = ()
    undo: Callable[[], Awaitable[str]] | None = None
    """Undoes the action as far as still possible; returns a text with the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """The operator's consent to apply a proposal: the reason, and how to show progress and stop."""

    reason: str | None
    progress: Callable[[ActionProgress], None]
    """Called while the action runs."""
    stop: asyncio.Event
    """Stops the action between two batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The preview of an action: its effects, the required confirmation and how to apply it."""

    title: str
    apply_label: str
    """Label of the apply key: `retry 3`."""
    selected_by: str
    lines: tuple[ProposalLine, ...]
    warnings: tuple[str, ...] = ()
    command: str | None = None
    """The equivalent command."""
    confirmation_text: str | None = None
    """Text to type before applying; None if a key is enough."""
    option_text: str | None = None
    """Current value of the option that can be changed, if any."""
    with_next_option: Callable[[], Awaitable[Proposal]] | None = None
    """The same proposal with the next value of the option."""
    apply: Callable[[Confirmation], Awaitable[ProposalReport]]

    @property
    def is_empty(self) -> bool:
        """Whether nothing would change."""
        return all(line.is_skipped for line in self.lines)


def log_lines(report: ActionReport) -> tuple[str, ...]:
    """The last lines of every report: its entry in the operator log, and warnings."""
    return (f"operator log {report.audit_id}" if report.audit_id is not None else "", *report.warnings)


ProposalFactory: TypeAlias = Callable[[DataSource], Awaitable[Proposal]]
"""Reads what an action would change now."""


# Actions on tasks


def requeue_or_retry(statuses: Sequence[str]) -> Action:
    """What `R` does to tasks with these statuses: retry if all are finished, else requeue."""
    is_finished = bool(statuses) and all(TaskStatus(status).is_terminal for status in statuses)
    return Action.RETRY if is_finished else Action.REQUEUE


async def propose_task_action(
    source: DataSource,
    action: Action,
    selector: Selector,
    options: ActionOptions | None = None,
    *,
    cautions: tuple[str, ...] = (),
) -> Proposal:
    """The proposal of an action on tasks; `cautions` are additional warnings."""
    plan = await source.plan(action, selector, options or ActionOptions())
    count, next_options = len(plan.targets), _next_options(action, plan.options)
    has_option = next_options != plan.options

    async def with_next_option() -> Proposal:
        return await propose_task_action(source, action, selector, next_options, cautions=cautions)

    async def apply(confirmed: Confirmation) -> ProposalReport:
        # Applies the previewed plan, not a new one: rows may have changed since.
        with_reason = replace(plan, options=replace(plan.options, reason=confirmed.reason))
        report = await source.apply(with_reason, progress=confirmed.progress, stop=confirmed.stop)
        return _task_report(source, action, report)

    return Proposal(
        title=f"{action.capitalize()} {plural(count, 'task')}",
        apply_label=f"{action} {count:,}",
        selected_by=_selected_by(plan),
        lines=tuple(
            ProposalLine(
                count=group.count,
                kind=f"{group.status}  {group.error_code or ''}".rstrip(),
                effect=group.effect,
                is_skipped=group.refusal is not None,
            )
            for group in plan.groups
        ),
        warnings=(*cautions, *plan.warnings),
        command=plan.command,
        confirmation_text=str(count) if plan.confirmation_tier > 1 else None,
        option_text=_option_text(plan.options) if has_option else None,
        with_next_option=with_next_option if has_option else None,
        apply=apply,
    )


def _selected_by(plan: Plan) -> str:
    selector = plan.selector
    if selector.filter is None:
        samples = ", ".join(f"{short_id(sample.id)} {sample.name}" for sample in plan.samples[:MAX_SAMPLES])
        more = ", …" if plan.matched > MAX_SAMPLES and samples else ""
        return f"{plural(len(selector.ids or ()), 'row')}  {samples}{more}"
    return f"filter  {format_filter(selector.filter)}   as of {format_time(selector.as_of)}, later tasks not included"


def _next_options(action: Action, options: ActionOptions) -> ActionOptions:
    """Cycle the treatment of running tasks: skipped, included and, for cancel, killed."""
    # Neither applies to running tasks.
    if action in (Action.RETRY, Action.EXPIRE):
        return options
    if not options.include_running:
        return replace(options, include_running=True)
    if action is Action.CANCEL and not options.kill:
        return replace(options, kill=True)
    return replace(options, include_running=False, kill=False)


def _option_text(options: ActionOptions) -> str:
    if options.kill:
        return "running tasks: killed"
    return "running tasks: included" if options.include_running else "running tasks: skipped"


def _task_report(source: DataSource, action: Action, report: ActionReport) -> ProposalReport:
    reasons = Counter(skipped.why for skipped in report.skipped)
    skipped_by = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())
    skipped = f"skipped {report.skipped_count:,}{f' ({skipped_by})' if skipped_by else ''}"
    stopped = "stopped before the end; the rest is unchanged" if report.was_stopped else ""

    async def undo() -> str:
        undone = await source.undo_retry(report)
        return f"{undone.affected:,} of {len(report.new_ids):,} new tasks cancelled"

    return ProposalReport(
        title=_REPORT_TITLES[action],
        lines=(f"changed {report.affected:,}   {skipped}", stopped, *log_lines(report)),
        changed_ids=report.task_ids,
        undo=undo if report.new_ids else None,
    )
