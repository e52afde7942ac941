"""Schedules and their runs: due slots, definitions, participants, and what operators change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from horsies.model.schedule.decide import (
    DueSchedule,
    Fire,
    Refuse,
    RunKind,
    RunOutcome,
    ScheduleChange,
    ScheduleState,
    Skip,
    SlotPlan,
    StoredSchedule,
    Wait,
    anchored_policy,
    slot_id,
)
from horsies.store.database import SCHEDULE_SYNC_LOCK
from horsies.store.queries import Query, load_queries

if TYPE_CHECKING:
    from horsies.model.schedule.decide import Decision
    from horsies.store.database import Executor

SCHEDULES_CHANNEL: Final = "horsies_schedules"
LIVE_PARTICIPANT_S: Final = 180.0
"""A participant that was not seen for longer does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextCheck:
    """When the next slot is due, None if there is none, and whether a slot waits for an earlier one."""

    due_in_s: float | None
    has_waiting: bool


class DueRow(NamedTuple):
    """A locked schedule with due slots; `plan` is the workflow to start, None for a task."""

    schedule_name: str
    definition: str
    plan: str | None
    next_run_at: datetime
    last_slot_at: datetime | None
    waiting_slot_at: datetime | None
    anchor_at: datetime | None
    revision: int
    now: datetime
    is_running: bool
    failures: int

    def to_due(self) -> DueSchedule:
        """Raises ValueError if its stored definition is invalid."""
        return DueSchedule(
            name=self.schedule_name,
            policy=anchored_policy(self.definition, self.anchor_at),
            first_slot=self.next_run_at,
            last_fired_slot=self.last_slot_at,
            waiting_slot=self.waiting_slot_at,
            is_running=self.is_running,
            failures=self.failures,
        )


class RecordedRun(NamedTuple):
    """A recorded slot; `fired_id` is the task or workflow run of one that fired."""

    schedule_name: str
    slot_at: datetime
    outcome: str
    fired_id: UUID | None
    workflow_id: UUID | None
    fired_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedRow:
    """A task (with status and claim token) or a workflow run that has not ended."""

    task_id: UUID | None
    workflow_id: UUID | None
    status: str | None
    claim_token: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedSchedule:
    """A schedule that an operator acts on."""

    schedule_name: str
    owner: str
    source: str
    state: ScheduleState
    definition: str
    plan: str | None
    next_run_at: datetime | None
    anchor_at: datetime | None
    paused_at: datetime | None
    revision: int
    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotOutcomeRow:
    slot_at: datetime
    outcome: RunOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleInfo:
    """A stored schedule: `definition` has its pattern and policies, `target` is the name of its task or workflow."""

    name: str
    owner: str
    source: str
    state: ScheduleState
    definition: Mapping[str, Any]
    target: str | None
    next_run_at: datetime | None
    last_run_at: datetime | None
    last_slot_at: datetime | None
    run_count: int
    paused_at: datetime | None
    paused_by: str | None
    pause_reason: str | None
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleQueries:
    next_check: Query[NextCheck]
    lock_due: Query[DueRow]
    lock_waiting: Query[DueRow]
    insert_runs: Query[RecordedRun]
    advance: Query[None]
    unfinished_of: Query[UnfinishedRow]
    pause: Query[str]
    resume: Query[str]
    lock_schedule: Query[LockedSchedule]
    slot_outcomes: Query[SlotOutcomeRow]
    forget: Query[str]
    try_sync_lock: Query[bool]
    stored_schedules: Query[StoredSchedule]
    database_time: Query[datetime]
    upsert: Query[None]
    join: Query[None]
    leave: Query[None]
    retire: Query[str]
    info: Query[ScheduleInfo]


SCHEDULES = load_queries(ScheduleQueries, "horsies.store", "schedules")


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """What was done with the due slots of one locked schedule."""

    row: DueRow
    plan: SlotPlan
    recorded: Sequence[RecordedRun]

    def columns(self) -> tuple[object, ...]:
        fired = [run for run in self.recorded if run.outcome == RunOutcome.FIRED]
        newest = max(fired, key=lambda run: run.slot_at, default=None)
        refused = sum(run.outcome == RunOutcome.REFUSED for run in self.recorded)
        return (
            self.row.schedule_name,
            self.plan.next_slot,
            self.plan.waiting_slot,
            newest and newest.slot_at,
            newest and newest.fired_id,
            len(fired),
            refused,
            self.row.failures,
        )


@dataclass(frozen=True, slots=True)
class ScheduleStore:
    """Schedules, in a database or in a transaction."""

    executor: Executor

    async def next_check(self) -> NextCheck:
        return await self.executor.fetch_single(SCHEDULES.next_check)

    async def lock_due(self, *, limit: int, name: str | None = None) -> list[DueRow]:
        """Lock due schedules for the rest of the transaction, except those that another one has locked."""
        return await self.executor.fetch(SCHEDULES.lock_due, limit, name)

    async def lock_waiting(self, *, limit: int) -> list[DueRow]:
        """Lock schedules whose waiting slot can fire, like `lock_due`."""
        return await self.executor.fetch(SCHEDULES.lock_waiting, limit)

    async def record(
        self, decisions: Iterable[tuple[DueRow | LockedSchedule, Decision]], *, kind: RunKind, by: UUID | None
    ) -> list[RecordedRun]:
        """Record decisions about locked schedules, and send the tasks of slots that fire.

        A slot that fired before is not returned.
        """
        columns = zip(
            *(
                (*_run_columns(row.schedule_name, decision, kind), row.revision, row.plan is not None)
                for row, decision in decisions
            ),
            strict=True,
        )
        arrays = [list(column) for column in columns]
        return await self.executor.fetch(SCHEDULES.insert_runs, *arrays, kind, by) if arrays else []

    async def advance(self, advances: Sequence[Advance], *, tz_version: str) -> None:
        columns = zip(*(advance.columns() for advance in advances), strict=True)
        await self.executor.execute(SCHEDULES.advance, *map(list, columns), tz_version)

    async def unfinished(self, name: str) -> list[UnfinishedRow]:
        return await self.executor.fetch(SCHEDULES.unfinished_of, name)

    async def locked(self, name: str) -> LockedSchedule | None:
        return await self.executor.fetch_one(SCHEDULES.lock_schedule, name)

    async def slot_outcomes(self, name: str, first: datetime, last: datetime) -> dict[datetime, RunOutcome]:
        rows = await self.executor.fetch(SCHEDULES.slot_outcomes, name, first, last)
        return {row.slot_at: row.outcome for row in rows}

    async def pause(self, name: str, *, by: str, reason: str | None) -> bool:
        """Pause a schedule; False if it is paused already or does not exist."""
        return await self.executor.fetch_one(SCHEDULES.pause, name, by, reason) is not None

    async def resume(self, name: str, *, next_run_at: datetime | None) -> bool:
        """Resume a paused schedule at `next_run_at`, or where it was paused; False if it is not paused."""
        return await self.executor.fetch_one(SCHEDULES.resume, name, next_run_at) is not None

    async def forget(self, name: str) -> bool:
        """Delete a schedule and its history."""
        return await self.executor.fetch_one(SCHEDULES.forget, name) is not None

    # Definitions

    async def try_sync_lock(self) -> bool:
        return await self.executor.fetch_single(SCHEDULES.try_sync_lock, SCHEDULE_SYNC_LOCK)

    async def stored(self, names: Iterable[str]) -> dict[str, StoredSchedule]:
        """Lock and return the schedules with these names."""
        rows = await self.executor.fetch(SCHEDULES.stored_schedules, list(names))
        return {row.schedule_name: row for row in rows}

    async def now(self) -> datetime:
        return await self.executor.fetch_single(SCHEDULES.database_time)

    async def upsert(self, owner: str, changes: Sequence[ScheduleChange], *, tz_version: str) -> None:
        rows = [
            (
                change.definition.name,
                change.definition.source,
                change.state,
                change.definition.policy.to_json(),
                change.definition.call,
                change.config_hash,
                change.revision,
                change.next_run_at,
                change.anchor_at,
            )
            for change in changes
        ]
        await self.executor.execute(SCHEDULES.upsert, owner, tz_version, *map(list, zip(*rows, strict=True)))

    async def join(self, participant: UUID, owner: str, names: Sequence[str], *, hostname: str, pid: int) -> None:
        """Register a participant with the schedules that it defines, or renew it."""
        await self.executor.execute(SCHEDULES.join, participant, owner, list(names), hostname, pid)

    async def leave(self, participant: UUID) -> None:
        await self.executor.execute(SCHEDULES.leave, participant)

    async def info(self, name: str) -> ScheduleInfo | None:
        return await self.executor.fetch_one(SCHEDULES.info, name)

    async def retire(self, owner: str) -> list[str]:
        """Retire the owner's schedules that no live participant defines; returns their names."""
        return await self.executor.fetch(SCHEDULES.retire, owner, LIVE_PARTICIPANT_S)


def _run_columns(name: str, decision: Decision, kind: RunKind) -> tuple[object, ...]:
    match decision:
        case Fire(slot=slot):
            # A manual run has no slot of its own: it gets a new id each time.
            fired_id = slot_id(f"{name}/manual" if kind is RunKind.MANUAL else name, slot)
            previous, good_until, start_at = decision.previous_slot, decision.good_until, decision.start_at
            return (name, slot, RunOutcome.FIRED, None, fired_id, previous, good_until, start_at)
        case Skip(slot=slot, reason=reason):
            return (name, slot, RunOutcome.SKIPPED, reason, None, None, None, None)
        case Wait(slot=slot, reason=reason):
            return (name, slot, RunOutcome.WAITING, reason, None, None, None, None)
        case Refuse(slot=slot, reason=reason):
            return (name, slot, RunOutcome.REFUSED, reason, None, None, None, None)
