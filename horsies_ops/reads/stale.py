"""What a sweep would make of one task, and which it would soon take: by the decision that it goes by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from horsies.model.recovery.decision import DecisionKind
from horsies.model.recovery.fleet import EffectivePolicy, OperatorObserver, SweepOptions, effective_policy
from horsies.model.settings import RecoveryConfig
from horsies.model.task import TaskStatus
from horsies.recovery.decide import StaleTask
from horsies.recovery.report import SweptTask
from horsies.store.database import Database
from horsies.store.queries import Query, load_queries
from horsies.store.recovery import PAGE_SIZE, RecoveryStore, StaleRow, StaleScan

MAX_PAGES: Final = 10
_WHY_NOT: Final = {
    "fresh": "it is within its limit",
    "outage_grace": "nobody has listened long enough to judge",
    "disabled": "the settings forbid it",
    "hook_skip": "a hook holds it",
}
BEATS_MISSED: Final = 1.5
"""So many beats without one, and a task is silent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryDecision:
    """What a sweep would do with a held task now, and why; no hook is asked."""

    decision: str
    reason: str | None
    threshold: timedelta | None = None
    """The silence after which it is stale, its owner and its flags considered."""
    code: str | None = None
    """The error code that it would fail with."""
    run_at: datetime | None = None
    held_until: datetime | None = None
    owner_state: str | None = None

    @property
    def changes_state(self) -> bool:
        """Whether a sweep would do something about it."""
        return DecisionKind(self.decision) not in (DecisionKind.LEAVE, DecisionKind.HOLD)

    @property
    def description(self) -> str:
        """What a sweep would do and why, for people; the reason itself is for programs."""
        if self.changes_state:
            code = f" with {self.code}" if self.code else ""
            return f"a sweep would {self.decision} it{code}: {self.reason or 'too long silent'}"
        until = "" if self.held_until is None else f" until {self.held_until.astimezone(UTC):%H:%M:%S}Z"
        return f"a sweep would leave it alone{until}: {_WHY_NOT.get(self.reason or '', self.reason)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleCounts:
    """How many tasks are past their threshold, by their state. Of each at most so many pages are looked at."""

    claimed: int
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentTasks:
    """Tasks that have missed a beat, and are not stale yet. At most a page of each state is looked at."""

    count: int
    longest: timedelta
    stale_at: datetime
    """When the first of them will be, unless it beats again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleQueries:
    owned_task: Query[StaleRow]


STALE_READS = load_queries(StaleQueries, "horsies_ops.reads", "verdicts")


async def recovery_decision(
    database: Database, task_id: UUID, *, local_config: RecoveryConfig
) -> RecoveryDecision | None:
    """The verdict on a task that is claimed or running, None on any other; `local` counts where no worker lives."""
    row = await database.fetch_one(STALE_READS.owned_task, task_id)
    if row is None:
        return None
    fleet = await RecoveryStore(database).fleet()
    told = StaleTask.from_row(
        row, effective_policy(OperatorObserver(local_config=local_config), SweepOptions(), fleet)
    ).to_swept_task(applied=False)
    return RecoveryDecision(
        decision=told.decision,
        reason=told.reason,
        threshold=told.effective_threshold,
        code=told.code,
        run_at=told.run_at,
        held_until=told.held_until,
        owner_state=told.owner_state,
    )


async def count_stale(database: Database, *, local_config: RecoveryConfig) -> StaleCounts:
    """How much a sweep would find now, without asking hooks; `local` counts where no worker lives."""
    store = RecoveryStore(database)
    ruled = effective_policy(OperatorObserver(local_config=local_config), SweepOptions(), await store.fleet())
    claimed, running = [await _count(store, scan, ruled) for scan in _scans(ruled, timedelta(0), None)]
    return StaleCounts(claimed=claimed, running=running)


async def _count(store: RecoveryStore, scan: StaleScan, ruled: EffectivePolicy) -> int:
    found, after = 0, None
    for _ in range(MAX_PAGES):
        rows = await store.stale(scan, after=after)
        told = [StaleTask.from_row(row, ruled).to_swept_task(applied=False) for row in rows]
        found += sum(task.changes_state or task.is_exempt for task in told)
        if len(rows) < PAGE_SIZE:
            break
        after = rows[-1].id
    return found


async def nearly_stale_tasks(
    database: Database, options: SweepOptions, *, within: timedelta, local_config: RecoveryConfig
) -> tuple[SweptTask, ...]:
    """Live tasks that no sweep would take yet, and that would be stale after `within` more of silence.

    At most a page of each state is looked at.
    """
    store = RecoveryStore(database)
    ruled = effective_policy(OperatorObserver(local_config=local_config), options, await store.fleet())
    rows = [row for scan in _scans(ruled, within, options.worker_id) for row in await store.stale(scan, after=None)]
    cases = [StaleTask.from_row(row, ruled) for row in rows]
    return tuple(
        case.to_swept_task(applied=False) for case in cases if case.is_fresh and case.silence >= case.threshold - within
    )


async def silent_tasks(
    database: Database, options: SweepOptions, *, local_config: RecoveryConfig
) -> SilentTasks | None:
    """What a sweep with these options passes over though it is silent; None where nothing is."""
    store = RecoveryStore(database)
    fleet = await store.fleet()
    ruled, quiet = (
        effective_policy(OperatorObserver(local_config=local_config), options, fleet),
        _silence_threshold([each.config for each in fleet.live], local_config),
    )
    scans = [
        StaleScan(status=status, threshold=quiet, owner_id=options.worker_id)
        for status in (TaskStatus.CLAIMED, TaskStatus.RUNNING)
    ]
    cases = [StaleTask.from_row(row, ruled) for scan in scans for row in await store.stale(scan, after=None)]
    return summarize_silent(case for case in cases if case.is_fresh)


def summarize_silent(cases: Iterable[StaleTask]) -> SilentTasks | None:
    silent = list(cases)
    if not silent:
        return None
    return SilentTasks(
        count=len(silent),
        longest=max(case.silence for case in silent),
        stale_at=min(case.row.last_heartbeat_at + case.threshold for case in silent),
    )


def _silence_threshold(fleet: Sequence[RecoveryConfig], local_config: RecoveryConfig) -> timedelta:
    beats = (
        max(each.claimer_heartbeat_interval_ms, each.runner_heartbeat_interval_ms) for each in fleet or (local_config,)
    )
    return BEATS_MISSED * timedelta(milliseconds=max(beats))


def _scans(ruled: EffectivePolicy, within: timedelta, owner_id: UUID | None) -> list[StaleScan]:
    """Those quiet for a little less than the judge's own threshold; an owner's can only be longer."""
    thresholds = {
        TaskStatus.CLAIMED: ruled.policy.claimed_threshold,
        TaskStatus.RUNNING: ruled.policy.running_threshold,
    }
    return [
        StaleScan(status=status, threshold=max(threshold - within, timedelta(0)), owner_id=owner_id)
        for status, threshold in thresholds.items()
    ]
