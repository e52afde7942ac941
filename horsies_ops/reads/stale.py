"""Stale tasks and the recovery decision for one task, computed with the same rules as a sweep."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final
from uuid import UUID

from horsies.model.recovery.decision import MISSING_STATE
from horsies.model.recovery.fleet import (
    EffectivePolicy,
    Fleet,
    OperatorObserver,
    SweepOptions,
    effective_policy,
    is_silent,
    longest_gap,
    parse_config,
)
from horsies.model.task import TaskStatus, short_form
from horsies.model.waiting import OwnerFacts
from horsies.recovery.decide import StaleTask
from horsies.recovery.report import SweptTask
from horsies.store.queries import Query, load_queries
from horsies.store.recovery import PAGE_SIZE, RecoveryStore, StaleRow, StaleScan

if TYPE_CHECKING:
    from horsies_ops.ops import Ops

DEFAULT_SWEEP_OPTIONS: Final = SweepOptions()
MAX_PAGES: Final = 10
MAX_LATE_WORKERS: Final = 20
"""More workers are late only after a database outage; their tasks are listed once they miss a heartbeat themselves."""
TASK_SILENT_AFTER_HEARTBEATS: Final = 1.5
"""A task is silent after this many heartbeat intervals without a heartbeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleCounts:
    """Number of stale tasks by status; at most MAX_PAGES pages of each status are read."""

    claimed: int
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedRow(StaleRow):
    """A claimed or running task and its worker."""

    owner_hostname: str | None
    owner_pid: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleQueries:
    owned_task: Query[OwnedRow]


STALE_READS = load_queries(StaleQueries, "horsies_ops.reads", "stale")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """Who has a claimed or running task, and what recovery does with it."""

    facts: OwnerFacts
    decision: SweptTask
    """What a sweep would do now."""
    forecast: SweptTask
    """What a sweep does, and when, if the task sends no further heartbeat."""


async def ownership(ops: Ops, task_id: UUID) -> Ownership | None:
    """Return who has a claimed or running task, None for any other; recovery hooks are not called."""
    row = await ops.reader.fetch_one(STALE_READS.owned_task, task_id)
    if row is None:
        return None
    fleet = await RecoveryStore(ops.reader).fleet()
    return assess_owner(row, fleet, _operator_policy(ops, DEFAULT_SWEEP_OPTIONS, fleet))


def assess_owner(row: OwnedRow, fleet: Fleet, effective: EffectivePolicy) -> Ownership:
    """Return who has the task, what a sweep would do with it now, and the forecast."""
    stale = StaleTask.from_row(row, effective)
    decision, forecast = stale.to_swept_task(applied=False), stale.forecast()
    config, is_running = parse_config(row.owner_config or {}), row.status is TaskStatus.RUNNING
    interval_ms = config.runner_heartbeat_interval_ms if is_running else config.claimer_heartbeat_interval_ms
    interval, worker_age = timedelta(milliseconds=interval_ms), row.owner_seen_at and row.now - row.owner_seen_at
    state = decision.owner_state or MISSING_STATE
    if state == "running" and worker_age is not None and worker_age > longest_gap(config):
        state = "silent" if is_silent(worker_age, config) else "late"
    began_at = row.started_at if is_running else row.claimed_at
    facts = OwnerFacts(
        worker=short_form(row.owner_id) if row.owner_id else "-",
        process=f"{row.owner_hostname}:{row.owner_pid}" if row.owner_hostname else None,
        worker_state=state,
        worker_silence=worker_age if worker_age is None or worker_age > longest_gap(config) else None,
        is_running=is_running,
        child_pid=row.worker_pid,
        elapsed=row.now - (began_at or row.now),
        attempt=row.retry_count + 1,
        max_attempts=row.max_retries + 1,
        heartbeat_age=stale.silence,
        heartbeat_interval=interval,
        is_late=stale.silence > TASK_SILENT_AFTER_HEARTBEATS * interval,
        due_in=forecast.due_in or timedelta(0),
        decision=forecast.phrase,
        has_reaper=any(
            member.config.auto_fail_stale_running if is_running else member.config.auto_requeue_stale_claimed
            for member in fleet.members
            if member.worker_id in fleet.responsive_ids
        ),
    )
    return Ownership(facts=facts, decision=decision, forecast=forecast)


async def count_stale(ops: Ops, fleet: Fleet) -> StaleCounts:
    """Count the tasks that a sweep would recover now, or that outage grace holds back; hooks are not called."""
    store = RecoveryStore(ops.reader)
    effective = _operator_policy(ops, DEFAULT_SWEEP_OPTIONS, fleet)
    claimed, running = [
        await _count_scan(store, scan, effective) for scan in _scans(_fleet_thresholds(effective), owner_id=None)
    ]
    return StaleCounts(claimed=claimed, running=running)


async def _count_scan(store: RecoveryStore, scan: StaleScan, effective: EffectivePolicy) -> int:
    count, after = 0, None
    for _ in range(MAX_PAGES):
        rows = await store.stale(scan, after=after)
        swept = [StaleTask.from_row(row, effective).to_swept_task(applied=False) for row in rows]
        count += sum(task.changes_state or task.is_exempt for task in swept)
        if len(rows) < PAGE_SIZE:
            break
        after = rows[-1].id
    return count


async def silent_tasks(ops: Ops, options: SweepOptions = DEFAULT_SWEEP_OPTIONS) -> tuple[SweptTask, ...]:
    """Return forecasts for tasks that missed a heartbeat, or whose worker did, but are not stale; soonest first.

    At most one page of each status and worker is read.
    """
    store = RecoveryStore(ops.reader)
    fleet = await store.fleet()
    effective = _operator_policy(ops, options, fleet)
    # Workers may have different intervals; with the longest one, no healthy task counts as silent.
    configs = [member.config for member in fleet.live] or [ops.settings.recovery]
    thresholds = [
        TASK_SILENT_AFTER_HEARTBEATS * timedelta(milliseconds=max(intervals))
        for intervals in (
            [config.claimer_heartbeat_interval_ms for config in configs],
            [config.runner_heartbeat_interval_ms for config in configs],
        )
    ]
    tasks = await _read_tasks(store, effective, thresholds, options.worker_id)
    # A worker may be late before its tasks are: it sends its own heartbeats more often.
    late = [member.worker_id for member in fleet.members if member.is_late(fleet.now)][:MAX_LATE_WORKERS]
    for worker_id in late:
        if options.worker_id in (None, worker_id):
            tasks += await _read_tasks(store, effective, [timedelta(0)] * 2, worker_id)
    return forecasts(tasks)


def forecasts(tasks: Iterable[StaleTask]) -> tuple[SweptTask, ...]:
    """Return what recovery will do with those that are not stale yet, each once, soonest first."""
    by_id = {task.row.id: task.forecast() for task in tasks if task.is_fresh}
    # The id keeps the order of equal tasks the same on every read.
    return tuple(sorted(by_id.values(), key=lambda task: (task.due_in or timedelta(0), task.task_id)))


def _operator_policy(ops: Ops, options: SweepOptions, fleet: Fleet) -> EffectivePolicy:
    """Return the policy of the live workers; without one, the settings of this process apply."""
    return effective_policy(OperatorObserver(local_config=ops.settings.recovery), options, fleet)


async def _read_tasks(
    store: RecoveryStore, effective: EffectivePolicy, thresholds: Iterable[timedelta], owner_id: UUID | None
) -> list[StaleTask]:
    """Return the tasks that are silent for longer than the thresholds; at most one page of each status."""
    return [
        StaleTask.from_row(row, effective)
        for scan in _scans(thresholds, owner_id)
        for row in await store.stale(scan, after=None)
    ]


def _fleet_thresholds(effective: EffectivePolicy) -> tuple[timedelta, timedelta]:
    """Return the thresholds of claimed and running tasks; those of their worker can only be longer."""
    return effective.policy.claimed_threshold, effective.policy.running_threshold


def _scans(thresholds: Iterable[timedelta], owner_id: UUID | None) -> list[StaleScan]:
    """Return the scans for claimed and running tasks with these thresholds."""
    return [
        StaleScan(status=status, threshold=max(threshold, timedelta(0)), owner_id=owner_id)
        for status, threshold in zip((TaskStatus.CLAIMED, TaskStatus.RUNNING), thresholds, strict=True)
    ]
