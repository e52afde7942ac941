"""Proposals: the preview of an operator action in one form for all; those of tasks, workflow runs and queues."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from horsies.model.operator_actions import Action, ActionOptions
from horsies.model.task import TaskStatus
from horsies.model.workflow.plan import WorkflowStatus, WorkflowTaskStatus
from horsies_ops.actions.plan import SINGLE_KEY_LIMIT
from horsies_ops.actions.report import ActionProgress, ActionReport
from horsies_ops.reads.filters import format_filter
from horsies_ops.reads.overview import QueueRow
from horsies_ops.reads.workflows import WorkflowDetail
from horsies_ops.source import DataSource
from horsies_tui.format import format_age, format_time, plural, short_id

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
        title=f"{action.capitalize()} {plural(count, 'task')}" if count else f"Nothing to {action}",
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


FAILED_OR_SKIPPED: Final[tuple[str, ...]] = (WorkflowTaskStatus.FAILED, WorkflowTaskStatus.SKIPPED)
_RUNNING: Final = WorkflowTaskStatus.RUNNING.value
_NOT_STARTED: Final[tuple[str, ...]] = (
    WorkflowTaskStatus.PENDING,
    WorkflowTaskStatus.READY,
    WorkflowTaskStatus.ENQUEUED,
)


# Workflow runs


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAction:
    """An action on a workflow run and its sub-workflow runs."""

    verb: str
    past_tense: str
    effects: Mapping[str, str]
    """By node status; nodes with other statuses are unchanged."""
    refusal: Callable[[WorkflowDetail], str | None]
    """Why a run cannot be changed like this."""
    run: Callable[[DataSource, UUID, str | None], Awaitable[ActionReport]]
    """Gets the reason last."""
    warning: str = ""
    """Shown if a node of the run has failed."""
    option: str = ""
    """Option of the command."""
    option_text: str | None = None
    other_option: str | None = None
    """The action with the other value of the option."""


def _retry_refusal(detail: WorkflowDetail) -> str | None:
    if detail.run.parent_id is not None:
        return f"a sub-workflow run cannot be retried alone: retry {short_id(detail.run.root_id)}"
    if not WorkflowStatus(detail.run.status).is_terminal:
        return "only a finished run can be retried"
    has_failed = any(node.status in FAILED_OR_SKIPPED for node in detail.nodes)
    return None if has_failed and detail.run.status != WorkflowStatus.COMPLETED else "no node of it failed"


def _pause_refusal(detail: WorkflowDetail) -> str | None:
    return None if detail.run.status == WorkflowStatus.RUNNING else "only a running run can be paused"


def _cancel_refusal(detail: WorkflowDetail) -> str | None:
    return "the run has already finished" if WorkflowStatus(detail.run.status).is_terminal else None


_RUN_ACTIONS: Final = {
    "retry": RunAction(
        verb="retry",
        past_tense="retried",
        effects=dict.fromkeys(FAILED_OR_SKIPPED, "run again"),
        refusal=_retry_refusal,
        run=lambda source, run_id, reason: source.retry_workflow(run_id, reason=reason),
        warning="side effects may happen again: the failed nodes did start",
    ),
    "pause": RunAction(
        verb="pause",
        past_tense="paused",
        effects=dict.fromkeys(_NOT_STARTED, "wait until the run is resumed")
        | {_RUNNING: "may finish; no further node starts"},
        refusal=_pause_refusal,
        run=lambda source, run_id, reason: source.pause_workflow(run_id, reason=reason),
    ),
    "resume": RunAction(
        verb="resume",
        past_tense="resumed",
        effects=dict.fromkeys(_NOT_STARTED, "can start again"),
        refusal=lambda _: None,
        run=lambda source, run_id, reason: source.resume_workflow(run_id, reason=reason),
    ),
    "cancel": RunAction(
        verb="cancel",
        past_tense="cancelled",
        effects=dict.fromkeys(_NOT_STARTED, "do not start") | {_RUNNING: "may finish; their results are kept"},
        refusal=_cancel_refusal,
        run=lambda source, run_id, reason: source.cancel_workflow(run_id, reason=reason),
        option_text="running nodes: may finish",
        other_option="kill",
    ),
    "kill": RunAction(
        verb="cancel",
        past_tense="cancelled",
        effects=dict.fromkeys(_NOT_STARTED, "do not start") | {_RUNNING: "killed"},
        refusal=_cancel_refusal,
        run=lambda source, run_id, reason: source.cancel_workflow(run_id, kill=True, reason=reason),
        option="--kill",
        option_text="running nodes: killed",
        other_option="cancel",
    ),
}


async def propose_run_action(source: DataSource, verb: str, workflow_id: UUID) -> Proposal:
    """The proposal of an action on a run: `requeue` retries it, `pause` also resumes, `kill` cancels and kills."""
    detail = await source.workflow(workflow_id)
    is_paused = detail is not None and detail.run.status == WorkflowStatus.PAUSED
    action = _RUN_ACTIONS[{"requeue": "retry", "pause": "resume" if is_paused else "pause"}.get(verb, verb)]
    refusal = "the run no longer exists" if detail is None else action.refusal(detail)
    name = "" if detail is None else f"{detail.run.name} "
    affected = 0 if detail is None or refusal else sum(node.status in action.effects for node in detail.nodes)
    has_option = action.other_option is not None and refusal is None

    async def with_next_option() -> Proposal:
        return await propose_run_action(source, action.other_option or verb, workflow_id)

    async def apply(confirmed: Confirmation) -> ProposalReport:
        return _run_report(action, await action.run(source, workflow_id, confirmed.reason))

    return Proposal(
        title=f"{action.verb.capitalize()} run {name}{short_id(workflow_id)}",
        apply_label=f"{action.verb} run",
        selected_by=f"run {name}{workflow_id}",
        lines=() if detail is None else _node_lines(detail, action, refusal),
        warnings=() if detail is None or refusal else _run_warnings(detail, action),
        command=shlex.join(filter(None, ["horsies", "workflow", action.verb, str(workflow_id), action.option])),
        confirmation_text=str(affected) if affected > SINGLE_KEY_LIMIT or (affected and action.option) else None,
        option_text=action.option_text if has_option else None,
        with_next_option=with_next_option if has_option else None,
        apply=apply,
    )


def _node_lines(detail: WorkflowDetail, action: RunAction, refusal: str | None) -> tuple[ProposalLine, ...]:
    """The effects on the nodes, or the refusal."""
    run = f"run, {detail.run.status}"
    if refusal is not None:
        return (ProposalLine(count=1, kind=run, effect=refusal, is_skipped=True),)
    counts = detail.counts
    affected = tuple(
        ProposalLine(count=counts[status], kind=status, effect=effect)
        for status, effect in action.effects.items()
        if counts.get(status)
    )
    unchanged = tuple(
        ProposalLine(count=count, kind=status, effect="unchanged", is_skipped=True)
        for status, count in counts.items()
        if status not in action.effects
    )
    # All nodes may have finished while the run itself has not.
    return (*(affected or (ProposalLine(count=1, kind=run, effect=action.verb),)), *unchanged)


def _run_warnings(detail: WorkflowDetail, action: RunAction) -> tuple[str, ...]:
    sub_runs = len(detail.sub_workflows)
    warnings = [f"also applies to {plural(sub_runs, 'sub-workflow run')}"] if sub_runs else []
    if action.warning and detail.counts.get(WorkflowTaskStatus.FAILED):
        warnings.append(action.warning)
    return tuple(warnings)


def _run_report(action: RunAction, report: ActionReport) -> ProposalReport:
    nodes = f", {plural(report.retried_nodes, 'node')}" if report.retried_nodes else ""
    reason = report.skipped[0].why if report.skipped else ""
    result = f"{action.past_tense}{nodes}" if report.affected else f"not {action.past_tense}: {reason}"
    title = action.past_tense.capitalize() if report.affected else "Nothing changed"
    return ProposalReport(title=title, lines=(result, *log_lines(report)))


# Queues


async def propose_queue_pause_toggle(source: DataSource, name: str, now: datetime) -> Proposal:
    """The proposal to resume a paused queue, or to pause any other."""
    # Read again: another operator may have paused or resumed it since the screen was drawn.
    queue = next((row for row in await source.list_queues() if row.name == name), None)
    is_paused = queue is not None and queue.is_paused
    verb = "resume" if is_paused else "pause"
    run_action = source.resume_queue if is_paused else source.pause_queue

    async def apply(confirmed: Confirmation) -> ProposalReport:
        return _queue_report(name, verb, await run_action(name, reason=confirmed.reason))

    return Proposal(
        title=f"{verb.capitalize()} queue {name}",
        apply_label=f"{verb} {name}",
        selected_by=f"queue {name}",
        lines=() if queue is None else _resume_lines(queue, now) if is_paused else _pause_lines(queue),
        warnings=_queue_warnings(queue, name),
        command=shlex.join(["horsies", "queue", verb, name]),
        apply=apply,
    )


def _pause_lines(queue: QueueRow) -> tuple[ProposalLine, ...]:
    return (
        ProposalLine(count=queue.pending + queue.delayed, kind="PENDING", effect="wait until the queue is resumed"),
        ProposalLine(count=queue.claimed, kind="CLAIMED", effect="continue", is_skipped=True),
        ProposalLine(count=queue.running, kind="RUNNING", effect="continue", is_skipped=True),
    )


def _resume_lines(queue: QueueRow, now: datetime) -> tuple[ProposalLine, ...]:
    since = "" if queue.paused_at is None else f"   paused {format_age(now - queue.paused_at)} ago by {queue.paused_by}"
    reason = f": {queue.pause_reason}" if queue.pause_reason else ""
    return (ProposalLine(count=queue.pending, kind=f"PENDING{since}{reason}", effect="can be claimed again"),)


def _queue_warnings(queue: QueueRow | None, name: str) -> tuple[str, ...]:
    if queue is None:
        return (f"queue {name} no longer exists",)
    return () if queue.served_by else ("no worker serves this queue",)


def _queue_report(name: str, verb: str, report: ActionReport) -> ProposalReport:
    result = f"{name} is {verb}d" if report.affected else f"{name} was already {verb}d"
    title = f"{verb.capitalize()}d" if report.affected else "Nothing changed"
    return ProposalReport(title=title, lines=(result, *log_lines(report)))
