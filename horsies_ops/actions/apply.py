"""Carrying a plan out: batch by batch, each with its part of the audit in one transaction."""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar, assert_never
from uuid import UUID

from horsies.codec.ids import ID_GENERATOR
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
from horsies_ops.actions.plan import MAX_SKIPPED_LISTED, Plan, Selector, SelectorLike, Skipped, build_plan
from horsies_ops.actions.report import ActionProgress, ActionReport

# Running tasks that are requeued: their owners are asked to stop them first, and given a few seconds.

STOP_TIMEOUT_S: Final = 5.0
"""How long owners have; then the row is moved without them, and its next run is told that the old one may live."""
POLL_INTERVAL_S: Final = 0.1


class TaskStopper:
    """Tasks that run, on their way out of their owners' hands. An owner that stops one puts it back itself."""

    def __init__(self, database: Database, targets: Sequence[Target]) -> None:
        self._database = database
        self.targets = targets
        self._awaited: set[UUID] = set()
        self.not_stopped: set[UUID] = {target.id for target in targets}
        """Those that no owner has put back."""

    async def request_stops(self, transaction: Transaction) -> None:
        marked = await request_kill(transaction, self.targets)
        # Nobody is there to stop what a dead worker left behind.
        self._awaited = {row.id for row in marked if row.has_live_owner}

    async def wait(self) -> None:
        """Until every task that a live worker has is out of its hands, or the time is over."""
        loop = asyncio.get_running_loop()
        until = loop.time() + STOP_TIMEOUT_S
        while loop.time() < until and await self._database.run(self._are_some_running):  # noqa: ASYNC110  # other processes set no events
            await asyncio.sleep(POLL_INTERVAL_S)

    async def requeued_by_owners(self, transaction: Transaction) -> list[TransitionRow]:
        """Those that their owners have put back; the others still run, or ended by themselves."""
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

    async def _are_some_running(self, transaction: Transaction) -> bool:
        awaited = [target for target in self.targets if target.id in self._awaited]
        return bool(awaited) and any(row.is_still_running for row in await kill_outcomes(transaction, awaited))


BATCH: Final = 500


async def apply(
    database: Database,
    plan: Plan,
    operator: Operator,
    *,
    progress: Callable[[ActionProgress], None] | None = None,
    stop: asyncio.Event | None = None,
) -> ActionReport:
    """Do what the plan says to every task that still stands as planned; `stop` is heeded between batches."""
    work = _PlanExecution(database, plan, operator)
    batches = [plan.targets[start : start + BATCH] for start in range(0, len(plan.targets), BATCH)]
    for batch in batches or [()]:
        if stop is not None and stop.is_set():
            work.was_stopped = True
            break
        await work.apply_batch(batch)
        if progress is not None:
            progress(work.progress)
    return work.report()


async def record_dry_run(database: Database, plan: Plan, operator: Operator) -> ActionReport:
    """A dry run: write down that it was looked at, and change nothing."""
    deed = _audit_entry(plan, operator, is_dry_run=True)
    seen = AuditProgress(skipped=plan.refused_count)
    audit_id = await database.run(lambda transaction: record_audit(transaction, deed, seen))
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


@dataclass(slots=True)
class _PlanExecution:
    """An action under way, and what came of it so far."""

    database: Database
    plan: Plan
    operator: Operator
    done: int = 0
    affected_rows: list[TransitionRow] = field(default_factory=list[TransitionRow])
    skipped: list[UUID] = field(default_factory=list["UUID"])
    overlapping: int = 0
    """Moved while they ran, for their owners did not stop them in time."""
    audit_id: int | None = None
    was_stopped: bool = False

    @property
    def progress(self) -> ActionProgress:
        total, affected = len(self.plan.targets), len(self.affected_rows)
        ids = tuple(row.id for row in self.affected_rows)
        return ActionProgress(done=self.done, total=total, affected=affected, skipped=len(self.skipped), task_ids=ids)

    async def apply_batch(self, batch: Sequence[Target]) -> None:
        stopping = TaskStopper(self.database, [each for each in batch if self._has_to_be_stopped(each)])
        if stopping.targets:
            self.audit_id = await self.database.run(lambda each: self._request_stops(each, stopping))
            await stopping.wait()
        moved, self.audit_id = await self.database.run(lambda each: self._apply_in_transaction(each, batch, stopping))
        came_back = {row.id for row in moved}
        self.overlapping += sum(row.id in stopping.not_stopped for row in moved)
        self.affected_rows += moved
        self.skipped += [target.id for target in batch if target.id not in came_back]
        self.done += len(batch)

    def _has_to_be_stopped(self, target: Target) -> bool:
        return self.plan.action is Action.REQUEUE and target.status == TaskStatus.RUNNING

    async def _request_stops(self, transaction: Transaction, stopping: TaskStopper) -> int:
        await stopping.request_stops(transaction)
        return await self._record_audit(transaction, AuditProgress())

    async def _apply_in_transaction(
        self, transaction: Transaction, batch: Sequence[Target], stopping: TaskStopper
    ) -> tuple[list[TransitionRow], int]:
        already = await stopping.requeued_by_owners(transaction)
        gone = {row.id for row in already}
        stopping.not_stopped -= gone
        moved = [*already, *await self._run_action(transaction, [each for each in batch if each.id not in gone])]
        skipped = len(batch) - len(moved)
        done = AuditProgress(affected=len(moved), skipped=skipped, task_ids=[row.id for row in moved])
        return moved, await self._record_audit(transaction, done)

    async def _run_action(self, transaction: Transaction, targets: Sequence[Target]) -> list[TransitionRow]:
        if not targets:
            return []
        match self.plan.action:
            case Action.REQUEUE:
                return await requeue(transaction, targets, reason=self._message("requeued"), may_overlap=True)
            case Action.RETRY:
                return await resend(transaction, targets, [ID_GENERATOR.next_uuid() for _ in targets])
            case Action.FAIL | Action.CANCEL | Action.EXPIRE:
                return await end_tasks(transaction, targets, self._terminal_outcome())
            case _:
                assert_never(self.plan.action)

    def _terminal_outcome(self) -> Termination:
        match self.plan.action:
            case Action.FAIL:
                error = self._error(OutcomeCode.OPERATOR_FAILED, "failed")
                return Termination(kind="fail by hand", status=TaskStatus.FAILED, error=error)
            case Action.EXPIRE:
                error = self._error(OutcomeCode.TASK_EXPIRED, "expired")
                return Termination(kind="expire by hand", status=TaskStatus.EXPIRED, error=error)
            case _:
                error = self._error(OutcomeCode.TASK_CANCELLED, "cancelled")
                return Termination(kind="cancel", status=TaskStatus.CANCELLED, error=error, kill=self.plan.options.kill)

    def _error(self, code: OutcomeCode, verb: str) -> TaskError:
        data = {"operator": self.operator.name, "reason": self.plan.options.reason}
        return TaskError(error_code=code, message=self._message(verb), data=data)

    def _message(self, verb: str) -> str:
        reason = self.plan.options.reason
        return f"{verb} by {self.operator.name}" + (f": {reason}" if reason else "")

    async def _record_audit(self, transaction: Transaction, done: AuditProgress) -> int:
        """What the plan refuses is counted when the row is begun."""
        if self.audit_id is None:
            done = AuditProgress(
                affected=done.affected, skipped=done.skipped + self.plan.refused_count, task_ids=done.task_ids
            )
        return await record_audit(transaction, _audit_entry(self.plan, self.operator), done, self.audit_id)

    def report(self) -> ActionReport:
        moved_on = [Skipped(task_id, SkipReason.TASK_STATE_MOVED) for task_id in self.skipped]
        return ActionReport(
            action=self.plan.action,
            matched=self.plan.matched,
            affected=len(self.affected_rows),
            skipped=(*moved_on, *self.plan.refused)[:MAX_SKIPPED_LISTED],
            skipped_count=len(moved_on) + self.plan.refused_count,
            task_ids=tuple(row.id for row in self.affected_rows),
            audit_id=self.audit_id,
            new_ids=tuple(row.new_id for row in self.affected_rows if row.new_id is not None),
            was_stopped=self.was_stopped,
            warnings=(*self.plan.warnings, *self._overlaps()),
        )

    def _overlaps(self) -> list[str]:
        if not self.overlapping:
            return []
        return [f"{self.overlapping:,} moved though their owners did not stop them: the old runs may go on meanwhile"]


def _audit_entry(plan: Plan, operator: Operator, *, is_dry_run: bool = False) -> AuditEntry:
    return AuditEntry(
        operator=operator,
        action=plan.action,
        reason=plan.options.reason,
        filter=plan.selector.to_audit(),
        matched=plan.matched,
        is_dry_run=is_dry_run,
    )


# Who acts, for the record.


def resolve_operator(name: str | None, via: str) -> Operator:
    """The operator of this name, else the one that `HORSIES_ACTOR` names, else whoever is logged in here."""
    host = socket.gethostname()
    return Operator(name=name or os.environ.get("HORSIES_ACTOR") or f"{_user()}@{host}", host=host, via=via)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return str(os.getuid())


# The operator's hand on one database: every action of `Ops` comes through here.

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class OperatorSession:
    """A database, and who changes it."""

    database: Database
    operator: Operator

    @classmethod
    def for_actor(cls, actor: str | None, *, via: str, database: Database) -> OperatorSession:
        return cls(database, resolve_operator(actor, via))

    async def run(self, work: Callable[[Transaction], Awaitable[A]]) -> A:
        """Change something in one transaction; a read-only connection is refused before the database has to."""
        self.require_writable()
        return await self.database.run(work)

    def require_writable(self) -> None:
        if self.database.connection_spec.read_only:
            raise Refused("this connection is read-only", hint="open it without read_only to act")

    async def act(
        self, action: Action, selector: SelectorLike, options: ActionOptions, *, dry_run: bool = False
    ) -> ActionReport:
        """Plan and apply in one go, for those who need no preview."""
        planned = await build_plan(self.database, action, Selector.of(selector), options)
        return await (self.record_dry_run(planned) if dry_run else self.apply(planned))

    async def apply(
        self,
        planned: Plan,
        *,
        progress: Callable[[ActionProgress], None] | None = None,
        stop: asyncio.Event | None = None,
    ) -> ActionReport:
        self.require_writable()
        return await apply(self.database, planned, self.operator, progress=progress, stop=stop)

    async def record_dry_run(self, planned: Plan) -> ActionReport:
        self.require_writable()
        return await record_dry_run(self.database, planned, self.operator)

    async def undo_retry(self, report: ActionReport) -> ActionReport:
        """Take a retry back: cancel those of its new tasks that nobody has claimed yet."""
        if report.action != Action.RETRY:
            raise ValueError(f"only a retry can be taken back, not {report.action}")
        options = ActionOptions(reason=f"retry taken back (audit {report.audit_id})")
        planned = await build_plan(self.database, Action.CANCEL, Selector.of_ids(report.new_ids), options)
        return await self.apply(planned.only(TaskStatus.PENDING))
