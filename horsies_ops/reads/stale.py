"""What a sweep would make of one task, and which it would soon take: by the decision that it goes by."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Final

from horsies.model.recovery.decision import Decision
from horsies.model.recovery.fleet import OperatorJudge, SweepOptions, ruling
from horsies.model.task import TaskStatus
from horsies.recovery.decide import Case
from horsies.store.queries import Query, load
from horsies.store.recovery import PAGE, RecoveryStore, Scan, StaleRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime
    from uuid import UUID

    from horsies.model.recovery.fleet import Ruling
    from horsies.model.settings import RecoveryConfig
    from horsies.recovery.report import SweptTask
    from horsies.store.database import Database


MOST_PAGES: Final = 10
_WHY_NOT: Final = {
    "fresh": "it is within its limit",
    "amnesty": "nobody has listened long enough to judge",
    "disabled": "the settings forbid it",
    "hook_skip": "a hook holds it",
}
BEATS_MISSED: Final = 1.5
"""So many beats without one, and a task is silent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskVerdict:
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
    def is_to_act(self) -> bool:
        """Whether a sweep would do something about it."""
        return Decision(self.decision) not in (Decision.LEAVE, Decision.HOLD)

    @property
    def in_words(self) -> str:
        """What a sweep would do and why, for people; the reason itself is for programs."""
        if self.is_to_act:
            code = f" with {self.code}" if self.code else ""
            return f"a sweep would {self.decision} it{code}: {self.reason or 'too long silent'}"
        until = "" if self.held_until is None else f" until {self.held_until.astimezone(UTC):%H:%M:%S}Z"
        return f"a sweep would leave it alone{until}: {_WHY_NOT.get(self.reason or '', self.reason)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleNow:
    """How many tasks are past their threshold, by their state. Of each at most so many pages are looked at."""

    claimed: int
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Silent:
    """Tasks that have missed a beat, and are not stale yet. At most a page of each state is looked at."""

    count: int
    longest: timedelta
    stale_at: datetime
    """When the first of them will be, unless it beats again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictQueries:
    judged: Query[StaleRow]


VERDICTS = load(VerdictQueries, "horsies_ops.reads", "verdicts")


async def verdict_on(database: Database, task_id: UUID, *, local: RecoveryConfig) -> TaskVerdict | None:
    """The verdict on a task that is claimed or running, None on any other; `local` counts where no worker lives."""
    row = await database.fetch_one(VERDICTS.judged, task_id)
    if row is None:
        return None
    fleet = await RecoveryStore(database).fleet()
    told = Case.of(row, ruling(OperatorJudge(local=local), SweepOptions(), fleet)).swept(applied=False)
    return TaskVerdict(
        decision=told.decision,
        reason=told.reason,
        threshold=told.effective_threshold,
        code=told.code,
        run_at=told.run_at,
        held_until=told.held_until,
        owner_state=told.owner_state,
    )


async def stale_now(database: Database, *, local: RecoveryConfig) -> StaleNow:
    """How much a sweep would find now, without asking hooks; `local` counts where no worker lives."""
    store = RecoveryStore(database)
    ruled = ruling(OperatorJudge(local=local), SweepOptions(), await store.fleet())
    claimed, running = [await _count(store, scan, ruled) for scan in _scans(ruled, timedelta(0), None)]
    return StaleNow(claimed=claimed, running=running)


async def _count(store: RecoveryStore, scan: Scan, ruled: Ruling) -> int:
    found, after = 0, None
    for _ in range(MOST_PAGES):
        rows = await store.stale(scan, after=after)
        told = [Case.of(row, ruled).swept(applied=False) for row in rows]
        found += sum(task.is_due or task.is_spared for task in told)
        if len(rows) < PAGE:
            break
        after = rows[-1].id
    return found


async def near_limit(
    database: Database, options: SweepOptions, *, within: timedelta, local: RecoveryConfig
) -> tuple[SweptTask, ...]:
    """Live tasks that no sweep would take yet, and that would be stale after `within` more of silence.

    At most a page of each state is looked at.
    """
    store = RecoveryStore(database)
    ruled = ruling(OperatorJudge(local=local), options, await store.fleet())
    rows = [row for scan in _scans(ruled, within, options.worker_id) for row in await store.stale(scan, after=None)]
    cases = [Case.of(row, ruled) for row in rows]
    return tuple(
        case.swept(applied=False) for case in cases if case.is_fresh and case.silence >= case.threshold - within
    )


async def not_yet_stale(database: Database, options: SweepOptions, *, local: RecoveryConfig) -> Silent | None:
    """What a sweep with these options passes over though it is silent; None where nothing is."""
    store = RecoveryStore(database)
    fleet = await store.fleet()
    ruled, quiet = (
        ruling(OperatorJudge(local=local), options, fleet),
        _missed([each.config for each in fleet.live], local),
    )
    scans = [
        Scan(status=status, threshold=quiet, owner_id=options.worker_id)
        for status in (TaskStatus.CLAIMED, TaskStatus.RUNNING)
    ]
    cases = [Case.of(row, ruled) for scan in scans for row in await store.stale(scan, after=None)]
    return silent_of(case for case in cases if case.is_fresh)


def silent_of(cases: Iterable[Case]) -> Silent | None:
    silent = list(cases)
    if not silent:
        return None
    return Silent(
        count=len(silent),
        longest=max(case.silence for case in silent),
        stale_at=min(case.row.last_beat_at + case.threshold for case in silent),
    )


def _missed(fleet: Sequence[RecoveryConfig], local: RecoveryConfig) -> timedelta:
    beats = (max(each.claimer_heartbeat_interval_ms, each.runner_heartbeat_interval_ms) for each in fleet or (local,))
    return BEATS_MISSED * timedelta(milliseconds=max(beats))


def _scans(ruled: Ruling, within: timedelta, owner_id: UUID | None) -> list[Scan]:
    """Those quiet for a little less than the judge's own threshold; an owner's can only be longer."""
    thresholds = {
        TaskStatus.CLAIMED: ruled.policy.claimed_threshold,
        TaskStatus.RUNNING: ruled.policy.running_threshold,
    }
    return [
        Scan(status=status, threshold=max(threshold - within, timedelta(0)), owner_id=owner_id)
        for status, threshold in thresholds.items()
    ]
