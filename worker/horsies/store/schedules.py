"""Schedules and their runs: due slots, definitions, participants, and what operators change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from horsies.model.schedule.decide import (
    DueSchedule,
    FireSlot,
    RefuseSlot,
    RunKind,
    ScheduleChange,
    ScheduleState,
    SkipSlot,
    SlotOutcome,
    SlotPlan,
    StoredSchedule,
    WaitSlot,
    anchored_policy,
    complete_definition,
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


class FiredRun(NamedTuple):
    """A run of a schedule that was recorded as fired; its task is stored, its workflow run is still to be started."""

    schedule_name: str
    slot_at: datetime
    fired_hex: str
    """The digits of `fired_id`."""
    good_until: datetime | None

    @property
    def fired_id(self) -> UUID:
        return UUID(self.fired_hex)


class DecidedSlot(NamedTuple):
    """What is stored for a decision, in the order of the columns; without `outcome`, the schedule only advances."""

    slot_at: datetime | None = None
    outcome: SlotOutcome | None = None
    reason: str | None = None
    previous_slot_at: datetime | None = None
    good_until: datetime | None = None
    is_last: bool | None = None
    """Whether the schedule advances with this slot; only such rows have the columns below."""
    next_run_at: datetime | None = None
    waiting_slot_at: datetime | None = None
    fired_slot_at: datetime | None = None
    fired_count: int | None = None
    refused_count: int | None = None
    failures: int | None = None


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
    is_defined: bool
    """Whether a live participant defines it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotOutcomeRow:
    slot_at: datetime
    outcome: SlotOutcome


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
    """Slots that fired; manual runs are not counted."""
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
    record_slots: Query[SlotKey]
    add_fired_slots: Query[None]
    unfinished_of: Query[UnfinishedRow]
    pause: Query[str]
    resume: Query[str]
    lock_schedule: Query[LockedSchedule]
    slot_outcomes: Query[SlotOutcomeRow]
    forget: Query[str]
    try_sync_lock: Query[bool]
    stored_schedules: Query[StoredSchedule]
    database_time: Query[datetime]
    upsert: Query[str]
    join: Query[None]
    leave: Query[None]
    retire: Query[str]
    info: Query[ScheduleInfo]


SCHEDULES = load_queries(ScheduleQueries, "horsies.store", "schedules")


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

    async def record(
        self, plans: Sequence[tuple[DueRow, SlotPlan]], *, by: UUID | None, tz_version: str
    ) -> Sequence[FiredRun]:
        """Carry out the plans of locked schedules: record their slots, send the tasks of those that fire, and advance.

        Returns the slots that fired; one that fired before is left alone. Schedules with the same plan share its rows.
        """
        decided: list[DecidedSlot] = []
        rows: list[tuple[str, int, Decision | None]] = []
        first_numbers: dict[int, int] = {}
        for row, plan in plans:
            number = first_numbers.get(id(plan))
            if number is None:
                number = first_numbers[id(plan)] = len(decided) + 1
                decided += decided_slots(plan, failures=row.failures)
            if plan.decisions:
                rows += [(row.schedule_name, n, each) for n, each in enumerate(plan.decisions, number)]
            else:
                rows.append((row.schedule_name, number, None))
        fired, left_alone = await self._record(decided, rows, kind=RunKind.CLOCK, by=by, tz_version=tz_version)
        if left_alone:  # rare; they were counted when they fired
            counts = Counter(run.schedule_name for run in left_alone)
            await self._add_fired_slots({name: -count for name, count in counts.items()})
        return fired

    async def record_requested(self, name: str, slots: Sequence[FireSlot], *, kind: RunKind) -> Sequence[FiredRun]:
        """Fire slots that an operator asked for; the schedule does not advance."""
        rows = [(name, number, slot) for number, slot in enumerate(slots, 1)]
        fired, _ = await self._record([_decided(slot) for slot in slots], rows, kind=kind)
        if kind is RunKind.BACKFILL:
            await self._add_fired_slots({name: len(fired)})
        return fired

    async def _add_fired_slots(self, counts: Mapping[str, int]) -> None:
        await self.executor.execute(SCHEDULES.add_fired_slots, list(counts), list(counts.values()))

    async def _record(
        self,
        decided: Sequence[DecidedSlot],
        rows: Sequence[tuple[str, int, Decision | None]],
        *,
        kind: RunKind,
        by: UUID | None = None,
        tz_version: str | None = None,
    ) -> tuple[Sequence[FiredRun], Sequence[FiredRun]]:
        """Return the slots that fired, and those that are left alone, because they fired before."""
        if not rows:
            return [], []
        fired: list[FiredRun] = []
        ids: list[str] = []
        starts: list[datetime | None] = []
        for name, _, decision in rows:
            if not isinstance(decision, FireSlot):
                ids.append("")
                starts.append(None)
                continue
            slot = decision.slot
            # A manual run has no slot of its own: it gets a new id each time.
            fired_hex = slot_id_hex(f"{name}/manual" if kind is RunKind.MANUAL else name, slot)
            ids.append(fired_hex)
            starts.append(None if decision.jitter_s is None else slot + jitter(name, slot, decision.jitter_s))
            fired.append(FiredRun(name, slot, fired_hex, decision.good_until))
        names, numbers, _ = zip(*rows, strict=True)
        run_columns = (names, "\n".join(map(str, numbers)), "\n".join(ids) if fired else "", _times(starts))
        slots, outcomes, reasons, previous, limits, are_last, following, waiting, fired_slots, *counts = zip(
            *decided, strict=True
        )
        columns = (
            *(_times(slots), _texts(outcomes), _texts(reasons), _times(previous), _times(limits), _texts(are_last)),
            *(_times(following), _times(waiting), _times(fired_slots), *map(_texts, counts)),
        )
        fired_before = await self.executor.fetch(SCHEDULES.record_slots, *run_columns, *columns, kind, by, tz_version)
        if not fired_before:
            return fired, []
        return [run for run in fired if run[:2] not in fired_before], [run for run in fired if run[:2] in fired_before]

    async def unfinished(self, name: str) -> list[UnfinishedRow]:
        return await self.executor.fetch(SCHEDULES.unfinished_of, name)

    async def locked(self, name: str) -> LockedSchedule | None:
        return await self.executor.fetch_one(SCHEDULES.lock_schedule, name, LIVE_PARTICIPANT_S)

    async def slot_outcomes(self, name: str, first: datetime, last: datetime) -> dict[datetime, SlotOutcome]:
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

    async def upsert(
        self, owner: str, changes: Sequence[ScheduleChange], *, locked: Iterable[str], tz_version: str
    ) -> set[str]:
        """Store definitions; those that are not in `locked` must be new. Returns the names that were stored."""
        rows = [
            (
                change.definition.name,
                change.definition.source,
                change.state,
                change.definition.policy.to_definition(),
                change.definition.call,
                change.config_hash,
                change.revision,
                change.next_run_at,
                change.anchor_at,
            )
            for change in changes
        ]
        columns = map(list, zip(*rows, strict=True))
        return set(await self.executor.fetch(SCHEDULES.upsert, owner, tz_version, *columns, list(locked)))

    async def join(self, participant: UUID, owner: str, names: Sequence[str], *, hostname: str, pid: int) -> None:
        """Register a participant with the schedules that it defines, or renew it."""
        await self.executor.execute(SCHEDULES.join, participant, owner, list(names), hostname, pid)

    async def leave(self, participant: UUID) -> None:
        await self.executor.execute(SCHEDULES.leave, participant)

    async def info(self, name: str) -> ScheduleInfo | None:
        found = await self.executor.fetch_one(SCHEDULES.info, name)
        return found and replace(found, definition=complete_definition(found.definition))

    async def retire(self, owner: str) -> list[str]:
        """Retire the owner's schedules that no live participant defines; returns their names."""
        return await self.executor.fetch(SCHEDULES.retire, owner, LIVE_PARTICIPANT_S)


def decided_slots(plan: SlotPlan, *, failures: int) -> Sequence[DecidedSlot]:
    """What is stored for a plan: a row for each decision, and for a plan without decisions one that only advances."""
    rows = [_decided(decision) for decision in plan.decisions] or [DecidedSlot()]
    fired = [number for number, row in enumerate(rows) if row.outcome is SlotOutcome.FIRED]
    last = fired[-1] if fired else -1  # the newest slot that fires: its id is stored in the schedule
    rows[last] = rows[last]._replace(
        is_last=True,
        next_run_at=plan.next_slot,
        waiting_slot_at=plan.waiting_slot,
        fired_slot_at=rows[last].slot_at if fired else None,
        fired_count=len(fired),
        refused_count=sum(row.outcome is SlotOutcome.REFUSED for row in rows),
        failures=failures,
    )
    return rows


def _decided(decision: Decision) -> DecidedSlot:
    match decision:
        case FireSlot(slot=slot, previous_slot=previous, good_until=good_until):
            return DecidedSlot(slot, SlotOutcome.FIRED, None, previous, good_until)
        case SkipSlot(slot=slot, reason=reason):
            return DecidedSlot(slot, SlotOutcome.SKIPPED, reason)
        case WaitSlot(slot=slot, reason=reason):
            return DecidedSlot(slot, SlotOutcome.WAITING, reason)
        case RefuseSlot(slot=slot, reason=reason):
            return DecidedSlot(slot, SlotOutcome.REFUSED, reason)


# Columns are passed as text with one value per line, an empty one for None. Passing arrays instead would take the
# driver as long to encode as the server needs to insert the rows. A column without values is an empty text.


def _texts(column: Sequence[object]) -> str:
    """One value per line; None is an empty line."""
    if column.count(None) == len(column):
        return ""
    return "\n".join(["" if value is None else " ".join(str(value).split("\n")) for value in column])


def _times(column: Sequence[datetime | None]) -> str:
    return _texts([at and format_slot(at) for at in column])
