"""Stale tasks and the recovery decision for one task, computed with the same rules as a sweep."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final
from uuid import UUID

from horsies.model.recovery.fleet import EffectivePolicy, Fleet, OperatorObserver, SweepOptions, effective_policy
from horsies.model.task import TaskStatus
from horsies.recovery.decide import StaleTask
from horsies.recovery.report import SweptTask
from horsies.store.queries import Query, load_queries
from horsies.store.recovery import PAGE_SIZE, RecoveryStore, StaleRow, StaleScan

if TYPE_CHECKING:
    from horsies_ops.ops import Ops

DEFAULT_SWEEP_OPTIONS: Final = SweepOptions()
MAX_PAGES: Final = 10
TASK_SILENT_AFTER_HEARTBEATS: Final = 1.5
"""A task is silent after this many heartbeat intervals without a heartbeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleCounts:
    """Number of stale tasks by status; at most MAX_PAGES pages of each status are read."""

    claimed: int
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentTasks:
    """Tasks that missed a heartbeat but are not stale yet; at most one page of each status is read."""

    count: int
    longest: timedelta
    stale_at: datetime
    """When the first of them becomes stale without another heartbeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleQueries:
    owned_task: Query[StaleRow]


STALE_READS = load_queries(StaleQueries, "horsies_ops.reads", "stale")


async def recovery_decision(ops: Ops, task_id: UUID) -> SweptTask | None:
    """Return what a sweep would do with a claimed or running task now, None for any other; hooks are not called."""
    row = await ops.reader.fetch_one(STALE_READS.owned_task, task_id)
    if row is None:
        return None
    return StaleTask.from_row(row, await _effective_policy(ops, DEFAULT_SWEEP_OPTIONS)).to_swept_task(applied=False)


async def count_stale(ops: Ops, fleet: Fleet) -> StaleCounts:
    """Count the tasks that a sweep would recover now, or that outage grace holds back; hooks are not called."""
    store = RecoveryStore(ops.reader)
    effective = effective_policy(OperatorObserver(local_config=ops.settings.recovery), DEFAULT_SWEEP_OPTIONS, fleet)
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


async def nearly_stale_tasks(
    ops: Ops, within: timedelta, options: SweepOptions = DEFAULT_SWEEP_OPTIONS
) -> tuple[SweptTask, ...]:
    """Return tasks that become stale if they stay silent for `within` longer; at most one page of each status."""
    store = RecoveryStore(ops.reader)
    effective = await _effective_policy(ops, options)
    thresholds = [threshold - within for threshold in _fleet_thresholds(effective)]
    tasks = await _read_tasks(store, effective, thresholds, options.worker_id)
    # The scan used the thresholds of the fleet; those of a task may be longer.
    return tuple(
        task.to_swept_task(applied=False) for task in tasks if task.is_fresh and task.silence >= task.threshold - within
    )


async def silent_tasks(ops: Ops, options: SweepOptions = DEFAULT_SWEEP_OPTIONS) -> SilentTasks | None:
    """Summarize tasks that missed a heartbeat but that a sweep with these options would not recover yet."""
    store, local_config = RecoveryStore(ops.reader), ops.settings.recovery
    fleet = await store.fleet()
    effective = effective_policy(OperatorObserver(local_config=local_config), options, fleet)
    # Workers may have different intervals; with the longest one, no healthy task counts as silent.
    configs = [member.config for member in fleet.live] or [local_config]
    interval_ms = max(
        max(config.claimer_heartbeat_interval_ms, config.runner_heartbeat_interval_ms) for config in configs
    )
    threshold = TASK_SILENT_AFTER_HEARTBEATS * timedelta(milliseconds=interval_ms)
    tasks = await _read_tasks(store, effective, [threshold, threshold], options.worker_id)
    return summarize_silent(task for task in tasks if task.is_fresh)


def summarize_silent(tasks: Iterable[StaleTask]) -> SilentTasks | None:
    silent = list(tasks)
    if not silent:
        return None
    return SilentTasks(
        count=len(silent),
        longest=max(task.silence for task in silent),
        stale_at=min(task.row.last_heartbeat_at + task.threshold for task in silent),
    )


async def _effective_policy(ops: Ops, options: SweepOptions) -> EffectivePolicy:
    """Return the policy of the live workers; without one, the settings of this process apply."""
    observer = OperatorObserver(local_config=ops.settings.recovery)
    return effective_policy(observer, options, await RecoveryStore(ops.reader).fleet())


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
