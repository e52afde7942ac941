"""The reaper: at each check interval one worker makes a pass of recovery, workflow healing and retention."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from horsies.engine import events
from horsies.errors import format_one_line, is_transient
from horsies.model.recovery.fleet import SweepOptions, WorkerObserver, should_run_pass
from horsies.model.retention import RetentionWindows
from horsies.recovery.report import SweepReport, SweepStep
from horsies.recovery.retention import Cleanup, clean_heartbeats
from horsies.recovery.sweep import Sweep, WorkflowHealing
from horsies.store.recovery import RecoveryStore
from horsies.store.workers import CatalogStore
from horsies.workflows.control import expire_paused

if TYPE_CHECKING:
    from horsies.engine.heartbeat import Health, WorkerIdentity
    from horsies.engine.reporter import Reporter
    from horsies.model.settings import AppConfig, RecoveryConfig
    from horsies.recovery.hooks import HookCaller
    from horsies.store.database import Database

SLOW_AFTER_FAILURES: Final = 3
SLOW_EVERY_TICKS: Final = 10

logger = logging.getLogger("horsies.recovery")


def build_reaper(
    app: AppConfig,
    database: Database,
    *,
    identity: WorkerIdentity,
    health: Health,
    reporter: Reporter,
    hooks: HookCaller,
    workflows_due: asyncio.Event,
    publish_health_now: asyncio.Event,
) -> Reaper:
    """The reaper with its jobs, by the names operators see."""
    windows = RetentionWindows.of(app.recovery, app.retention)
    interval_s = app.recovery.check_interval_ms / 1000

    async def clean_rows() -> None:
        cleanup = Cleanup(database, windows, budget_s=app.retention.pass_budget_s)
        await cleanup.run(worker_id=identity.worker_id)

    jobs: dict[str, Callable[[], Awaitable[object]]] = {}
    max_pause_hours = app.retention.paused_workflow_expire_hours
    if max_pause_hours is not None:
        jobs["expire paused workflows"] = partial(expire_paused, database, longer_than_s=max_pause_hours * 3600)
    catalog = CatalogStore(database)
    if grace_s := app.unknown_task_grace_s:
        jobs["fail unregistered tasks"] = partial(catalog.fail_unregistered, grace_s=grace_s)
    jobs["task catalog"] = OncePerInterval(app.retention.interval_s, catalog.expire)
    jobs["retention of heartbeats"] = partial(clean_heartbeats, database, windows, budget_s=interval_s / 2)
    jobs["retention"] = OncePerInterval(app.retention.interval_s, clean_rows)
    healing = WorkflowHealing.for_worker(database, wake=workflows_due.set)
    return Reaper(
        database,
        jobs,
        recovery=app.recovery,
        identity=identity,
        health=health,
        reporter=reporter,
        hooks=hooks,
        publish_health_now=publish_health_now,
        healing=healing,
    )


class Reaper:
    """Makes a pass at each check interval: a sweep, then the other jobs in order.

    Skips the pass if another worker has just made one or, during outage grace, has been connected for longer. A leader
    lock keeps sweeps of different processes apart. A failed step or job does not stop the others. When stopped, it
    finishes the current job.
    """

    name = "reaper"

    def __init__(
        self,
        database: Database,
        jobs: Mapping[str, Callable[[], Awaitable[object]]],
        *,
        recovery: RecoveryConfig,
        identity: WorkerIdentity,
        health: Health,
        reporter: Reporter,
        hooks: HookCaller,
        publish_health_now: asyncio.Event,
        healing: WorkflowHealing | None = None,
    ) -> None:
        self._database = database
        self._store = RecoveryStore(database)
        self._recovery = recovery
        self._interval_s = recovery.check_interval_ms / 1000
        self._identity = identity
        self._health = health
        self._reporter = reporter
        self._publish_health_now = publish_health_now
        self._healing = healing
        self._hooks = hooks if hooks.has_hooks else None
        self._pass_job = self._periodic_job("reaper pass")
        self._step_jobs = {step: self._periodic_job(step) for step in SweepStep}
        self._jobs = [(self._periodic_job(name), work) for name, work in jobs.items()]

    async def run(self, stop: asyncio.Event) -> None:
        next_at = time.monotonic()
        while not stop.is_set():
            next_at = max(next_at + self._interval_s, time.monotonic())  # after a long pass, do not catch up
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), max(0.0, next_at - time.monotonic()))
            if not stop.is_set():
                await self._pass_job.run_if_due(lambda: self._make_pass(stop))

    async def _make_pass(self, stop: asyncio.Event) -> None:
        began = time.monotonic()
        observer = self._observer()
        fleet = await self._store.fleet()
        if not should_run_pass(observer, fleet):
            return
        interval = timedelta(seconds=self._interval_s)
        if not await self._store.with_leader_lock(lambda: self._sweep(observer), interval=interval):
            return  # another process is sweeping
        for job, work in self._jobs:
            if not stop.is_set():
                await job.run_if_due(work)
        self._health.last_pass_at = fleet.now + timedelta(seconds=time.monotonic() - began)
        self._publish_health_now.set()
        self._reporter.emit(events.PassFinished(worker_id=str(self._identity.worker_id)))

    def _observer(self) -> WorkerObserver:
        """This worker as observer, with its heartbeats by now."""
        return WorkerObserver(worker_id=self._identity.worker_id, config=self._recovery, series=self._health.series)

    async def _sweep(self, observer: WorkerObserver) -> bool:
        """Run the sweep steps that are due; True, because `with_leader_lock` returns None without the lock."""
        due_steps = [step for step, job in self._step_jobs.items() if job.take_tick()]
        sweep = Sweep(
            self._database,
            SweepOptions(),
            observer=observer,
            observe_again=self._observer,
            hooks=self._hooks,
            healing=self._healing,
            steps=due_steps,
            budget_s=self._interval_s,
        )
        report = await sweep.run_pass()
        failures = {failure.step: failure.error for failure in report.failures}
        for step in due_steps:
            if (error := failures.get(step)) is None:
                self._step_jobs[step].record_success()
            else:
                self._step_jobs[step].record_failure(error)
        self._emit_refused(report)
        return True

    def _emit_refused(self, report: SweepReport) -> None:
        """Report tasks that could not be recovered, once per task and error."""
        before = self._health.refused_tasks
        self._health.refused_tasks = {str(task.task_id): task.refusal or "" for task in report.refused}
        for task in report.refused:
            if before.get(str(task.task_id)) != task.refusal:
                self._reporter.emit(
                    events.RecoveryRefused(
                        worker_id=str(self._identity.worker_id),
                        task_id=str(task.task_id),
                        decision=task.decision,
                        error=task.refusal or "",
                    )
                )

    def _periodic_job(self, name: str) -> PeriodicJob:
        return PeriodicJob(name, on_change=self._on_job_change)

    def _on_job_change(self, name: str, error: str | None) -> None:
        worker_id = str(self._identity.worker_id)
        if error is None:
            self._health.disabled_jobs.pop(name, None)
            self._reporter.emit(events.OperationEnabled(worker_id=worker_id, operation=name))
        else:
            self._health.disabled_jobs[name] = error
            self._reporter.emit(events.OperationDisabled(worker_id=worker_id, operation=name, error=error))


class OncePerInterval:
    """Calls `work` at most once per interval, first one interval after construction."""

    def __init__(self, interval_s: float, work: Callable[[], Awaitable[object]]) -> None:
        self._interval_s = interval_s
        self._work = work
        self._done_at = time.monotonic()

    async def __call__(self) -> None:
        if time.monotonic() - self._done_at >= self._interval_s:
            await self._work()
            self._done_at = time.monotonic()


class PeriodicJob:
    """A job that runs on every tick, but only on every tenth after three permanent failures in a row.

    `on_change` gets the job name with the error when the job is slowed down, and with None after it succeeds again.
    """

    def __init__(self, name: str, *, on_change: Callable[[str, str | None], None]) -> None:
        self.name = name
        self._on_change = on_change
        self._failures = 0
        self._skipped_ticks = 0

    async def run_if_due(self, work: Callable[[], Awaitable[object]]) -> None:
        """Run `work` if it is due at this tick; an error is recorded, not raised."""
        if not self.take_tick():
            return
        try:
            await work()
        except Exception as error:  # noqa: BLE001  # a failed job must not stop the other jobs or the worker
            self.record_failure(error)
        else:
            self.record_success()

    def take_tick(self) -> bool:
        """Whether the job is due at this tick; call it once per tick."""
        if self._is_slow and self._skipped_ticks < SLOW_EVERY_TICKS - 1:
            self._skipped_ticks += 1
            return False
        self._skipped_ticks = 0
        return True

    def record_failure(self, error: Exception) -> None:
        if is_transient(error):
            logger.warning("%s: %s", self.name, format_one_line(error))
            return
        logger.error("%s failed", self.name, exc_info=error)
        self._failures += 1
        if self._failures == SLOW_AFTER_FAILURES:
            self._on_change(self.name, format_one_line(error) or type(error).__name__)

    def record_success(self) -> None:
        if self._is_slow:
            self._on_change(self.name, None)
        self._failures = 0

    @property
    def _is_slow(self) -> bool:
        return self._failures >= SLOW_AFTER_FAILURES
