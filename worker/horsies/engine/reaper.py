"""The reaper of a worker: at each interval, where it is its turn, it makes a pass through the duties of recovery."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from horsies.engine.service import PeriodicJob
from horsies.model import events
from horsies.model.fence import HeartbeatSeries
from horsies.model.recovery.fleet import Fleet, PassCandidate, SweepOptions, WorkerObserver, should_run_pass
from horsies.model.retention import RetentionWindows
from horsies.recovery.report import SweepReport, SweepStep
from horsies.recovery.retention import clean, clean_heartbeats
from horsies.recovery.sweep import WorkflowHealing, run_pass
from horsies.store.recovery import RecoveryStore
from horsies.workflows.control import expire_paused

if TYPE_CHECKING:
    from horsies.engine.worker import Parts


class Reaper:
    """Sweeps, then does its other duties in their order; ends the pass in hand when it is stopped.

    A pass that another worker has just made is left out, and one that another can judge better is left to it. The sweep
    is made while no other process sweeps. A step or duty that fails holds up no other.
    """

    name = "reaper"

    def __init__(
        self,
        parts: Parts,
        jobs: Mapping[str, Callable[[], Awaitable[object]]],
        *,
        healing: WorkflowHealing | None = None,
    ) -> None:
        self._parts = parts
        self._store = RecoveryStore(parts.claims.database)
        self._interval_s = parts.app.recovery.check_interval_ms / 1000
        self._healing = healing
        self._pass_job = self._job("pass of the reaper")
        self._step_jobs = {step: self._job(step) for step in SweepStep}
        self._jobs = [(self._job(name), work) for name, work in jobs.items()]

    async def run(self, stop: asyncio.Event) -> None:
        next_at = time.monotonic()
        while not stop.is_set():
            next_at = max(next_at + self._interval_s, time.monotonic())
            await _until(next_at, stop)
            if not stop.is_set():
                await self._pass_job.run_if_due(lambda: self._make_pass(stop))

    async def _make_pass(self, stop: asyncio.Event) -> None:
        began = time.monotonic()
        listening = self._parts.health.series
        fleet = await self._store.fleet()
        judge = self._observer(listening, fleet.now)
        if not self._should_run_pass(judge, fleet) or not await self._store.with_leader_lock(
            lambda: self._sweep(judge)
        ):
            return
        for operation, work in self._jobs:
            if not stop.is_set():
                await operation.run_if_due(work)
        self._on_pass_finished(fleet, took_s=time.monotonic() - began)

    def _observer(self, listening: HeartbeatSeries | None, now: datetime) -> WorkerObserver:
        """Ourselves, as far as we have listened up to now: not at all, where a beat of our own is overdue by then."""
        recovery = self._parts.app.recovery
        is_listening = listening is not None and listening.is_unbroken(now, recovery)
        since = listening.since if listening is not None and is_listening else None
        return WorkerObserver(worker_id=self._parts.identity.worker_id, config=recovery, listening_since=since)

    def _should_run_pass(self, judge: WorkerObserver, fleet: Fleet) -> bool:
        candidate = PassCandidate(worker_id=judge.worker_id, config=judge.config, listening_since=judge.listening_since)
        return should_run_pass(candidate, fleet)

    async def _sweep(self, judge: WorkerObserver) -> bool:
        """Steps 1 to 5 of a pass; True, as somebody who had the turn."""
        parts = self._parts
        due = [step for step, operation in self._step_jobs.items() if operation.take_tick()]
        report = await run_pass(
            parts.claims.database,
            SweepOptions(),
            observer=judge,
            hooks=parts.hooks,
            healing=self._healing,
            steps=due,
            budget_s=self._interval_s,
        )
        failures = {failure.step: failure.error for failure in report.failures}
        for step in due:
            if (error := failures.get(step)) is None:
                self._step_jobs[step].record_success()
            else:
                self._step_jobs[step].record_failure(error)
        self._emit_refused(report)
        return True

    def _emit_refused(self, report: SweepReport) -> None:
        """Say of each task that could not be settled so, once for as long as it stays like that."""
        parts, before = self._parts, self._parts.health.refused_tasks
        parts.health.refused_tasks = {str(task.task_id): task.refusal or "" for task in report.refused}
        for task in report.refused:
            if before.get(str(task.task_id)) != task.refusal:
                parts.reporter.emit(
                    events.RecoveryRefused(
                        worker_id=str(parts.identity.worker_id),
                        task_id=str(task.task_id),
                        decision=task.decision,
                        error=task.refusal or "",
                    )
                )

    def _on_pass_finished(self, fleet: Fleet, *, took_s: float) -> None:
        self._parts.health.last_pass_at = fleet.now + timedelta(seconds=took_s)
        self._parts.publish_health_now.set()
        self._parts.reporter.emit(events.PassFinished(worker_id=str(self._parts.identity.worker_id)))

    def _job(self, name: str) -> PeriodicJob:
        return PeriodicJob(name, on_change=self._on_job_change)

    def _on_job_change(self, operation: str, error: str | None) -> None:
        parts, worker_id = self._parts, str(self._parts.identity.worker_id)
        if error is None:
            parts.health.disabled_jobs.pop(operation, None)
            parts.reporter.emit(events.OperationEnabled(worker_id=worker_id, operation=operation))
        else:
            parts.health.disabled_jobs[operation] = error
            parts.reporter.emit(events.OperationDisabled(worker_id=worker_id, operation=operation, error=error))


class OncePerInterval:
    """Work that is due once in an interval, the first time one interval from now."""

    def __init__(self, interval_s: float, work: Callable[[], Awaitable[object]]) -> None:
        self._interval_s = interval_s
        self._work = work
        self._done_at = time.monotonic()

    async def __call__(self) -> None:
        if time.monotonic() - self._done_at >= self._interval_s:
            await self._work()
            self._done_at = time.monotonic()


async def _until(instant: float, stop: asyncio.Event) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), max(0.0, instant - time.monotonic()))


# What a pass of the reaper does, in this order: a sweep, workflows that were paused for too long, and retention.


def build_reaper(parts: Parts) -> Reaper:
    """The reaper of one worker; what its sweep finds to be done for workflows, the service of these does."""
    healing = WorkflowHealing.for_worker(parts.claims.database, wake=parts.workflows_due.set)
    return Reaper(parts, _maintenance_jobs(parts), healing=healing)


def _maintenance_jobs(parts: Parts) -> dict[str, Callable[[], Awaitable[object]]]:
    """By the names under which operators see them."""
    app, database = parts.app, parts.claims.database
    windows = RetentionWindows.of(app.recovery, app.retention)
    interval_s = app.recovery.check_interval_ms / 1000
    longest_pause = app.retention.paused_workflow_expire_hours

    async def retain() -> None:
        await clean(database, windows, budget_s=app.retention.pass_budget_s, worker_id=parts.identity.worker_id)

    duties: dict[str, Callable[[], Awaitable[object]]] = {
        "retention of heartbeats": partial(clean_heartbeats, database, windows, budget_s=interval_s / 2),
        "retention": OncePerInterval(app.retention.interval_s, retain),
    }
    if longest_pause is None:
        return duties
    return {"expire paused workflows": partial(expire_paused, database, longer_than_s=longest_pause * 3600)} | duties
