"""One sweep: marks workers lost, recovers stale tasks, expires overdue ones and heals stuck workflows.

Rows are read without a lock, `decide` decides, hooks are called while no transaction is open, and each decision is one
guarded statement that does nothing if the row has changed. A dry run does the same without the writes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Final, Self, TypeAlias
from uuid import UUID

from horsies.errors import HorsiesError
from horsies.model.events import EventKind, EventRecord
from horsies.model.recovery.decision import (
    DecisionKind,
    Hold,
    RecoveredWorkers,
    RecoveryContext,
    TaskOwner,
    asks_hooks,
)
from horsies.model.recovery.fleet import (
    EffectivePolicy,
    Fleet,
    FleetMember,
    Observer,
    SweepOptions,
    WorkerObserver,
    effective_policy,
    mismatched_settings,
)
from horsies.model.task import TaskStatus
from horsies.recovery.decide import StaleTask, build_update, expiry_document
from horsies.recovery.hooks import HOOK_CONCURRENCY, HookCaller
from horsies.recovery.report import (
    EVERY_STEP,
    GOOD_UNTIL,
    StepFailure,
    SweepReport,
    SweepStatus,
    SweepStep,
    SweptTask,
    SweptWorkflow,
)
from horsies.store.connection import StatementFailed
from horsies.store.database import Database, Transaction
from horsies.store.operators import AuditEntry, AuditProgress, EventStore, record_audit
from horsies.store.recovery import (
    EXPIRY_BATCH,
    PAGE_SIZE,
    LostWorker,
    OverdueRow,
    RecordCallback,
    RecoveryStore,
    StaleScan,
)
from horsies.store.tasks import TaskStore
from horsies.store.workflows import StuckRun, WorkflowStore
from horsies.workflows.healing import HealingResult, heal_stuck, preview_healing

MAX_EXPIRY_BATCHES: Final = 200  # bounds a manual sweep, which has no time limit; the next sweep continues

logger = logging.getLogger("horsies.recovery")


@dataclass(frozen=True, slots=True)
class Sweep:
    """One sweep, for a worker's reaper or for an operator.

    A dry run needs no lock and writes no audit `record`. `stop` ends the sweep after the current batch, and `budget_s`
    after that many seconds; the rest is left to the next sweep.
    """

    database: Database
    options: SweepOptions
    _: KW_ONLY
    observer: Observer
    observe_again: Callable[[], Observer] | None = None
    """Returns the observer with the heartbeats that it has sent since."""
    hooks: HookCaller | None = None
    healing: WorkflowHealing | None = None
    steps: Collection[SweepStep] = EVERY_STEP
    budget_s: float | None = None
    record: SweepAudit | None = None
    stop: asyncio.Event | None = None

    async def run(self) -> SweepReport:
        """Sweep under the leader lock; the status is BUSY if another process holds it.

        A failed step does not stop the others; the first error is raised at the end.
        """
        if self.options.dry_run:
            report = await self.run_pass()
        else:
            report = await RecoveryStore(self.database).with_leader_lock(self.run_pass) or await self._busy_report()
        if report.failures:
            raise report.failures[0].error
        return report

    async def run_pass(self) -> SweepReport:
        """Sweep for a caller that holds the leader lock; failed steps are listed in the report."""
        return await _SweepPass(self, await RecoveryStore(self.database).fleet()).run()

    async def _busy_report(self) -> SweepReport:
        policy = effective_policy(self.observer, self.options, await RecoveryStore(self.database).fleet())
        return SweepReport(
            status=SweepStatus.BUSY,
            dry_run=False,
            thresholds=policy.thresholds,
            hooks_loaded=self.hooks is not None,
            warnings=policy.warnings,
        )


class _SweepPass:
    """The state and steps of one sweep."""

    def __init__(self, sweep: Sweep, fleet: Fleet) -> None:
        options, budget_s = sweep.options, sweep.budget_s
        self._store = RecoveryStore(sweep.database)
        self._options = options
        self._steps = sweep.steps
        self._stop = sweep.stop
        self._fleet = fleet
        self._hooks = sweep.hooks
        self._healing = sweep.healing if options.worker_id is None else None  # workflows belong to no single worker
        self._stuck_at_start: Sequence[SweptWorkflow] = ()
        self._sweep = sweep
        self._effective_policy = effective_policy(sweep.observer, options, fleet)
        self._sweeper = sweep.observer.worker_id if isinstance(sweep.observer, WorkerObserver) else None
        self._is_manual = self._sweeper is None
        self._audit = AuditTrail(sweep.database, None if options.dry_run else sweep.record)
        self._deadline = None if budget_s is None else time.monotonic() + budget_s
        self._report = SweepReportBuilder(
            effective_policy=self._effective_policy, dry_run=options.dry_run, hooks_loaded=sweep.hooks is not None
        )

    async def run(self) -> SweepReport:
        await self._audit.begin()
        # Before the other steps: tasks that they recover make runs due, which does not count as stuck.
        if SweepStep.WORKFLOWS in self._steps and self._healing is not None and self._healing.preview is not None:
            await self._run_step(SweepStep.WORKFLOWS, partial(self._preview_healing, self._healing.preview))
        work_of: dict[SweepStep, Callable[[], Awaitable[None]]] = {
            SweepStep.LOST_WORKERS: self._mark_lost,
            SweepStep.CLAIMED: partial(self._recover, TaskStatus.CLAIMED),
            SweepStep.RUNNING: partial(self._recover, TaskStatus.RUNNING),
            SweepStep.PENDING: self._expire,
            SweepStep.WORKFLOWS: self._heal,
        }
        for step, work in work_of.items():
            if step in self._steps:
                await self._run_step(step, work)
        report = self._report.build()
        if report.status is SweepStatus.DONE:
            await self._publish_finished(report)
        return report

    async def _run_step(self, step: SweepStep, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except HorsiesError as error:
            self._report.failures.append(StepFailure(step=step, error=error))

    async def _mark_lost(self) -> None:
        if self._is_stop_requested():
            return
        selected = [worker for worker in self._fleet.members if self._options.worker_id in {None, worker.worker_id}]
        lost = [worker for worker in selected if self._is_lost(worker)]
        if self._options.dry_run:
            self._report.lost_workers += [worker.worker_id for worker in lost]
            return
        if lost:
            self._report.lost_workers += await self._store.mark_lost([self._lost_worker(worker) for worker in lost])
        if mismatches := mismatched_settings(self._fleet.live):
            await self._store.record_fleet_mismatch(mismatches)

    def _is_lost(self, member: FleetMember) -> bool:
        owner = TaskOwner(state=member.state, last_heartbeat_at=member.last_heartbeat_at, thresholds=member.thresholds)
        return self._effective_policy.policy.is_lost(owner, self._effective_policy.listening, self._fleet.now)

    def _lost_worker(self, member: FleetMember) -> LostWorker:
        silence = self._fleet.now - member.last_heartbeat_at
        evidence = {"silence_s": silence.total_seconds(), "state": member.state, "sweeper": _id_text(self._sweeper)}
        return LostWorker(worker_id=member.worker_id, last_heartbeat_at=member.last_heartbeat_at, evidence=evidence)

    async def _recover(self, status: TaskStatus) -> None:
        policy = self._effective_policy.policy
        scan = StaleScan(
            status=status,
            threshold=policy.claimed_threshold if status is TaskStatus.CLAIMED else policy.running_threshold,
            # The report of a manual sweep lists tasks held back by outage grace; the reaper need not read them.
            listening_since=None if self._is_manual else self._effective_policy.listening.listening_since,
            owner_id=self._options.worker_id,
            include_on_hold=self._is_manual,
        )
        after = None
        while not self._must_end():
            if self._is_manual or self._report.tasks:  # a pass that finds nothing needs no second look at the fleet
                await self._refresh_listening()
            rows = await self._store.stale(scan, after=after)
            # The scan filters by the observer's threshold; that of the owner or of a resilient task may be longer.
            tasks = [task for row in rows if not (task := StaleTask.from_row(row, self._effective_policy)).is_fresh]
            # In small batches, so that a pass recovers some tasks even if hooks are slow for every task.
            for first in range(0, len(tasks), HOOK_CONCURRENCY):
                if not self._must_end():
                    await self._recover_batch(await self._ask_hooks(tasks[first : first + HOOK_CONCURRENCY]))
            if len(rows) < PAGE_SIZE:
                return
            # Continue by id: rows that were held back or rejected still match the scan.
            after = rows[-1].id

    async def _refresh_listening(self) -> None:
        """Extend the listening window: it ends with the heartbeats that were known when the fleet was read."""
        observe_again = self._sweep.observe_again
        observer = self._sweep.observer if observe_again is None else observe_again()
        fleet = await self._store.fleet()
        listening = effective_policy(observer, self._options, fleet).listening
        self._effective_policy = replace(self._effective_policy, listening=listening)

    async def _ask_hooks(self, tasks: list[StaleTask]) -> list[StaleTask]:
        """Decide again with the hooks' answers where hooks may change the decision."""
        asked = [task for task in tasks if asks_hooks(task.decision)]
        if self._hooks is None or not asked:
            return tasks
        answers = await self._hooks.ask([self._context(task) for task in asked])
        answered = {task.row.id: task.with_hook_answer(answer) for task, answer in zip(asked, answers, strict=True)}
        return [answered.get(task.row.id, task) for task in tasks]

    async def _recover_batch(self, tasks: list[StaleTask]) -> None:
        # Notified after the loop, so that a slow hook does not delay the recovery of the batch.
        interrupted: list[RecoveryContext] = []
        for task in tasks:
            swept = await self._apply(task)
            self._report.tasks.append(swept)
            if swept.changes_state and not swept.applied and not self._options.dry_run:
                await self._audit.record_skipped(1)
            if swept.applied and task.reason is not None:
                interrupted.append(self._context(task))
        if self._hooks is not None and interrupted:
            await self._hooks.notify_interrupted(interrupted)

    async def _apply(self, task: StaleTask) -> SweptTask:
        """Store the decision; a row whose update the database rejects does not stop the sweep."""
        if not task.needs_write or self._options.dry_run:
            return task.to_swept_task(applied=False)
        try:
            if isinstance(task.decision, Hold):
                is_applied = await self._store.hold(task.row, task.decision.until)
            else:
                crashes = await TaskStore(self._store.database).crash_messages(task.row.id) if task.is_poison else ()
                update = build_update(task, sweeper=self._sweeper, earlier_crashes=crashes)
                is_applied = await self._store.apply_decision(task.row, update, record=self._audit.task_recorder)
        except StatementFailed as error:
            if error.retryable:
                raise  # the database, not this row, is the problem
            await self._record_refusal(task, error.message)
            return replace(task.to_swept_task(applied=False), refusal=error.message)
        if is_applied:
            fields = {"task_id": str(task.row.id), "decision": str(task.kind), "reason": task.reason}
            logger.info("task recovered", extra=fields)
        return task.to_swept_task(applied=is_applied)

    async def _record_refusal(self, task: StaleTask, error: str) -> None:
        self._report.warnings.append(f"task {task.row.id} could not be recovered: {error}")
        # The reaper finds the same row in every pass, so it records the event itself, once per error.
        if self._is_manual:
            evidence = {"decision": task.kind, "error": error}
            event = EventRecord(kind=EventKind.RECOVERY_REFUSED, task_id=task.row.id, evidence=evidence)
            await EventStore(self._store.database).record(event)

    async def _expire(self) -> None:
        if self._options.worker_id is not None:
            return
        last: OverdueRow | None = None
        for _ in range(MAX_EXPIRY_BATCHES):
            if self._must_end():
                return
            rows = await self._store.overdue(after=last)
            expired: frozenset[UUID] = frozenset()
            if rows and not self._options.dry_run:
                documents = {row.id: expiry_document(row.id, row.good_until) for row in rows}
                expired = frozenset(await self._store.expire(documents, record=self._audit.task_recorder))
                await self._audit.record_skipped(len(documents) - len(expired))
            self._report.tasks += [_expired_task(row, applied=row.id in expired) for row in rows]
            if len(rows) < EXPIRY_BATCH:
                return
            last = rows[-1]

    async def _preview_healing(self, preview: Preview) -> None:
        self._stuck_at_start = swept_workflows(await preview())

    async def _heal(self) -> None:
        if self._healing is None or self._is_stop_requested():
            return
        if self._options.dry_run:
            # The sweep would already fail or expire these orphaned tasks, so they would need no healing.
            ended = {
                task.task_id for task in self._report.tasks if task.decision in {DecisionKind.FAIL, DecisionKind.EXPIRE}
            }
            self._report.workflows += [run for run in self._stuck_at_start if run.task_id not in ended]
            return
        result = await self._healing.heal(self._must_end)
        healed, locked = swept_workflows(result.healed), result.locked
        if self._healing.preview is not None:
            # Report only what was stuck before the sweep, as a dry run does: runs that became due because of tasks
            # recovered in this sweep would have advanced without healing.
            done, stuck = {(run.id, run.task_id) for run in healed}, {run.id for run in self._stuck_at_start}
            healed = [run for run in self._stuck_at_start if (run.id, run.task_id) in done]
            locked = [run_id for run_id in locked if run_id in stuck]
        self._report.workflows += healed
        self._report.locked_runs += locked
        await self._audit.record_healed(len(healed))
        await self._audit.record_skipped(len(locked))

    def _context(self, task: StaleTask) -> RecoveryContext:
        return task.context(recovering_worker_id=self._sweeper, dry_run=self._options.dry_run)

    def _must_end(self) -> bool:
        return self._is_stop_requested() or (self._deadline is not None and time.monotonic() > self._deadline)

    def _is_stop_requested(self) -> bool:
        """Whether the caller asked the sweep to stop; if so, the report says that it is incomplete."""
        is_stopped = self._stop is not None and self._stop.is_set()
        self._report.was_stopped |= is_stopped
        return is_stopped

    async def _publish_finished(self, report: SweepReport) -> None:
        """Record the event of a sweep that changed something, and call the hooks."""
        event = EventRecord(kind=EventKind.SWEEP_FINISHED, worker_id=self._sweeper, evidence=self._report.counts)
        await EventStore(self._store.database).record(event)
        if self._hooks is not None and report.recovered_count:
            await self._hooks.notify_workers_recovered(
                RecoveredWorkers(
                    worker_ids=report.worker_ids,
                    recovered_count=report.recovered_count,
                    recovering_worker_id=_id_text(self._sweeper),
                )
            )


def _expired_task(row: OverdueRow, *, applied: bool) -> SweptTask:
    return SweptTask(
        task_id=row.id,
        task_name=row.task_name,
        queue_name=row.queue_name,
        state=TaskStatus.PENDING,
        decision=DecisionKind.EXPIRE,
        reason=GOOD_UNTIL,
        retries_left=max(0, row.max_retries - row.retry_count),
        overdue_by=row.now - row.good_until,
        applied=applied,
    )


def _id_text(worker_id: UUID | None) -> str | None:
    return None if worker_id is None else str(worker_id)


@dataclass(slots=True, kw_only=True)
class SweepReportBuilder:
    """Collects the results of a sweep."""

    effective_policy: EffectivePolicy
    dry_run: bool
    hooks_loaded: bool
    tasks: list[SweptTask] = field(default_factory=list[SweptTask])
    workflows: list[SweptWorkflow] = field(default_factory=list[SweptWorkflow])
    lost_workers: list[UUID] = field(default_factory=list[UUID])
    warnings: list[str] = field(default_factory=list[str])
    failures: list[StepFailure] = field(default_factory=list[StepFailure])
    locked_runs: list[UUID] = field(default_factory=list[UUID])
    was_stopped: bool = False

    @property
    def counts(self) -> dict[str, object]:
        """Counts for the `sweep_finished` event."""
        decisions = Counter(str(task.decision) for task in self.tasks if task.applied)
        return {**decisions, "workflows": len(self.workflows), "lost_workers": len(self.lost_workers)}

    def build(self) -> SweepReport:
        recovered = [task for task in self._changed if task.state is not TaskStatus.PENDING]
        owners = {task.owner_id for task in recovered if task.owner_id is not None}
        status = self._status
        warnings = [*self.effective_policy.warnings, *self.warnings]
        # With status OUTAGE_GRACE every task is held back, so the status says it already.
        if (held_back := self._exempt_count) and status is not SweepStatus.OUTAGE_GRACE:
            warnings.append(
                f"stale tasks held back by outage grace: {held_back} (no worker connected for a full threshold)"
            )
        warnings += [
            f"run {run_id} is locked by another transaction, left to the next sweep" for run_id in self.locked_runs
        ]
        return SweepReport(
            status=status,
            dry_run=self.dry_run,
            thresholds=self.effective_policy.thresholds,
            hooks_loaded=self.hooks_loaded,
            recovered_count=0 if self.dry_run else len(recovered),
            worker_ids=tuple(sorted(map(str, owners.union(self.lost_workers)))),
            tasks=tuple(self.tasks),
            workflows=tuple(self.workflows),
            warnings=tuple(warnings),
            failures=tuple(self.failures),
            locked_runs=tuple(self.locked_runs),
            was_stopped=self.was_stopped,
        )

    @property
    def _changed(self) -> list[SweptTask]:
        """Tasks whose status was changed or, in a dry run, would be."""
        return [task for task in self.tasks if task.changes_state and (self.dry_run or task.applied)]

    @property
    def _exempt_count(self) -> int:
        return sum(task.is_exempt for task in self.tasks)

    @property
    def _status(self) -> SweepStatus:
        if self._changed or self.workflows or self.lost_workers:
            return SweepStatus.WOULD_ACT if self.dry_run else SweepStatus.DONE
        if self.tasks and self._exempt_count == len(self.tasks):
            return SweepStatus.OUTAGE_GRACE
        return SweepStatus.NOTHING


# Healing of workflows

Heal: TypeAlias = "Callable[[Callable[[], bool]], Awaitable[HealingResult]]"
Preview: TypeAlias = "Callable[[], Awaitable[Sequence[StuckRun]]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowHealing:
    """How a sweep heals workflows.

    `heal` gets a function that returns whether the sweep must end. With `preview`, called at the start, the report
    lists only runs that were stuck then.
    """

    heal: Heal
    preview: Preview | None = None

    @classmethod
    def for_operator(cls, database: Database) -> Self:
        """Heal stuck runs; runs that need user code to advance are left to the workers."""

        async def heal(must_end: Callable[[], bool]) -> HealingResult:
            return await heal_stuck(database, must_end=must_end)

        return cls(heal=heal, preview=lambda: preview_healing(database))

    @classmethod
    def for_worker(cls, database: Database, *, wake: Callable[[], None]) -> Self:
        """Release quarantined outbox entries and heal stuck runs, then `wake` the workflow service to advance them.

        The sweep does not advance runs itself: that runs user code, which may hang.
        """

        async def heal(must_end: Callable[[], bool]) -> HealingResult:
            await WorkflowStore(database).release_quarantined()
            result = await heal_stuck(database, must_end=must_end)
            wake()
            return result

        return cls(heal=heal)


def swept_workflows(healed: Sequence[StuckRun]) -> list[SweptWorkflow]:
    return [
        SweptWorkflow(id=run_id, case=run.case, task_id=run.task_id)
        for run in healed
        if (run_id := run.workflow_id or run.task_id)
    ]


# Audit of manual sweeps


class SweepAudit:
    """The audit entry of a sweep, updated with every change so that it is correct even if the sweep is interrupted."""

    def __init__(self, database: Database, entry: AuditEntry) -> None:
        self.audit_id: int | None = None
        self._database = database
        self._entry = entry

    async def begin(self) -> None:
        """Create the entry; called with the leader lock held, before any change."""
        self.audit_id = await self._database.run(
            lambda transaction: record_audit(transaction, self._entry, AuditProgress())
        )

    async def add(self, transaction: Transaction, progress: AuditProgress) -> None:
        """Add changes made in this transaction."""
        await record_audit(transaction, self._entry, progress, self.audit_id)


@dataclass(frozen=True, slots=True)
class AuditTrail:
    """Writes the audit entry of a sweep; does nothing if `record` is None."""

    database: Database
    record: SweepAudit | None

    async def begin(self) -> None:
        if self.record is not None:
            await self.record.begin()

    @property
    def task_recorder(self) -> RecordCallback | None:
        """Callback for the transactions that change tasks."""
        record = self.record
        if record is None:
            return None

        # In the transaction of the change, so that the audit entry never disagrees with the rows.
        async def record_tasks(transaction: Transaction, task_ids: Sequence[UUID]) -> None:
            await record.add(
                transaction, AuditProgress(matched=len(task_ids), affected=len(task_ids), task_ids=task_ids)
            )

        return record_tasks

    async def record_skipped(self, count: int) -> None:
        """Record tasks or runs that changed in the meantime, were locked, or whose update was rejected."""
        # In a transaction of its own: the update it reports has changed nothing.
        await self._add(count, AuditProgress(matched=count, skipped=count))

    async def record_healed(self, count: int) -> None:
        await self._add(count, AuditProgress(matched=count, affected=count))

    async def _add(self, count: int, progress: AuditProgress) -> None:
        record = self.record
        if count and record is not None:
            await self.database.run(lambda transaction: record.add(transaction, progress))
