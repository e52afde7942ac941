"""Applies plans in batches. Each batch and its part of the audit entry are one transaction."""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar, assert_never
from uuid import UUID

from uuid_utils.compat import uuid7

from horsies.errors import Refused
from horsies.model.operator_actions import Action, ActionOptions, SkipReason
from horsies.model.task import TaskStatus
from horsies.model.task_result import OutcomeCode, TaskError
from horsies.store.database import Database, Transaction
from horsies.store.operators import (
    AuditEntry,
    AuditProgress,
    Operator,
    Target,
    Termination,
    TransitionRow,
    end_tasks,
    kill_outcomes,
    record_audit,
    request_kill,
    requeue,
    resend,
)
from horsies_ops.actions.plan import Plan, Selector, SelectorLike, build_plan
from horsies_ops.actions.report import MAX_SKIPPED_LISTED, ActionProgress, ActionReport, Skipped

BATCH_SIZE: Final = 500
"""Tasks per transaction: few, because workers that want to write the same rows wait for it."""
STOP_TIMEOUT_S: Final = 5.0
"""How long workers have to stop a task that is requeued. Afterwards it is requeued anyway, flagged as overlapping."""
POLL_INTERVAL_S: Final = 0.1

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class OperatorSession:
    """A database and the operator who changes it; every action of `Ops` goes through it."""

    database: Database
    operator: Operator

    @classmethod
    def for_actor(cls, actor: str | None, *, via: str, database: Database) -> OperatorSession:
        """Act as `actor`, else as HORSIES_ACTOR, else as user@host."""
        host = socket.gethostname()
        name = actor or os.environ.get("HORSIES_ACTOR") or f"{_user()}@{host}"
        return cls(database, Operator(name=name, host=host, via=via))

    def require_writable(self) -> None:
        if self.database.connection_spec.read_only:
            raise Refused("this connection is read-only", hint="connect without read_only to change anything")

    async def run(self, work: Callable[[Transaction], Awaitable[A]]) -> A:
        """Run `work` in a transaction; raises `Refused` on a read-only connection."""
        self.require_writable()
        return await self.database.run(work)

    async def plan_and_apply(
        self, action: Action, selector: SelectorLike, options: ActionOptions, *, dry_run: bool = False
    ) -> ActionReport:
        plan = await build_plan(self.database, action, Selector.of(selector), options)
        return await (self.record_dry_run(plan) if dry_run else self.apply(plan))

    async def apply(
        self,
        plan: Plan,
        *,
        progress: Callable[[ActionProgress], None] | None = None,
        stop: asyncio.Event | None = None,
    ) -> ActionReport:
        """Change every task that is still in its planned state; `stop` is checked between batches."""
        self.require_writable()
        execution = _PlanExecution(self.database, plan, self.operator)
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

    async def record_dry_run(self, plan: Plan) -> ActionReport:
        """Record the plan in the audit log as a dry run, without applying it."""
        entry = _audit_entry(plan, self.operator, is_dry_run=True)
        skipped = AuditProgress(skipped=plan.refused_count)
        audit_id = await self.run(lambda transaction: record_audit(transaction, entry, skipped))
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

    async def undo_retry(self, report: ActionReport) -> ActionReport:
        """Cancel the tasks that a retry created, except those that have been claimed meanwhile."""
        if report.action != Action.RETRY:
            raise ValueError(f"only a retry can be undone, not {report.action}")
        options = ActionOptions(reason=f"retry undone (audit {report.audit_id})")
        plan = await build_plan(self.database, Action.CANCEL, Selector.of_ids(report.new_ids), options)
        return await self.apply(plan.only(TaskStatus.PENDING))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container, the user may have no name
        return str(os.getuid())


@dataclass(slots=True)
class _PlanExecution:
    """A plan being applied, and its results so far."""

    database: Database
    plan: Plan
    operator: Operator
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
            self.database, [target for target in batch if must_stop and target.status == TaskStatus.RUNNING]
        )
        if stopper.targets:
            # A transaction of its own: workers see the kill request only after its commit.
            self.audit_id = await self.database.run(lambda transaction: self._request_stops(transaction, stopper))
            await stopper.wait()
        changed, self.audit_id = await self.database.run(
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
        if not targets:
            return []
        match self.plan.action:
            case Action.REQUEUE:
                # Tasks that are still running were not stopped in time, so their processes may be alive.
                return await requeue(transaction, targets, reason=self._message("requeued"), may_overlap=True)
            case Action.RETRY:
                return await resend(transaction, targets, [uuid7() for _ in targets])
            case Action.FAIL | Action.CANCEL | Action.EXPIRE:
                return await end_tasks(transaction, targets, self._terminal_outcome())
            case _:
                assert_never(self.plan.action)

    def _terminal_outcome(self) -> Termination:
        match self.plan.action:
            case Action.FAIL:
                error = self._error(OutcomeCode.OPERATOR_FAILED, "failed")
                return Termination(kind="operator fail", status=TaskStatus.FAILED, error=error)
            case Action.EXPIRE:
                error = self._error(OutcomeCode.TASK_EXPIRED, "expired")
                return Termination(kind="operator expire", status=TaskStatus.EXPIRED, error=error)
            case _:
                error = self._error(OutcomeCode.TASK_CANCELLED, "cancelled")
                return Termination(kind="cancel", status=TaskStatus.CANCELLED, error=error, kill=self.plan.options.kill)

    def _error(self, code: OutcomeCode, verb: str) -> TaskError:
        data = {"operator": self.operator.name, "reason": self.plan.options.reason}
        return TaskError(error_code=code, message=self._message(verb), data=data)

    def _message(self, verb: str) -> str:
        reason = self.plan.options.reason
        return f"{verb} by {self.operator.name}" + (f": {reason}" if reason else "")

    async def _record_audit(self, transaction: Transaction, progress: AuditProgress) -> int:
        if self.audit_id is None:
            # The first write of the entry also counts the tasks that the plan refused.
            progress = AuditProgress(
                affected=progress.affected,
                skipped=progress.skipped + self.plan.refused_count,
                task_ids=progress.task_ids,
            )
        return await record_audit(transaction, _audit_entry(self.plan, self.operator), progress, self.audit_id)

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
            skipped=(*state_changed, *self.plan.refused)[:MAX_SKIPPED_LISTED],
            skipped_count=len(state_changed) + self.plan.refused_count,
            task_ids=tuple(row.id for row in self.changed),
            audit_id=self.audit_id,
            new_ids=tuple(row.new_id for row in self.changed if row.new_id is not None),
            was_stopped=self.was_stopped,
            warnings=tuple(warnings),
        )


def _audit_entry(plan: Plan, operator: Operator, *, is_dry_run: bool = False) -> AuditEntry:
    return AuditEntry(
        operator=operator,
        action=plan.action,
        reason=plan.options.reason,
        filter=plan.selector.to_audit(),
        matched=plan.matched,
        is_dry_run=is_dry_run,
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
