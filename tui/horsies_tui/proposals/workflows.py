"""What can be done to a run, each as a change to look at first."""

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
from horsies_tui.data.source import DataSource
from horsies_tui.format import format_age, plural, short_id
from horsies_tui.proposals.model import Proposal, ProposalLine, ProposalReport
from horsies_tui.screens.workflows.graph import FAILED_OR_SKIPPED

if TYPE_CHECKING:
    import asyncio


CONFIRM_ABOVE: Final = 25
"""More nodes than this are not begun again or given up by a single key."""

_RUNNING: Final = WorkflowTaskStatus.RUNNING.value
_NOT_STARTED: Final[tuple[str, ...]] = (
    WorkflowTaskStatus.PENDING,
    WorkflowTaskStatus.READY,
    WorkflowTaskStatus.ENQUEUED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunChange:
    """One way of changing a run: what becomes of its nodes by their state, or why it cannot be done now."""

    verb: str
    done: str
    effects: Mapping[str, str]
    """States that are not named stay as they are."""
    refusal: str | None
    options: Sequence[str] = ()
    needs_confirmation: bool = False


async def propose_run_retry(source: DataSource, workflow_id: UUID) -> Proposal:
    """Begin again where it failed."""
    detail = await source.workflow(workflow_id)
    effects = dict.fromkeys(FAILED_OR_SKIPPED, "run again")
    change = _RunChange(verb="retry", done="begun again", effects=effects, refusal=_retry_refusal(detail))
    return _run_proposal(detail, workflow_id, change, lambda reason: source.retry_workflow(workflow_id, reason=reason))


async def propose_run_pause_toggle(source: DataSource, workflow_id: UUID) -> Proposal:
    """Pause a run that runs, resume one that is paused."""
    detail = await source.workflow(workflow_id)
    if detail is not None and detail.run.status == WorkflowStatus.PAUSED:
        change = _RunChange(
            verb="resume", done="resumed", effects=dict.fromkeys(_NOT_STARTED, "may start again"), refusal=None
        )
        return _run_proposal(
            detail, workflow_id, change, lambda reason: source.resume_workflow(workflow_id, reason=reason)
        )
    effects = {**dict.fromkeys(_NOT_STARTED, "start only once it is resumed"), _RUNNING: "may end, and starts nothing"}
    refusal = _missing_refusal(detail) or _refusal_unless(
        detail, WorkflowStatus.RUNNING, "only a run that is running can be paused"
    )
    change = _RunChange(verb="pause", done="paused", effects=effects, refusal=refusal)
    return _run_proposal(detail, workflow_id, change, lambda reason: source.pause_workflow(workflow_id, reason=reason))


async def propose_run_cancel(source: DataSource, workflow_id: UUID, *, kill: bool = False) -> Proposal:
    """End a run and all below it."""
    detail = await source.workflow(workflow_id)
    running = "killed" if kill else "may end; what it returns is kept"
    change = _RunChange(
        verb="cancel",
        done="cancelled",
        effects={**dict.fromkeys(_NOT_STARTED, "never start"), _RUNNING: running},
        refusal=_missing_refusal(detail) or ("it has ended already" if detail and _is_over(detail) else None),
        options=("--kill",) if kill else (),
        needs_confirmation=kill,
    )

    async def other() -> Proposal:
        return await propose_run_cancel(source, workflow_id, kill=not kill)

    return _run_proposal(
        detail,
        workflow_id,
        change,
        lambda reason: source.cancel_workflow(workflow_id, kill=kill, reason=reason),
        option="running ones: killed" if kill else "running ones: may end",
        edited=other,
    )


def _run_proposal(
    detail: WorkflowDetail | None,
    workflow_id: UUID,
    change: _RunChange,
    carry_out: Callable[[str | None], Awaitable[ActionReport]],
    *,
    option: str | None = None,
    edited: Callable[[], Awaitable[Proposal]] | None = None,
) -> Proposal:
    async def apply(reason: str | None, _: Callable[[ActionProgress], None], __: asyncio.Event) -> ProposalReport:
        return _run_report(change, await carry_out(reason))

    name = "" if detail is None else f"{detail.run.name} "
    touched = 0 if detail is None else sum(node.status in change.effects for node in detail.nodes)
    needs_number = change.needs_confirmation or touched > CONFIRM_ABOVE
    return Proposal(
        title=f"{change.verb.capitalize()} the run {name}{short_id(workflow_id)}",
        apply_label=f"{change.verb} it",
        selected_by=f"run {name}{workflow_id}",
        lines=() if detail is None else _lines(detail, change),
        warnings=_run_warnings(detail, change),
        command=shlex.join(["horsies", "workflow", change.verb, str(workflow_id), *change.options]),
        confirmation_text=str(touched) if needs_number and touched and change.refusal is None else None,
        option_text=option if change.refusal is None else None,
        with_next_option=edited if change.refusal is None else None,
        apply=apply,
    )


def _lines(detail: WorkflowDetail, change: _RunChange) -> tuple[ProposalLine, ...]:
    """What becomes of the nodes; where it cannot be done at all, that and why."""
    if change.refusal is not None:
        return (ProposalLine(count=1, kind=f"run, {detail.run.status}", effect=change.refusal, is_skipped=True),)
    counts = detail.counts
    touched = tuple(
        ProposalLine(count=counts[status], kind=status, effect=effect)
        for status, effect in change.effects.items()
        if counts.get(status)
    )
    left = tuple(
        ProposalLine(count=count, kind=status, effect="stay as they are", is_skipped=True)
        for status, count in counts.items()
        if status not in change.effects
    )
    # A run whose nodes have all been settled may still be waiting for its end.
    run = () if touched else (ProposalLine(count=1, kind=f"run, {detail.run.status}", effect=change.verb),)
    return (*run, *touched, *left)


def _run_warnings(detail: WorkflowDetail | None, change: _RunChange) -> tuple[str, ...]:
    if detail is None or change.refusal is not None:
        return ()
    below = len(detail.children)
    found = [f"{plural(below, 'run')} below it are meant too"] if below else []
    if change.verb == "retry" and detail.counts.get(WorkflowTaskStatus.FAILED):
        found.append("side effects may happen again: those that failed did start")
    return tuple(found)


def _retry_refusal(detail: WorkflowDetail | None) -> str | None:
    if detail is None:
        return _missing_refusal(detail)
    if detail.run.parent_id is not None:
        return f"it is a step of another run: retry {short_id(detail.run.root_id)}"
    if not _is_over(detail):
        return "it has not ended: only a run that has can be begun again"
    has_lost = any(node.status in FAILED_OR_SKIPPED for node in detail.nodes)
    return None if has_lost and detail.run.status != WorkflowStatus.COMPLETED else "nothing of it failed"


def _missing_refusal(detail: WorkflowDetail | None) -> str | None:
    return "there is no such run any more" if detail is None else None


def _refusal_unless(detail: WorkflowDetail | None, status: WorkflowStatus, refusal: str) -> str | None:
    return None if detail is not None and detail.run.status == status else refusal


def _is_over(detail: WorkflowDetail) -> bool:
    return WorkflowStatus(detail.run.status).is_terminal


def _run_report(change: _RunChange, report: ActionReport) -> ProposalReport:
    nodes = f", {plural(report.retried_nodes, 'node')}" if report.retried_nodes else ""
    why = report.skipped[0].why if report.skipped else ""
    return ProposalReport(
        title=change.done.capitalize() if report.affected else "Nothing changed",
        lines=(
            f"{change.done}{nodes}" if report.affected else f"not {change.done}: {why}",
            f"operator log {report.audit_id}" if report.audit_id is not None else "",
            *report.warnings,
        ),
    )


# Pausing and resuming a queue, as a change to look at first.


async def propose_queue_pause_toggle(source: DataSource, name: str, now: datetime) -> Proposal:
    """What `P` would do to this queue as it stands: resume it where it is paused, else pause it."""
    queue = next((each for each in await source.list_queues() if each.name == name), None)
    is_paused = queue is not None and queue.is_paused
    verb = "resume" if is_paused else "pause"
    change = source.resume_queue if is_paused else source.pause_queue

    async def apply(reason: str | None, _: Callable[[ActionProgress], None], __: asyncio.Event) -> ProposalReport:
        return _queue_outcome(name, verb, await change(name, reason=reason))

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
        ProposalLine(
            count=queue.pending + queue.delayed, kind="PENDING", effect="stay where they are until it is resumed"
        ),
        ProposalLine(count=queue.claimed, kind="CLAIMED", effect="go on", is_skipped=True),
        ProposalLine(count=queue.running, kind="RUNNING", effect="go on", is_skipped=True),
    )


def _resume_lines(queue: QueueRow, now: datetime) -> tuple[ProposalLine, ...]:
    since = "" if queue.paused_at is None else f"   paused {format_age(now - queue.paused_at)} ago by {queue.paused_by}"
    why = f": {queue.pause_reason}" if queue.pause_reason else ""
    return (ProposalLine(count=queue.pending, kind=f"PENDING{since}{why}", effect="may be claimed again, at once"),)


def _queue_warnings(queue: QueueRow | None, name: str) -> tuple[str, ...]:
    if queue is None:
        return (f"there is no queue {name} any more",)
    return () if queue.served_by else ("no live worker takes from it",)


def _queue_outcome(name: str, verb: str, report: ActionReport) -> ProposalReport:
    done = f"{name} is {verb}d" if report.affected else f"{name} had been {verb}d already"
    return ProposalReport(
        title=f"{verb.capitalize()}d" if report.affected else "Nothing changed",
        lines=(done, f"operator log {report.audit_id}", *report.warnings),
    )
