"""Runs of workflows, paused, resumed, cancelled or begun again by an operator; each is one row of the audit."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from horsies.flows import control
from horsies.model.actions import Refusal
from horsies.model.ids import parse_id
from horsies.model.workflow.status import WORKFLOW_TERMINAL_STATES
from horsies.store.audit import Deed, Done, write_down
from horsies.store.flow_control import standing
from horsies_ops.actions.plan import Skipped
from horsies_ops.actions.report import ActionReport

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from horsies.store.db import Database
    from horsies_ops.actions.hand import Hand


async def pause_workflow(hand: Hand, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport:
    """Start nothing of the run, nor of the runs below it, until it is resumed; what runs may end."""
    return await _on_record(hand, "pause_workflow", workflow_id, reason, control.pause)


async def resume_workflow(hand: Hand, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport:
    return await _on_record(hand, "resume_workflow", workflow_id, reason, control.resume)


async def cancel_workflow(
    hand: Hand, workflow_id: str | UUID, *, kill: bool = False, reason: str | None = None
) -> ActionReport:
    """End the run and all below it; with `kill`, the processes of its running tasks too."""

    async def cancel(database: Database, run: UUID) -> bool | control.Refusal:
        stands = await standing(database, run)
        if stands is not None and stands.status in WORKFLOW_TERMINAL_STATES:
            return False
        return await control.cancel(database, run, kill=kill) or True

    return await _on_record(hand, "cancel_workflow", workflow_id, reason, cancel)


async def retry_workflow(hand: Hand, workflow_id: str | UUID, *, reason: str | None = None) -> ActionReport:
    """Let a run that has ended begin again where it failed."""
    return await _on_record(hand, "retry_workflow", workflow_id, reason, control.retry_failed)


async def _on_record(
    hand: Hand,
    action: str,
    workflow_id: str | UUID,
    reason: str | None,
    change: Callable[[Database, UUID], Awaitable[int | control.Refusal]],
) -> ActionReport:
    """The audit row is begun before the change and completed after it: a run is moved in a transaction of its own."""
    run = UUID(parse_id(str(workflow_id)))
    deed = Deed(operator=hand.operator, action=action, reason=reason, filter={"workflow_id": str(run)}, matched=1)
    audit_id = await hand.run(lambda transaction: write_down(transaction, deed, Done()))
    answer = await change(hand.database, run)
    is_changed = not isinstance(answer, control.Refusal) and answer > 0
    done = Done(affected=int(is_changed), skipped=int(not is_changed))
    await hand.run(lambda transaction: write_down(transaction, deed, done, audit_id))
    return ActionReport(
        action=action,
        matched=int(answer is not control.Refusal.NOT_FOUND),
        affected=done.affected,
        skipped=() if is_changed else (Skipped(run, _why(answer)),),
        skipped_count=done.skipped,
        audit_id=audit_id,
        nodes=answer if action == "retry_workflow" and isinstance(answer, int) else 0,
    )


def _why(answer: int | control.Refusal) -> str:
    return Refusal(answer) if isinstance(answer, control.Refusal) else Refusal.WORKFLOW_STATE_NOT_ALLOWED
