"""One sweep: lost workers, stale claims and runs, what waited too long, and broken workflows.

Rows are found without a lock and judged by the one decision; hooks are asked while no transaction is open; each verdict
is a guarded call of its own. A dry run goes the same way, up to the calls that write.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Final, Self, TypeAlias, assert_never
from uuid import UUID

from horsies.errors import HorsiesError
from horsies.model.events import EventKind
from horsies.model.recovery.decision import DecisionKind, Fail, RecoveredWorkers, RecoveryContext, TaskOwner
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
from horsies.model.task_result import OperationalErrorCode
from horsies.recovery.decide import StaleTask, build_update, expiry_document
from horsies.recovery.hooks import HOOK_CONCURRENCY, HookCaller
from horsies.recovery.report import (
    EVERY_STEP,
    GOOD_UNTIL,
    AuditTrail,
    StepFailure,
    SweepAudit,
    SweepReport,
    SweepStatus,
    SweepStep,
    SweptTask,
    SweptWorkflow,
)
from horsies.store.connection import StatementFailed
from horsies.store.database import Database
from horsies.store.operators import EventStore, StoredEvent
from horsies.store.recovery import EXPIRY_BATCH, PAGE_SIZE, LostWorker, OverdueRow, RecoveryStore, StaleScan
from horsies.store.tasks import TaskStore
from horsies.workflows.healing import HealedRun, HealingResult, heal_stuck, preview_healing, release_quarantined

# What a sweep has come to so far, and the report that it makes in the end.


@dataclass(slots=True, kw_only=True)
class SweepReportBuilder:
    """One sweep's findings and deeds."""

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
        """How many of each, for the event that tells of the sweep."""
        decisions = Counter(str(task.decision) for task in self.tasks if task.applied)
        return {**decisions, "workflows": len(self.workflows), "lost_workers": len(self.lost_workers)}

    def build(self) -> SweepReport:
        recovered = [task for task in self._moved if task.state is not TaskStatus.PENDING]
        owners = {task.owner_id for task in recovered if task.owner_id is not None}
        status = self._status
        return SweepReport(
            status=status,
            dry_run=self.dry_run,
            thresholds=self.effective_policy.thresholds,
            hooks_loaded=self.hooks_loaded,
            recovered_count=0 if self.dry_run else len(recovered),
            worker_ids=tuple(sorted(owners | set(self.lost_workers))),
            tasks=tuple(self.tasks),
            workflows=tuple(self.workflows),
            warnings=(
                *self.effective_policy.warnings,
                *self.warnings,
                *self._outage_grace_warning(status),
                *map(_locked_run_warning, self.locked_runs),
            ),
            failures=tuple(self.failures),
            locked_runs=tuple(self.locked_runs),
            was_stopped=self.was_stopped,
        )

    @property
    def _moved(self) -> list[SweptTask]:
        """Those that were moved, or would be."""
        return [task for task in self.tasks if task.changes_state and (self.dry_run or task.applied)]

    @property
    def _exempt_count(self) -> int:
        return sum(task.is_exempt for task in self.tasks)

    @property
    def _status(self) -> SweepStatus:
        if self._moved or self.workflows or self.lost_workers:
            return SweepStatus.WOULD_ACT if self.dry_run else SweepStatus.DONE
        if self.tasks and self._exempt_count == len(self.tasks):
            return SweepStatus.OUTAGE_GRACE
        return SweepStatus.NOTHING

    def _outage_grace_warning(self, status: SweepStatus) -> list[str]:
        if not self._exempt_count or status is SweepStatus.OUTAGE_GRACE:
            return []
        return [f"{self._exempt_count} held back: nobody has listened for a whole threshold yet"]


def _locked_run_warning(workflow_id: UUID) -> str:
    return f"run {workflow_id} is held by another transaction, left to the next sweep"


# Workflows in a sweep: told beforehand, put right, and named in its report.

Heal: TypeAlias = "Callable[[Callable[[], bool]], Awaitable[HealingResult]]"
Preview: TypeAlias = "Callable[[], Awaitable[Sequence[HealedRun]]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowHealing:
    """How one sweep heals. With `foresee`, it tells of what was stuck when it began, and of nothing else.

    `heal` is given what says whether the sweep is over.
    """

    heal: Heal
    preview: Preview | None = None

    @classmethod
    def for_operator(cls, database: Database) -> Self:
        """Put right what is stuck; what is asked for is left to workers."""

        async def do(is_over: Callable[[], bool]) -> HealingResult:
            return await heal_stuck(database, is_over=is_over)

        async def foresee() -> list[HealedRun]:
            return await preview_healing(database)

        return cls(heal=do, preview=foresee)

    @classmethod
    def for_worker(cls, database: Database, *, wake: Callable[[], None]) -> Self:
        """The same, what was set aside for long enough included; `wake` has what is asked for done.

        Not here: definitions are code of users, and one that hangs must not hold up a sweep.
        """

        async def do(is_over: Callable[[], bool]) -> HealingResult:
            await release_quarantined(database)
            righted = await heal_stuck(database, is_over=is_over)
            wake()
            return righted

        return cls(heal=do)


def swept_workflows(healed: Sequence[HealedRun]) -> list[SweptWorkflow]:
    """What a report says of them."""
    return [
        SweptWorkflow(id=which, case=each.case, task_id=each.task_id)
        for each in healed
        if (which := each.workflow_id or each.task_id)
    ]


# The steps of a sweep, carried out one after the other.

MAX_EXPIRY_BATCHES: Final = 200

logger = logging.getLogger("horsies.recovery")


class SweepPass:
    """One sweep in the making."""

    def __init__(
        self,
        *,
        store: RecoveryStore,
        options: SweepOptions,
        observer: Observer,
        fleet: Fleet,
        hooks: HookCaller | None,
        budget_s: float | None,
        healing: WorkflowHealing | None = None,
        record: SweepAudit | None = None,
        stop: asyncio.Event | None = None,
    ) -> None:
        self._store = store
        self._stop = stop
        self._options = options
        self._fleet = fleet
        self._hooks = hooks
        self._healing = healing if options.worker_id is None else None
        self._stuck: Sequence[SweptWorkflow] = ()
        self._effective_policy = effective_policy(observer, options, fleet)
        self._sweeper = observer.worker_id if isinstance(observer, WorkerObserver) else None
        self._is_manual = self._sweeper is None
        self._audit = AuditTrail(store.database, record)
        self._budget_s = budget_s
        self._ends_at = None if budget_s is None else time.monotonic() + budget_s
        self._report = SweepReportBuilder(
            effective_policy=self._effective_policy, dry_run=options.dry_run, hooks_loaded=hooks is not None
        )

    async def run(self, steps: Collection[SweepStep]) -> SweepReport:
        await self._audit.begin()
        if SweepStep.WORKFLOWS in steps:
            await self._run_step(SweepStep.WORKFLOWS, self._preview_healing)
        for step in SweepStep:
            if step in steps:
                await self._run_step(step, partial(self._dispatch_step, step))
        report = self._report.build()
        if report.status is SweepStatus.DONE:
            await self._publish_finished(report)
        return report

    async def _run_step(self, step: SweepStep, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except HorsiesError as error:
            self._report.failures.append(StepFailure(step=step, error=error))

    async def _dispatch_step(self, step: SweepStep) -> None:
        match step:
            case SweepStep.LOST_WORKERS:
                await self._mark_lost()
            case SweepStep.CLAIMED:
                await self._recover(TaskStatus.CLAIMED)
            case SweepStep.RUNNING:
                await self._recover(TaskStatus.RUNNING)
            case SweepStep.PENDING:
                await self._expire()
            case SweepStep.WORKFLOWS:
                await self._heal()
            case _:
                assert_never(step)

    async def _mark_lost(self) -> None:
        if self._is_stopped():
            return
        silent = [each for each in self._fleet.members if self._is_selected(each.worker_id) and self._is_lost(each)]
        if self._options.dry_run:
            self._report.lost_workers += [each.worker_id for each in silent]
            return
        if silent:
            self._report.lost_workers += await self._store.mark_lost([self._lost_worker(each) for each in silent])
        if differing := mismatched_settings(self._fleet.live):
            await self._store.record_fleet_mismatch(differing)

    def _is_selected(self, worker_id: UUID) -> bool:
        return self._options.worker_id in {None, worker_id}

    def _is_lost(self, member: FleetMember) -> bool:
        owner = TaskOwner(state=member.state, last_heartbeat_at=member.last_heartbeat_at, thresholds=member.thresholds)
        return self._effective_policy.policy.is_lost(owner, self._effective_policy.listening, self._fleet.now)

    def _lost_worker(self, member: FleetMember) -> LostWorker:
        silence = self._fleet.now - member.last_heartbeat_at
        evidence = {"silence_s": silence.total_seconds(), "state": member.state, "sweeper": _text(self._sweeper)}
        return LostWorker(worker_id=member.worker_id, last_heartbeat_at=member.last_heartbeat_at, evidence=evidence)

    async def _recover(self, status: TaskStatus) -> None:
        policy = self._effective_policy.policy
        scan = StaleScan(
            status=status,
            threshold=policy.claimed_threshold if status is TaskStatus.CLAIMED else policy.running_threshold,
            # An operator is told of what outage grace holds back; a reaper need not read it.
            listening_since=None if self._is_manual else self._effective_policy.listening.listening_since,
            owner_id=self._options.worker_id,
            include_on_hold=self._is_manual,
        )
        after = None
        while not self._is_out_of_time():
            rows = await self._store.stale(scan, after=after)
            if rows and self._has_clock_jumped(rows[0].now):
                return
            cases = [case for row in rows if not (case := StaleTask.from_row(row, self._effective_policy)).is_fresh]
            # A few at a time, so that hooks that are slow about every task leave something settled in each pass.
            for first in range(0, len(cases), HOOK_CONCURRENCY):
                if not self._is_out_of_time():
                    await self._recover_batch(await self._ask_hooks(cases[first : first + HOOK_CONCURRENCY]))
            if len(rows) < PAGE_SIZE:
                return
            after = rows[-1].id

    async def _ask_hooks(self, cases: list[StaleTask]) -> list[StaleTask]:
        """The cases with what hooks say about those on which they have a say."""
        open_cases = [case for case in cases if case.asks_hooks]
        if self._hooks is None or not open_cases:
            return cases
        answers = await self._hooks.ask([self._context(case) for case in open_cases])
        answered = {
            case.row.id: case.with_hook_answer(answer) for case, answer in zip(open_cases, answers, strict=True)
        }
        return [answered.get(case.row.id, case) for case in cases]

    async def _recover_batch(self, cases: list[StaleTask]) -> None:
        interrupted: list[RecoveryContext] = []
        for case in cases:
            swept = await self._apply(case)
            self._report.tasks.append(swept)
            if swept.changes_state and not swept.applied and not self._options.dry_run:
                await self._audit.record_skipped(1)
            if swept.applied and case.reason is not None:
                interrupted.append(self._context(case))
        if self._hooks is not None and interrupted:
            await self._hooks.notify_interrupted(interrupted)

    async def _apply(self, case: StaleTask) -> SweptTask:
        """The verdict and whether it was carried out. A row that the server refuses costs no other."""
        if not case.needs_write or self._options.dry_run:
            return case.to_swept_task(applied=False)
        try:
            move = build_update(case, sweeper=self._sweeper, earlier_crashes=await self._earlier_crashes(case))
            is_applied = await self._store.apply_decision(
                case.row, move, record=self._audit.task_recorder if case.changes_state else None
            )
        except StatementFailed as error:
            if error.retryable:
                raise
            await self._refused(case, error.message)
            return replace(case.to_swept_task(applied=False), refusal=error.message)
        if is_applied:
            logger.info("task %s: %s, %s", case.row.id, case.decision.kind, case.reason)
        return case.to_swept_task(applied=is_applied)

    async def _refused(self, case: StaleTask, error: str) -> None:
        """Say so; a reaper, which meets the same row at each pass, writes it down by itself."""
        self._report.warnings.append(f"task {case.row.id} could not be settled: {error}")
        if self._is_manual:
            evidence = {"decision": case.decision.kind, "error": error}
            event = StoredEvent(kind=EventKind.RECOVERY_REFUSED, task_id=case.row.id, evidence=evidence)
            await EventStore(self._store.database).record(event)

    async def _earlier_crashes(self, case: StaleTask) -> tuple[str, ...]:
        if not isinstance(case.decision, Fail) or case.decision.code is not OperationalErrorCode.POISON_TASK:
            return ()
        attempts = await TaskStore(self._store.database).attempts(case.row.id)
        crashed = OperationalErrorCode.WORKER_CRASHED
        return tuple(row.error_message or "" for row in reversed(attempts) if row.error_code == crashed)

    async def _expire(self) -> None:
        if self._options.worker_id is not None:
            return
        last: OverdueRow | None = None
        for _ in range(MAX_EXPIRY_BATCHES):
            if self._is_out_of_time():
                return
            rows = await self._store.overdue(after=last)
            documents = {row.id: expiry_document(row.id, row.good_until) for row in rows}
            ended = frozenset(await self._expire_batch(documents))
            self._report.tasks += [_expired_task(row, applied=row.id in ended) for row in rows]
            if len(rows) < EXPIRY_BATCH:
                return
            last = rows[-1]

    async def _expire_batch(self, documents: Mapping[UUID, str]) -> list[UUID]:
        if self._options.dry_run or not documents:
            return []
        ended = await self._store.expire(documents, record=self._audit.task_recorder)
        await self._audit.record_skipped(len(documents) - len(ended))
        return ended

    async def _preview_healing(self) -> None:
        if self._healing is not None and self._healing.preview is not None:
            self._stuck = swept_workflows(await self._healing.preview())

    async def _heal(self) -> None:
        if self._healing is None or self._is_stopped():
            return
        if self._options.dry_run:
            ended = {
                task.task_id for task in self._report.tasks if task.decision in {DecisionKind.FAIL, DecisionKind.EXPIRE}
            }
            self._report.workflows += [each for each in self._stuck if each.task_id not in ended]
            return
        righted = await self._healing.heal(self._is_out_of_time)
        healed, held = swept_workflows(righted.healed), righted.locked
        if self._healing.preview is not None:
            # What is due in a run because of what was settled just now goes on by itself; no dry run could name it.
            done, stuck = {(each.id, each.task_id) for each in healed}, {each.id for each in self._stuck}
            healed = [each for each in self._stuck if (each.id, each.task_id) in done]
            held = [each for each in held if each in stuck]
        self._report.workflows += healed
        self._report.locked_runs += held
        await self._audit.record_healed(len(healed))
        await self._audit.record_skipped(len(held))

    def _context(self, case: StaleTask) -> RecoveryContext:
        return case.context(recovering_worker_id=self._sweeper, dry_run=self._options.dry_run)

    def _is_out_of_time(self) -> bool:
        return self._is_stopped() or (self._ends_at is not None and time.monotonic() > self._ends_at)

    def _is_stopped(self) -> bool:
        """Whether somebody ended it; asked where there is more to do, so that where it is so, the report says it."""
        is_stopped = self._stop is not None and self._stop.is_set()
        self._report.was_stopped |= is_stopped
        return is_stopped

    def _has_clock_jumped(self, now: datetime) -> bool:
        """Whether the database's clock went further than this pass may last: it jumped, or we stood still, and what
        was known at the start about who listens is worth nothing."""
        return self._budget_s is not None and (now - self._fleet.now).total_seconds() > self._budget_s

    async def _publish_finished(self, report: SweepReport) -> None:
        """Write down that something was changed, and tell the hooks that want to know."""
        event = StoredEvent(kind=EventKind.SWEEP_FINISHED, worker_id=self._sweeper, evidence=self._report.counts)
        await EventStore(self._store.database).record(event)
        if self._hooks is not None and report.recovered_count:
            await self._hooks.notify_workers_recovered(
                RecoveredWorkers(
                    worker_ids=tuple(map(str, report.worker_ids)),
                    recovered_count=report.recovered_count,
                    recovering_worker_id=_text(self._sweeper),
                )
            )


def _expired_task(row: OverdueRow, *, applied: bool) -> SweptTask:
    return SweptTask(
        task_id=row.id,
        task_name=row.task_name,
        queue_name=row.queue_name,
        state=TaskStatus.PENDING,
        owner_id=None,
        owner_state=None,
        heartbeat_age=None,
        effective_threshold=None,
        resilient=False,
        decision=DecisionKind.EXPIRE,
        reason=GOOD_UNTIL,
        retries_left=max(0, row.max_retries - row.retry_count),
        overdue_by=row.now - row.good_until,
        applied=applied,
    )


def _text(worker_id: UUID | None) -> str | None:
    return None if worker_id is None else str(worker_id)


async def sweep(
    database: Database,
    options: SweepOptions,
    *,
    observer: Observer,
    hooks: HookCaller | None = None,
    healing: WorkflowHealing | None = None,
    steps: Collection[SweepStep] = EVERY_STEP,
    record: SweepAudit | None = None,
    stop: asyncio.Event | None = None,
) -> SweepReport:
    """Settle what is stale, or say that somebody else is at it; a step that failed is raised after the others ran.

    `healing` is for workflows. A dry run heals nothing, and leaves no `record`. `stop` ends it after a few tasks more.
    """
    store = RecoveryStore(database)
    if options.dry_run:
        report = await run_pass(
            database, options, observer=observer, hooks=hooks, healing=healing, steps=steps, stop=stop
        )
    else:
        report = await store.with_leader_lock(
            lambda: run_pass(
                database,
                options,
                observer=observer,
                hooks=hooks,
                healing=healing,
                steps=steps,
                record=record,
                stop=stop,
            )
        ) or await _busy_report(store, options, observer, hooks)
    for failure in report.failures:
        raise failure.error
    return report


async def run_pass(
    database: Database,
    options: SweepOptions,
    *,
    observer: Observer,
    hooks: HookCaller | None = None,
    healing: WorkflowHealing | None = None,
    steps: Collection[SweepStep] = EVERY_STEP,
    budget_s: float | None = None,
    record: SweepAudit | None = None,
    stop: asyncio.Event | None = None,
) -> SweepReport:
    """The same for a caller who has the turn already; failed steps are told in the report and stop no other.

    What does not fit into `budget_s` is left to the next pass.
    """
    store = RecoveryStore(database)
    fleet = await store.fleet()
    work = SweepPass(
        store=store,
        options=options,
        observer=observer,
        fleet=fleet,
        hooks=hooks,
        budget_s=budget_s,
        healing=healing,
        record=record,
        stop=stop,
    )
    return await work.run(steps)


async def _busy_report(
    store: RecoveryStore, options: SweepOptions, judge: Observer, hooks: HookCaller | None
) -> SweepReport:
    ruled = effective_policy(judge, options, await store.fleet())
    return SweepReport(
        status=SweepStatus.BUSY,
        dry_run=False,
        thresholds=ruled.thresholds,
        hooks_loaded=hooks is not None,
        warnings=ruled.warnings,
    )
