"""Schedules: their definitions, next slots and runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import UUID
from zoneinfo import ZoneInfoNotFoundError

from horsies.errors import NotFound
from horsies.model.recovery.fleet import is_silent, parse_config
from horsies.model.schedule.decide import (
    RunKind,
    SchedulePolicy,
    ScheduleState,
    SlotOutcome,
    describe_pattern,
    parse_policy,
)
from horsies.scheduler.service import RENEW_S
from horsies.store.queries import Query, load_queries
from horsies.store.workers import WorkerState

if TYPE_CHECKING:
    from horsies.model.settings import TaskSchedule
    from horsies_ops.ops import Ops


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRow:
    """One schedule; `recent` has the outcomes of its last 20 slots, the newest last."""

    name: str
    owner: str = ""
    source: str = "code"
    state: ScheduleState = ScheduleState.ACTIVE
    target: str | None = None
    """The task that it sends or the workflow that it starts."""
    is_workflow: bool = False
    definition: str = "{}"
    anchor_at: datetime | None = None
    next_run_at: datetime | None = None
    due_in: timedelta | None = None
    last_slot_at: datetime | None = None
    last_run_at: datetime | None = None
    lag: timedelta | None = None
    """How long after its slot time the last one fired."""
    last_task_id: UUID | None = None
    """The task or workflow run of the last slot that fired."""
    last_status: str | None = None
    last_error_code: str | None = None
    run_count: int = 0
    revision: int = 1
    waiting_slot_at: datetime | None = None
    failures: int = 0
    refusals: int = 0
    paused_at: datetime | None = None
    paused_by: str | None = None
    pause_reason: str | None = None
    is_overdue: bool = False
    recent: Sequence[str] = ()

    @property
    def policy(self) -> SchedulePolicy | None:
        """The policy; None if the stored definition cannot be read."""
        try:
            return parse_policy(self.definition).anchored(self.anchor_at)
        except ValueError:
            return None

    @property
    def pattern(self) -> str:
        return "?" if self.policy is None else describe_pattern(self.policy.pattern)

    @property
    def timezone(self) -> str:
        return "UTC" if self.policy is None else self.policy.timezone

    @property
    def overlap(self) -> str:
        return "?" if self.policy is None else self.policy.overlap

    @property
    def is_paused(self) -> bool:
        return self.paused_at is not None

    @property
    def fires(self) -> bool:
        return self.state is ScheduleState.ACTIVE and not self.is_paused

    @property
    def why_not_firing(self) -> str:
        """Why its next slots do not fire; empty if they do."""
        if self.fires:
            return ""
        return "paused: no slot fires until it is resumed" if self.is_paused else f"{self.state}: no slot fires"

    def next_slots(self, count: int) -> list[datetime]:
        """The next slots, the first undecided one first; empty if its zone is unknown here."""
        if self.policy is None or self.next_run_at is None:
            return []
        try:
            return list(islice(self.policy.slots_from(self.next_run_at), count))
        except ZoneInfoNotFoundError:
            return []


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRunRow:
    """What happened with one slot."""

    slot_at: datetime
    kind: RunKind
    outcome: SlotOutcome
    reason: str | None
    task_id: UUID | None
    workflow_id: UUID | None
    fired_at: datetime | None
    lag: timedelta | None
    fired_by: UUID | None
    revision: int
    status: str | None
    """The status of its task or workflow run."""
    error_code: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeCount:
    """Slots with one outcome, and how late those that fired by the clock were, in seconds."""

    outcome: str
    count: int
    lags: Sequence[float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParticipantRow:
    """A process that fires schedules: a worker, which sends heartbeats, or `horsies scheduler`, which is renewed."""

    seen_ago: timedelta
    worker_state: str | None
    heartbeat_age: timedelta | None
    config: Mapping[str, object]

    @property
    def is_live(self) -> bool:
        if self.heartbeat_age is None:
            return self.seen_ago.total_seconds() < 1.5 * RENEW_S
        is_ended = self.worker_state in (WorkerState.STOPPED, WorkerState.LOST)
        return not is_ended and not is_silent(self.heartbeat_age, parse_config(self.config))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleReadQueries:
    list: Query[ScheduleRow]
    history: Query[ScheduleRunRow]
    participants: Query[ParticipantRow]
    totals: Query[OutcomeCount]
    newest_run: Query[int]


SCHEDULE_READS = load_queries(ScheduleReadQueries, "horsies_ops.reads", "schedules")


async def list_schedules(ops: Ops) -> tuple[ScheduleRow, ...]:
    """Return all stored schedules, overdue ones first, then by their next slot; then those only in the settings."""
    stored = await ops.reader.fetch(SCHEDULE_READS.list, None, overdue_after_s(ops))
    names = {row.name for row in stored}
    configured = ops.settings.schedule.schedules if ops.settings.schedule is not None else ()
    return (*stored, *(_unsaved(each) for each in configured if each.name not in names))


def _unsaved(configured: TaskSchedule) -> ScheduleRow:
    """A schedule that no worker or scheduler has stored yet."""
    return ScheduleRow(
        name=configured.name,
        source=configured.source,
        state=ScheduleState.ACTIVE if configured.enabled else ScheduleState.DISABLED,
        target=configured.task_name,
        definition=SchedulePolicy.of(configured).to_json(),
        revision=0,
    )


async def schedule(ops: Ops, name: str) -> ScheduleRow:
    """Return one schedule; raises NotFound."""
    row = await ops.reader.fetch_one(SCHEDULE_READS.list, name, overdue_after_s(ops))
    if row is None:
        raise NotFound(f"no schedule {name!r}", hint="horsies schedule list shows all of them")
    return row


async def schedule_history(ops: Ops, name: str, *, limit: int = 50) -> tuple[ScheduleRunRow, ...]:
    """Return the runs of a schedule, the newest slot first."""
    return tuple(await ops.reader.fetch(SCHEDULE_READS.history, name, limit))


async def schedule_participants(ops: Ops) -> int:
    """Count the live processes that take part in firing schedules."""
    return sum(row.is_live for row in await ops.reader.fetch(SCHEDULE_READS.participants))


def overdue_after_s(ops: Ops) -> float:
    """How late a slot must be to count as overdue."""
    config = ops.settings.schedule
    return max(60.0, 3.0 * (1 if config is None else config.check_interval_seconds))


def schedule_document(row: ScheduleRow) -> Mapping[str, Any]:
    """The fields that are computed from the definition, for JSON."""
    return {"pattern": row.pattern, "timezone": row.timezone, "overlap": row.overlap, "paused": row.is_paused}
