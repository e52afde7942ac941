"""Runs of workflows, paused, resumed, cancelled or begun again by an operator; each is one row of the audit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from uuid import UUID

from horsies.model.operator_actions import SkipReason
from horsies.model.task import parse_id
from horsies.store.database import Transaction
from horsies.store.operators import AuditEntry, AuditProgress, record_audit
from horsies.workflows import control
from horsies_ops.actions.apply import OperatorSession
from horsies_ops.actions.plan import Skipped
from horsies_ops.actions.report import ActionReport

WORKFLOW_ACTIONS = PAUSE_WORKFLOW, RESUME_WORKFLOW, CANCEL_WORKFLOW, RETRY_WORKFLOW = (
    "pause_workflow",
    "resume_workflow",
    "cancel_workflow",
    "retry_workflow",
)
"""What the audit calls each of these."""


async def pause_workflow(
    session: OperatorSession, workflow_id: str | UUID, *, reason: str | None = None
) -> ActionReport:
    """Start nothing of the run, nor of the runs below it, until it is resumed; what runs may end."""
    return await _run_audited(session, PAUSE_WORKFLOW, workflow_id, reason, control.pause_within)


async def resume_workflow(
    session: OperatorSession, workflow_id: str | UUID, *, reason: str | None = None
) -> ActionReport:
    return await _run_audited(session, RESUME_WORKFLOW, workflow_id, reason, control.resume_within)


async def cancel_workflow(
    session: OperatorSession, workflow_id: str | UUID, *, kill: bool = False, reason: str | None = None
) -> ActionReport:
    """End the run and all below it; with `kill`, the processes of its running tasks too."""
    cancel = partial(control.cancel_within, kill=kill)
    return await _run_audited(session, CANCEL_WORKFLOW, workflow_id, reason, cancel)


async def retry_workflow(
    session: OperatorSession, workflow_id: str | UUID, *, reason: str | None = None
) -> ActionReport:
    """Let a run that has ended begin again where it failed."""
    return await _run_audited(session, RETRY_WORKFLOW, workflow_id, reason, control.retry_within)


async def _run_audited(
    session: OperatorSession,
    action: str,
    workflow_id: str | UUID,
    reason: str | None,
    change: Callable[[Transaction, UUID], Awaitable[int | control.ControlRefusal]],
) -> ActionReport:
    """Change the run and write that down in one transaction: neither is ever seen without the other."""
    run = UUID(parse_id(str(workflow_id)))
    named = {"workflow_id": str(run)}

    async def work(transaction: Transaction) -> ActionReport:
        answer = await change(transaction, run)
        is_changed = not isinstance(answer, control.ControlRefusal) and answer > 0
        done = AuditProgress(affected=int(is_changed), skipped=int(not is_changed))
        matched = int(answer is not control.ControlRefusal.NOT_FOUND)
        deed = AuditEntry(operator=session.operator, action=action, reason=reason, filter=named, matched=matched)
        return ActionReport(
            action=action,
            matched=matched,
            affected=done.affected,
            skipped=() if is_changed else (Skipped(run, _why(answer)),),
            skipped_count=done.skipped,
            audit_id=await record_audit(transaction, deed, done),
            retried_nodes=answer if action == RETRY_WORKFLOW and isinstance(answer, int) else 0,
        )

    return await session.run(work)


def _why(answer: int | control.ControlRefusal) -> str:
    return SkipReason(answer) if isinstance(answer, control.ControlRefusal) else SkipReason.WORKFLOW_STATE_NOT_ALLOWED
