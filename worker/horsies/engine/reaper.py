"""The reaper of a worker: at each interval, where it is its turn, it makes a pass through the duties of recovery."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from horsies.engine.service import Operation
from horsies.model import events
from horsies.model.recovery.fleet import Candidate, SweepOptions, WorkerJudge, has_the_turn
from horsies.model.retention import Windows
from horsies.recovery.report import Step
from horsies.recovery.retention import clean, clean_heartbeats
from horsies.recovery.sweep import Healing, make_pass
from horsies.store.recovery import RecoveryStore
from horsies.workflows.control import expire_paused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from datetime import datetime

    from horsies.engine.worker import Parts
    from horsies.model.fence import Listening
    from horsies.model.recovery.fleet import Fleet
    from horsies.recovery.report import SweepReport


class Reaper:
    """Sweeps, then does its other duties in their order; ends the pass in hand when it is stopped.

    A pass that another worker has just made is left out, and one that another can judge better is left to it. The sweep
    is made while no other process sweeps. A step or duty that fails holds up no other.
    """

    name = "reaper"

    def __init__(
        self, parts: Parts, duties: Mapping[str, Callable[[], Awaitable[object]]], *, healing: Healing | None = None
    ) -> None:
        self._parts = parts
        self._store = RecoveryStore(parts.claims.database)
        self._interval_s = parts.app.recovery.check_interval_ms / 1000
        self._healing = healing
        self._passes = self._operation("pass of the reaper")
        self._steps = {step: self._operation(step) for step in Step}
        self._duties = [(self._operation(name), work) for name, work in duties.items()]

    async def run(self, stop: asyncio.Event) -> None:
        next_at = time.monotonic()
        while not stop.is_set():
            next_at = max(next_at + self._interval_s, time.monotonic())
            await _until(next_at, stop)
            if not stop.is_set():
                await self._passes.tick(lambda: self._make_pass(stop))

    async def _make_pass(self, stop: asyncio.Event) -> None:
        began = time.monotonic()
        listening = self._parts.health.listening
        fleet = await self._store.fleet()
        judge = self._judge(listening, fleet.now)
        if not self._is_our_turn(judge, fleet) or not await self._store.in_turn(lambda: self._sweep(judge)):
            return
        for operation, work in self._duties:
            if not stop.is_set():
                await operation.tick(work)
        self._passed(fleet, took_s=time.monotonic() - began)

    def _judge(self, listening: Listening | None, now: datetime) -> WorkerJudge:
        """Ourselves, as far as we have listened up to now: not at all, where a beat of our own is overdue by then."""
        recovery = self._parts.app.recovery
        is_listening = listening is not None and listening.is_unbroken(now, recovery)
        since = listening.since if listening is not None and is_listening else None
        return WorkerJudge(worker_id=self._parts.identity.worker_id, config=recovery, listening_since=since)

    def _is_our_turn(self, judge: WorkerJudge, fleet: Fleet) -> bool:
        candidate = Candidate(worker_id=judge.worker_id, config=judge.config, listening_since=judge.listening_since)
        return has_the_turn(candidate, fleet)

    async def _sweep(self, judge: WorkerJudge) -> bool:
        """Steps 1 to 5 of a pass; True, as somebody who had the turn."""
        parts = self._parts
        due = [step for step, operation in self._steps.items() if operation.is_due()]
        report = await make_pass(
            parts.claims.database,
            SweepOptions(),
            judge=judge,
            hooks=parts.asking,
            healing=self._healing,
            steps=due,
            budget_s=self._interval_s,
        )
        failures = {failure.step: failure.error for failure in report.failures}
        for step in due:
            if (error := failures.get(step)) is None:
                self._steps[step].succeeded()
            else:
                self._steps[step].failed(error)
        self._tell_refused(report)
        return True

    def _tell_refused(self, report: SweepReport) -> None:
        """Say of each task that could not be settled so, once for as long as it stays like that."""
        parts, before = self._parts, self._parts.health.refused
        parts.health.refused = {str(task.task_id): task.refusal or "" for task in report.refused}
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

    def _passed(self, fleet: Fleet, *, took_s: float) -> None:
        self._parts.health.last_pass_at = fleet.now + timedelta(seconds=took_s)
        self._parts.tell_health.set()
        self._parts.reporter.emit(events.PassFinished(worker_id=str(self._parts.identity.worker_id)))

    def _operation(self, name: str) -> Operation:
        return Operation(name, changed=self._changed)

    def _changed(self, operation: str, error: str | None) -> None:
        parts, worker_id = self._parts, str(self._parts.identity.worker_id)
        if error is None:
            parts.health.disabled.pop(operation, None)
            parts.reporter.emit(events.OperationEnabled(worker_id=worker_id, operation=operation))
        else:
            parts.health.disabled[operation] = error
            parts.reporter.emit(events.OperationDisabled(worker_id=worker_id, operation=operation, error=error))


class Rarely:
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


def reaper_of(parts: Parts) -> Reaper:
    """The reaper of one worker; what its sweep finds to be done for workflows, the service of these does."""
    healing = Healing.by_worker(parts.claims.database, wake=parts.runs_are_due.set)
    return Reaper(parts, _duties_after_the_sweep(parts), healing=healing)


def _duties_after_the_sweep(parts: Parts) -> dict[str, Callable[[], Awaitable[object]]]:
    """By the names under which operators see them."""
    app, database = parts.app, parts.claims.database
    windows = Windows.of(app.recovery, app.retention)
    interval_s = app.recovery.check_interval_ms / 1000
    longest_pause = app.retention.paused_workflow_expire_hours

    async def retain() -> None:
        await clean(database, windows, budget_s=app.retention.pass_budget_s, worker_id=parts.identity.worker_id)

    duties: dict[str, Callable[[], Awaitable[object]]] = {
        "retention of heartbeats": partial(clean_heartbeats, database, windows, budget_s=interval_s / 2),
        "retention": Rarely(app.retention.interval_s, retain),
    }
    if longest_pause is None:
        return duties
    return {"expire paused workflows": partial(expire_paused, database, longer_than_s=longest_pause * 3600)} | duties
