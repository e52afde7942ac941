"""Pausing, resuming, cancelling and retrying workflow runs; each action has one audit entry."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from horsies.model.operator_actions import SkipReason
from horsies.model.task import parse_id
from horsies.store.database import Transaction
from horsies.store.operators import AuditProgress, record_audit
from horsies.workflows import control
from horsies_ops.actions.report import (
    CANCEL_WORKFLOW,
    PAUSE_WORKFLOW,
    RESUME_WORKFLOW,
    RETRY_WORKFLOW,
    ActionReport,
    Skipped,
)

if TYPE_CHECKING:
    from horsies_ops.ops import OperatorSession, Ops


async def pause_workflow(ops: Ops, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport:
    """Start no more nodes of the run and its sub-workflows until it is resumed; running tasks continue."""
    return await _change_run(ops.session, PAUSE_WORKFLOW, workflow_id, reason, control.pause)


async def resume_workflow(ops: Ops, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport:
    return await _change_run(ops.session, RESUME_WORKFLOW, workflow_id, reason, control.resume)


async def cancel_workflow(
    ops: Ops, workflow_id: str | UUID, *, kill: bool = False, reason: str | None = None
) -> ActionReport:
    """Cancel the run and its sub-workflows; `kill` also kills the processes of their running tasks."""
    cancel = partial(control.cancel, kill=kill)
    return await _change_run(ops.session, CANCEL_WORKFLOW, workflow_id, reason, cancel)


async def retry_workflow(ops: Ops, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport:
    """Run the failed and skipped nodes of a finished run again; the report has their number in `retried_nodes`."""
    return await _change_run(ops.session, RETRY_WORKFLOW, workflow_id, reason, control.retry_failed)


async def _change_run(
    session: OperatorSession,
    action: str,
    workflow_id: str | UUID,
    reason: str | None,
    change: Callable[[Transaction, UUID], Awaitable[int | control.ControlRefusal]],
) -> ActionReport:
    """Change the run and write the audit entry in one transaction."""
    run_id = UUID(parse_id(str(workflow_id)))

    async def work(transaction: Transaction) -> ActionReport:
        count_or_refusal = await change(transaction, run_id)
        is_changed = not isinstance(count_or_refusal, control.ControlRefusal) and count_or_refusal > 0
        progress = AuditProgress(affected=int(is_changed), skipped=int(not is_changed))
        matched = int(count_or_refusal is not control.ControlRefusal.NOT_FOUND)
        # A change of no node means that the run was not in a state that the action allows.
        skip_reason = SkipReason.WORKFLOW_STATE_NOT_ALLOWED
        if isinstance(count_or_refusal, control.ControlRefusal):
            skip_reason = SkipReason(count_or_refusal)
        entry = session.audit_entry(action, reason, {"workflow_id": str(run_id)}, matched=matched)
        return ActionReport(
            action=action,
            matched=matched,
            affected=progress.affected,
            skipped=() if is_changed else (Skipped(run_id, skip_reason),),
            skipped_count=progress.skipped,
            audit_id=await record_audit(transaction, entry, progress),
            retried_nodes=count_or_refusal if action == RETRY_WORKFLOW and isinstance(count_or_refusal, int) else 0,
        )

    return await session.run(work)
