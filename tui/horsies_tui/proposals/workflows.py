"""Proposals of workflow run and queue actions."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final
from uuid import UUID

from horsies.model.workflow.plan import WorkflowStatus, WorkflowTaskStatus
from horsies_ops.actions.report import ActionProgress, ActionReport
from horsies_ops.reads.queues import QueueRow
from horsies_ops.reads.workflows import WorkflowDetail
from horsies_ops.source import DataSource
from horsies_tui.format import format_age, plural, short_id
from horsies_tui.proposals.model import Proposal, ProposalLine, ProposalReport
from horsies_tui.screens.workflows.graph import FAILED_OR_SKIPPED

if TYPE_CHECKING:
    import asyncio


CONFIRM_ABOVE: Final = 25
"""Actions on more nodes than this require a typed confirmation."""

_MISSING_RUN: Final = "the run no longer exists"
_RUNNING: Final = WorkflowTaskStatus.RUNNING.value
_NOT_STARTED: Final[tuple[str, ...]] = (
    WorkflowTaskStatus.PENDING,
    WorkflowTaskStatus.READY,
    WorkflowTaskStatus.ENQUEUED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunChange:
    """An action on a run: its effects on nodes by status, or why it is refused."""

    verb: str
    past_tense: str
    effects: Mapping[str, str]
    """By node status; nodes with other statuses are unchanged."""
    refusal: str | None
    options: Sequence[str] = ()
    needs_confirmation: bool = False


async def propose_run_retry(source: DataSource, workflow_id: UUID) -> Proposal:
    """Retry the failed and skipped nodes of a run."""
    detail = await source.workflow(workflow_id)
    effects = dict.fromkeys(FAILED_OR_SKIPPED, "run again")
    change = _RunChange(verb="retry", past_tense="retried", effects=effects, refusal=_retry_refusal(detail))
    return _run_proposal(detail, workflow_id, change, lambda reason: source.retry_workflow(workflow_id, reason=reason))


async def propose_run_pause_toggle(source: DataSource, workflow_id: UUID) -> Proposal:
    """Resume a paused run, pause any other."""
    detail = await source.workflow(workflow_id)
    if detail is not None and detail.run.status == WorkflowStatus.PAUSED:
        change = _RunChange(
            verb="resume", past_tense="resumed", effects=dict.fromkeys(_NOT_STARTED, "can start again"), refusal=None
        )
        return _run_proposal(
            detail, workflow_id, change, lambda reason: source.resume_workflow(workflow_id, reason=reason)
        )
    effects = {
        **dict.fromkeys(_NOT_STARTED, "wait until the run is resumed"),
        _RUNNING: "may finish; no further node starts",
    }
    refusal = None
    if detail is None:
        refusal = _MISSING_RUN
    elif detail.run.status != WorkflowStatus.RUNNING:
        refusal = "only a running run can be paused"
    change = _RunChange(verb="pause", past_tense="paused", effects=effects, refusal=refusal)
    return _run_proposal(detail, workflow_id, change, lambda reason: source.pause_workflow(workflow_id, reason=reason))


async def propose_run_cancel(source: DataSource, workflow_id: UUID, *, kill: bool = False) -> Proposal:
    """Cancel a run and its sub-workflow runs."""
    detail = await source.workflow(workflow_id)
    running = "killed" if kill else "may finish; their results are kept"
    change = _RunChange(
        verb="cancel",
        past_tense="cancelled",
        effects={**dict.fromkeys(_NOT_STARTED, "do not start"), _RUNNING: running},
        refusal=_cancel_refusal(detail),
        options=("--kill",) if kill else (),
        needs_confirmation=kill,
    )

    async def with_next_option() -> Proposal:
        return await propose_run_cancel(source, workflow_id, kill=not kill)

    return _run_proposal(
        detail,
        workflow_id,
        change,
        lambda reason: source.cancel_workflow(workflow_id, kill=kill, reason=reason),
        option_text="running nodes: killed" if kill else "running nodes: may finish",
        with_next_option=with_next_option,
    )


RUN_PROPOSALS: Final = {
    "requeue": propose_run_retry,
    "pause": propose_run_pause_toggle,
    "cancel": propose_run_cancel,
}
"""By the name of the action: `op.requeue`, `op.pause`, `op.cancel`."""


def _run_proposal(
    detail: WorkflowDetail | None,
    workflow_id: UUID,
    change: _RunChange,
    run_action: Callable[[str | None], Awaitable[ActionReport]],
    *,
    option_text: str | None = None,
    with_next_option: Callable[[], Awaitable[Proposal]] | None = None,
) -> Proposal:
    async def apply(reason: str | None, _: Callable[[ActionProgress], None], __: asyncio.Event) -> ProposalReport:
        return _run_report(change, await run_action(reason))

    name = "" if detail is None else f"{detail.run.name} "
    affected = 0 if detail is None else sum(node.status in change.effects for node in detail.nodes)
    needs_confirmation = change.needs_confirmation or affected > CONFIRM_ABOVE
    return Proposal(
        title=f"{change.verb.capitalize()} run {name}{short_id(workflow_id)}",
        apply_label=f"{change.verb} run",
        selected_by=f"run {name}{workflow_id}",
        lines=() if detail is None else _node_lines(detail, change),
        warnings=_run_warnings(detail, change),
        command=shlex.join(["horsies", "workflow", change.verb, str(workflow_id), *change.options]),
        confirmation_text=str(affected) if needs_confirmation and affected and change.refusal is None else None,
        option_text=option_text if change.refusal is None else None,
        with_next_option=with_next_option if change.refusal is None else None,
        apply=apply,
    )


def _node_lines(detail: WorkflowDetail, change: _RunChange) -> tuple[ProposalLine, ...]:
    """The effects on the nodes, or the refusal."""
    if change.refusal is not None:
        return (ProposalLine(count=1, kind=f"run, {detail.run.status}", effect=change.refusal, is_skipped=True),)
    counts = detail.counts
    affected = tuple(
        ProposalLine(count=counts[status], kind=status, effect=effect)
        for status, effect in change.effects.items()
        if counts.get(status)
    )
    unchanged = tuple(
        ProposalLine(count=count, kind=status, effect="unchanged", is_skipped=True)
        for status, count in counts.items()
        if status not in change.effects
    )
    # All nodes may have finished while the run itself has not.
    run = () if affected else (ProposalLine(count=1, kind=f"run, {detail.run.status}", effect=change.verb),)
    return (*run, *affected, *unchanged)


def _run_warnings(detail: WorkflowDetail | None, change: _RunChange) -> tuple[str, ...]:
    if detail is None or change.refusal is not None:
        return ()
    children = len(detail.sub_workflows)
    warnings = [f"also applies to {plural(children, 'sub-workflow run')}"] if children else []
    if change.verb == "retry" and detail.counts.get(WorkflowTaskStatus.FAILED):
        warnings.append("side effects may happen again: the failed nodes did start")
    return tuple(warnings)


def _retry_refusal(detail: WorkflowDetail | None) -> str | None:
    if detail is None:
        return _MISSING_RUN
    if detail.run.parent_id is not None:
        return f"a sub-workflow run cannot be retried alone: retry {short_id(detail.run.root_id)}"
    if not WorkflowStatus(detail.run.status).is_terminal:
        return "only a finished run can be retried"
    has_failed = any(node.status in FAILED_OR_SKIPPED for node in detail.nodes)
    return None if has_failed and detail.run.status != WorkflowStatus.COMPLETED else "no node of it failed"


def _cancel_refusal(detail: WorkflowDetail | None) -> str | None:
    if detail is None:
        return _MISSING_RUN
    return "the run has already finished" if WorkflowStatus(detail.run.status).is_terminal else None


def _run_report(change: _RunChange, report: ActionReport) -> ProposalReport:
    nodes = f", {plural(report.retried_nodes, 'node')}" if report.retried_nodes else ""
    reason = report.skipped[0].why if report.skipped else ""
    return ProposalReport(
        title=change.past_tense.capitalize() if report.affected else "Nothing changed",
        lines=(
            f"{change.past_tense}{nodes}" if report.affected else f"not {change.past_tense}: {reason}",
            f"operator log {report.audit_id}" if report.audit_id is not None else "",
            *report.warnings,
        ),
    )


# Queues


async def propose_queue_pause_toggle(source: DataSource, name: str, now: datetime) -> Proposal:
    """Resume a paused queue, pause any other."""
    # Read again: another operator may have paused or resumed it since the screen was drawn.
    queue = next((row for row in await source.list_queues() if row.name == name), None)
    is_paused = queue is not None and queue.is_paused
    verb = "resume" if is_paused else "pause"
    run_action = source.resume_queue if is_paused else source.pause_queue

    async def apply(reason: str | None, _: Callable[[ActionProgress], None], __: asyncio.Event) -> ProposalReport:
        return _queue_report(name, verb, await run_action(name, reason=reason))

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
    return ProposalReport(
        title=f"{verb.capitalize()}d" if report.affected else "Nothing changed",
        lines=(result, f"operator log {report.audit_id}", *report.warnings),
    )
