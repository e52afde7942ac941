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
    format_slot,
    jitter,
    slot_id_hex,
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
    """When the next slot is due; None if there is none."""

    now: datetime
    """The time of the check, by the database clock."""
    due_in_s: float | None
    has_undecided: bool
    """Whether a slot is left that was due before."""
    has_waiting: bool
    """Whether a slot waits for an earlier one of its schedule."""

    @property
    def is_due(self) -> bool:
        return self.due_in_s is not None and self.due_in_s <= 0


class DueRow(NamedTuple):
    """A locked schedule with due slots; `plan` is the workflow to start, None for a task."""

    schedule_name: str
    plan: str | None
    definition: str
    next_run_at: datetime
    last_slot_at: datetime | None
    waiting_slot_at: datetime | None
    anchor_at: datetime | None
    is_running: bool
    failures: int
    now: datetime
    uses_history: bool

    @property
    def key(self) -> tuple[object, ...]:
        """All that a decision depends on: equal for many schedules that are due at once."""
        return self[2:]

    def to_due(self) -> DueSchedule:
        """Raises ValueError if its stored definition is invalid."""
        return DueSchedule(
            policy=anchored_policy(self.definition, self.anchor_at),
            first_slot=self.next_run_at,
            last_fired_slot=self.last_slot_at,
            waiting_slot=self.waiting_slot_at,
            is_running=self.is_running,
            failures=self.failures,
        )


class ScheduleHistoryRow(NamedTuple):
    """What happened to the earlier slots of a schedule."""

    schedule_name: str
    is_running: bool
    failures: int


class SlotRun(NamedTuple):
    """What is recorded about a slot."""

    schedule_name: str
    slot_at: datetime
    outcome: RunOutcome
    reason: str | None = None
    fired_hex: str | None = None
    """The digits of `fired_id`."""
    previous_slot_at: datetime | None = None
    good_until: datetime | None = None
    start_at: datetime | None = None

    @property
    def fired_id(self) -> UUID | None:
        """The task or workflow run of a slot that fires."""
        return None if self.fired_hex is None else UUID(self.fired_hex)


class SlotKey(NamedTuple):
    schedule_name: str
    slot_at: datetime


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
    schedule_history: Query[ScheduleHistoryRow]
    insert_runs: Query[SlotKey]
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


class Advance(NamedTuple):
    """Where a locked schedule continues, and what its recorded slots add up to."""

    schedule_name: str
    next_run_at: datetime | None
    waiting_slot_at: datetime | None
    fired_slot_at: datetime | None
    """The newest slot that fired."""
    fired_hex: str | None
    fired_count: int
    refused_count: int
    failures: int

    @classmethod
    def of(cls, row: DueRow, plan: SlotPlan, runs: Sequence[SlotRun]) -> Advance:
        fired = [run for run in runs if run.outcome is RunOutcome.FIRED]
        newest = fired[0] if len(fired) == 1 else max(fired, key=lambda run: run.slot_at, default=None)
        refused = len(runs) - len(fired) and sum(run.outcome is RunOutcome.REFUSED for run in runs)
        return cls(
            row.schedule_name,
            plan.next_slot,
            plan.waiting_slot,
            newest and newest.slot_at,
            newest and newest.fired_hex,
            len(fired),
            refused,
            row.failures,
        )


@dataclass(frozen=True, slots=True)
class ScheduleStore:
    """Schedules, in a database or in a transaction."""

    executor: Executor

    async def next_check(self, after: datetime | None = None) -> NextCheck:
        """Look for the next slot, of those after the given instant."""
        return await self.executor.fetch_single(SCHEDULES.next_check, after)

    async def lock_due(self, *, limit: int, name: str | None = None) -> list[DueRow]:
        """Lock due schedules for the rest of the transaction, except those that another one has locked."""
        return await self._with_history(await self.executor.fetch(SCHEDULES.lock_due, limit, name))

    async def lock_waiting(self, *, limit: int) -> list[DueRow]:
        """Lock schedules whose waiting slot can fire, like `lock_due`."""
        return await self._with_history(await self.executor.fetch(SCHEDULES.lock_waiting, limit))

    async def _with_history(self, rows: list[DueRow]) -> list[DueRow]:
        """Look up the history of locked schedules whose policy uses it."""
        names = [row.schedule_name for row in rows if row.uses_history]
        if not names:
            return rows
        found = await self.executor.fetch(SCHEDULES.schedule_history, names)
        history = {name: (is_running, failures) for name, is_running, failures in found}
        unused = (False, 0)
        completed: list[DueRow] = []
        for row in rows:
            is_running, failures = history.get(row.schedule_name, unused)
            completed.append(row._replace(is_running=is_running, failures=failures))
        return completed

    async def record(self, runs: Sequence[SlotRun], *, kind: RunKind, by: UUID | None) -> Sequence[SlotRun]:
        """Record slots of locked schedules, and send the tasks of those that fire.

        Returns the recorded ones: a slot that fired before is left alone.
        """
        if not runs:
            return runs
        names, slots, outcomes, reasons, ids, *times = zip(*runs, strict=True)
        columns = (names, _times(slots), "\n".join(outcomes), _texts(reasons), _texts(ids), *map(_times, times))
        left_alone = await self.executor.fetch(SCHEDULES.insert_runs, *columns, kind, by)
        return [run for run in runs if run[:2] not in left_alone] if left_alone else runs

    async def advance(self, advances: Sequence[Advance], *, tz_version: str) -> None:
        names, following, waiting, fired, ids, *counts = zip(*advances, strict=True)
        columns = (names, *map(_times, (following, waiting, fired)), *map(_texts, (ids, *counts)))
        await self.executor.execute(SCHEDULES.advance, *columns, tz_version)

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


def slot_run(name: str, decision: Decision, kind: RunKind = RunKind.CLOCK) -> SlotRun:
    """What is recorded for a decision about a slot."""
    match decision:
        case Fire(slot=slot):
            # A manual run has no slot of its own: it gets a new id each time.
            fired_hex = slot_id_hex(f"{name}/manual" if kind is RunKind.MANUAL else name, slot)
            start_at = None if decision.jitter_s is None else slot + jitter(name, slot, decision.jitter_s)
            previous, good_until = decision.previous_slot, decision.good_until
            return SlotRun(name, slot, RunOutcome.FIRED, None, fired_hex, previous, good_until, start_at)
        case Skip(slot=slot, reason=reason):
            return SlotRun(name, slot, RunOutcome.SKIPPED, reason)
        case Wait(slot=slot, reason=reason):
            return SlotRun(name, slot, RunOutcome.WAITING, reason)
        case Refuse(slot=slot, reason=reason):
            return SlotRun(name, slot, RunOutcome.REFUSED, reason)


# Columns are passed as text with one value per line, an empty one for None. Passing arrays instead would take the
# driver as long to encode as the server needs to insert the rows. A column without values is an empty text.


def _texts(column: Sequence[object]) -> str:
    """One value per line; None is an empty line."""
    if column.count(None) == len(column):
        return ""
    return "\n".join(["" if value is None else " ".join(str(value).split("\n")) for value in column])


def _times(column: Sequence[datetime | None]) -> str:
    return _texts([at and format_slot(at) for at in column])
