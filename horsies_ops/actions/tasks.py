"""Actions on tasks: requeue, fail, cancel, expire and retry. Each plans first, then applies the plan in batches.

Each batch and its part of the audit entry are one transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict, Unpack
from uuid import UUID

from uuid_utils.compat import uuid7

from horsies.model.operator_actions import MAX_NAMED_TASKS, Action, ActionOptions, SkipReason
from horsies.model.task import TaskStatus
from horsies.model.task_result import OutcomeCode, TaskError
from horsies.store.database import Database, Transaction
from horsies.store.operators import (
    AuditEntry,
    AuditProgress,
    Target,
    Termination,
    TransitionRow,
    end_tasks,
    kill_outcomes,
    record_audit,
    request_kill,
    resend,
)
from horsies.store.operators import requeue as requeue_tasks
from horsies_ops.actions.plan import Plan, Selector, SelectorLike, plan
from horsies_ops.actions.report import ActionProgress, ActionReport, Skipped

if TYPE_CHECKING:
    from horsies_ops.ops import OperatorSession, Ops

BATCH_SIZE: Final = 500
"""Tasks per transaction: few, because workers that want to write the same rows wait for it."""
STOP_TIMEOUT_S: Final = 5.0
"""How long workers have to stop a task that is requeued. Afterwards it is requeued anyway, flagged as overlapping."""
POLL_INTERVAL_S: Final = 0.1


class Ending(NamedTuple):
    """How an action ends tasks: the kind of change that viewers are notified of, the status and the error code."""

    kind: str
    status: TaskStatus
    code: OutcomeCode


ENDINGS: Final = {
    Action.FAIL: Ending("operator fail", TaskStatus.FAILED, OutcomeCode.OPERATOR_FAILED),
    Action.CANCEL: Ending("cancel", TaskStatus.CANCELLED, OutcomeCode.TASK_CANCELLED),
    Action.EXPIRE: Ending("operator expire", TaskStatus.EXPIRED, OutcomeCode.TASK_EXPIRED),
}


async def apply(
    ops: Ops,
    plan: Plan,
    *,
    progress: Callable[[ActionProgress], None] | None = None,
    stop: asyncio.Event | None = None,
) -> ActionReport:
    """Change every task that is still in its planned state, in batches; `stop` ends it after the current batch."""
    ops.session.require_writable()
    execution = _PlanExecution(ops.session, plan)
    batches = [plan.targets[start : start + BATCH_SIZE] for start in range(0, len(plan.targets), BATCH_SIZE)]
    # An empty plan still gets its audit entry.
    for batch in batches or [()]:
        if stop is not None and stop.is_set():
            execution.was_stopped = True
            break
        await execution.apply_batch(batch)
        if progress is not None:
            progress(execution.progress)
    return execution.report()


async def record_dry_run(ops: Ops, plan: Plan) -> ActionReport:
    """Record a plan in the audit log as a dry run, without applying it."""
    entry = _audit_entry(plan, ops.session, is_dry_run=True)
    skipped = AuditProgress(skipped=plan.refused_count)
    audit_id = await ops.session.record_dry_run(entry, skipped)
    return ActionReport(
        action=plan.action,
        matched=plan.matched,
        affected=0,
        skipped=plan.refused,
        skipped_count=plan.refused_count,
        audit_id=audit_id,
        is_dry_run=True,
        warnings=plan.warnings,
    )


async def requeue(
    ops: Ops, selector: SelectorLike, *, include_running: bool = False, **options: Unpack[CommonOptions]
) -> ActionReport:
    """Make unfinished tasks claimable now. Workers get 5 s to stop running ones, which are then requeued anyway."""
    return await _plan_and_apply(ops, Action.REQUEUE, selector, include_running=include_running, **options)


async def fail(
    ops: Ops, selector: SelectorLike, *, include_running: bool = False, **options: Unpack[CommonOptions]
) -> ActionReport:
    """Finish tasks as FAILED with OPERATOR_FAILED."""
    return await _plan_and_apply(ops, Action.FAIL, selector, include_running=include_running, **options)


async def cancel(
    ops: Ops,
    selector: SelectorLike,
    *,
    include_running: bool = False,
    kill: bool = False,
    **options: Unpack[CommonOptions],
) -> ActionReport:
    """Finish tasks as CANCELLED; `kill` also kills the processes of running ones within one runner heartbeat."""
    return await _plan_and_apply(ops, Action.CANCEL, selector, include_running=include_running, kill=kill, **options)


async def expire(ops: Ops, selector: SelectorLike, **options: Unpack[CommonOptions]) -> ActionReport:
    """Finish tasks that have not started as EXPIRED."""
    return await _plan_and_apply(ops, Action.EXPIRE, selector, **options)


async def retry(ops: Ops, selector: SelectorLike, **options: Unpack[CommonOptions]) -> ActionReport:
    """Send FAILED, CANCELLED or EXPIRED tasks again, with new ids and `retry_of` set to the old ones."""
    return await _plan_and_apply(ops, Action.RETRY, selector, **options)


async def undo_retry(ops: Ops, report: ActionReport) -> ActionReport:
    """Cancel the tasks that a retry created and that are still PENDING."""
    if report.action != Action.RETRY:
        raise ValueError(f"only a retry can be undone, not {report.action}")
    options = ActionOptions(reason=f"retry undone (audit {report.audit_id})")
    undo = await plan(ops, Action.CANCEL, Selector.of_ids(report.new_ids), options)
    return await apply(ops, undo.only(TaskStatus.PENDING))


class CommonOptions(TypedDict, total=False):
    """Options of every action on tasks."""

    reason: str | None
    dry_run: bool
    limit: int | None


async def _plan_and_apply(
    ops: Ops, action: Action, selector: SelectorLike, *, dry_run: bool = False, **options: Any
) -> ActionReport:
    planned = await plan(ops, action, selector, ActionOptions(**options))
    return await (record_dry_run(ops, planned) if dry_run else apply(ops, planned))


@dataclass(slots=True)
class _PlanExecution:
    """A plan being applied, and its results so far."""

    session: OperatorSession
    plan: Plan
    done: int = 0
    changed: list[TransitionRow] = field(default_factory=list[TransitionRow])
    skipped: list[UUID] = field(default_factory=list["UUID"])
    overlapping: int = 0
    """Requeued while still running, because their workers did not stop them in time."""
    audit_id: int | None = None
    was_stopped: bool = False

    @property
    def progress(self) -> ActionProgress:
        return ActionProgress(
            done=self.done,
            total=len(self.plan.targets),
            affected=len(self.changed),
            skipped=len(self.skipped),
            task_ids=tuple(row.id for row in self.changed),
        )

    async def apply_batch(self, batch: Sequence[Target]) -> None:
        must_stop = self.plan.action is Action.REQUEUE
        stopper = TaskStopper(
            self.session.database, [target for target in batch if must_stop and target.status == TaskStatus.RUNNING]
        )
        if stopper.targets:
            # A transaction of its own: workers see the kill request only after its commit.
            self.audit_id = await self.session.database.run(
                lambda transaction: self._request_stops(transaction, stopper)
            )
            await stopper.wait()
        changed, self.audit_id = await self.session.run(
            lambda transaction: self._apply_in_transaction(transaction, batch, stopper)
        )
        changed_ids = {row.id for row in changed}
        self.overlapping += sum(row.id in stopper.not_stopped for row in changed)
        self.changed += changed
        self.skipped += [target.id for target in batch if target.id not in changed_ids]
        self.done += len(batch)

    async def _request_stops(self, transaction: Transaction, stopper: TaskStopper) -> int:
        await stopper.request_stops(transaction)
        return await self._record_audit(transaction, AuditProgress())

    async def _apply_in_transaction(
        self, transaction: Transaction, batch: Sequence[Target], stopper: TaskStopper
    ) -> tuple[list[TransitionRow], int]:
        requeued = await stopper.requeued_by_owners(transaction)
        requeued_ids = {row.id for row in requeued}
        # Their owners have requeued these already: they count as changed, although their status is not as planned.
        stopper.not_stopped -= requeued_ids
        remaining = [target for target in batch if target.id not in requeued_ids]
        changed = [*requeued, *await self._run_action(transaction, remaining)]
        progress = AuditProgress(
            affected=len(changed), skipped=len(batch) - len(changed), task_ids=[row.id for row in changed]
        )
        return changed, await self._record_audit(transaction, progress)

    async def _run_action(self, transaction: Transaction, targets: Sequence[Target]) -> list[TransitionRow]:
        action, options = self.plan.action, self.plan.options
        if not targets:
            return []
        if action is Action.RETRY:
            return await resend(transaction, targets, [uuid7() for _ in targets])
        if action is Action.REQUEUE:
            # Tasks that are still running were not stopped in time, so their processes may be alive.
            return await requeue_tasks(transaction, targets, reason=self._message("requeued"), may_overlap=True)
        ending, operator = ENDINGS[action], self.session.operator.name
        error = TaskError(
            error_code=ending.code,
            message=self._message(ending.status.lower()),
            data={"operator": operator, "reason": options.reason},
        )
        end = Termination(kind=ending.kind, status=ending.status, error=error, kill=options.kill)
        return await end_tasks(transaction, targets, end)

    def _message(self, verb: str) -> str:
        reason = self.plan.options.reason
        return f"{verb} by {self.session.operator.name}" + (f": {reason}" if reason else "")

    async def _record_audit(self, transaction: Transaction, progress: AuditProgress) -> int:
        if self.audit_id is None:
            # The first write of the entry also counts the tasks that the plan refused.
            progress = replace(progress, skipped=progress.skipped + self.plan.refused_count)
        return await record_audit(transaction, _audit_entry(self.plan, self.session), progress, self.audit_id)

    def report(self) -> ActionReport:
        # Planned, but not in the planned state any more when their batch was applied.
        state_changed = [Skipped(task_id, SkipReason.TASK_STATE_MOVED) for task_id in self.skipped]
        warnings = list(self.plan.warnings)
        if self.overlapping:
            warnings.append(
                f"{self.overlapping:,} requeued although their workers did not stop them in time: "
                "the old attempts may still be running"
            )
        return ActionReport(
            action=self.plan.action,
            matched=self.plan.matched,
            affected=len(self.changed),
            skipped=(*state_changed, *self.plan.refused)[:MAX_NAMED_TASKS],
            skipped_count=len(state_changed) + self.plan.refused_count,
            task_ids=tuple(row.id for row in self.changed),
            audit_id=self.audit_id,
            new_ids=tuple(row.new_id for row in self.changed if row.new_id is not None),
            was_stopped=self.was_stopped,
            warnings=tuple(warnings),
        )


def _audit_entry(plan: Plan, session: OperatorSession, *, is_dry_run: bool = False) -> AuditEntry:
    return session.audit_entry(
        plan.action, plan.options.reason, plan.selector.to_audit(), matched=plan.matched, is_dry_run=is_dry_run
    )


class TaskStopper:
    """Asks workers to stop running tasks that are requeued. A worker that stops one requeues it itself."""

    def __init__(self, database: Database, targets: Sequence[Target]) -> None:
        self._database = database
        self.targets = targets
        self._awaited: set[UUID] = set()
        self.not_stopped: set[UUID] = {target.id for target in targets}
        """Tasks that their workers have not requeued."""

    async def request_stops(self, transaction: Transaction) -> None:
        requested = await request_kill(transaction, self.targets)
        # A dead worker cannot stop its tasks, so there is nothing to wait for.
        self._awaited = {row.id for row in requested if row.has_live_owner}

    async def wait(self) -> None:
        """Wait until live workers have stopped their tasks, at most STOP_TIMEOUT_S."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STOP_TIMEOUT_S
        while loop.time() < deadline and await self._database.run(self._any_still_running):  # noqa: ASYNC110  # state of other processes
            await asyncio.sleep(POLL_INTERVAL_S)

    async def requeued_by_owners(self, transaction: Transaction) -> list[TransitionRow]:
        """Return the tasks that their workers have requeued; the others still run or have finished."""
        if not self.targets:
            return []
        tokens = {target.id: target.claim_token for target in self.targets}
        return [
            TransitionRow(
                id=row.id,
                claim_token=tokens[row.id],
                queue_name=row.queue_name,
                from_status=TaskStatus.RUNNING,
                status=row.status,
                worker_id=None,
                new_id=None,
            )
            for row in await kill_outcomes(transaction, self.targets)
            if row.is_requeued and not row.is_still_running
        ]

    async def _any_still_running(self, transaction: Transaction) -> bool:
        awaited = [target for target in self.targets if target.id in self._awaited]
        return bool(awaited) and any(row.is_still_running for row in await kill_outcomes(transaction, awaited))
