"""Pausing, resuming, running, backfilling, syncing and forgetting schedules; each action has one audit entry."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfoNotFoundError

from horsies.errors import NotFound, Refused
from horsies.model.schedule.decide import (
    FireSlot,
    RunKind,
    ScheduleDefinition,
    SchedulePolicy,
    ScheduleState,
    SlotOutcome,
    anchored_policy,
    good_until,
)
from horsies.scheduler.firing import start_run
from horsies.scheduler.sync import store_definitions
from horsies.store.database import Transaction
from horsies.store.operators import AuditProgress, record_audit
from horsies.store.schedules import LIVE_PARTICIPANT_S, FiredRun, LockedSchedule, ScheduleStore
from horsies_ops.actions.report import (
    BACKFILL_SCHEDULE,
    FORGET_SCHEDULE,
    PAUSE_SCHEDULE,
    RESUME_SCHEDULE,
    RUN_SCHEDULE,
    SYNC_SCHEDULES,
    ActionReport,
)

if TYPE_CHECKING:
    from horsies_ops.ops import Ops

MAX_BACKFILL: Final = 10_000
"""Slots in one backfill."""

_MOMENT = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillPlan:
    """The preview of a backfill: the slots that would fire, and how many fired before and stay as they are."""

    name: str
    slots: tuple[datetime, ...]
    previous_slots: tuple[datetime | None, ...]
    """The slot of the range before each of `slots`, whether it fires or not."""
    already_fired: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """What an action did; `fired` are the runs that it started."""

    affected: int
    matched: int = 1
    fired: Sequence[FiredRun] = ()
    warnings: tuple[str, ...] = ()


async def pause_schedule(ops: Ops, name: str, *, reason: str | None = None, dry_run: bool = False) -> ActionReport:
    """Fire no more slots of a schedule until it is resumed; the pause survives deploys."""

    async def pause(store: ScheduleStore, _locked: LockedSchedule) -> _Change:
        return _Change(affected=int(await store.pause(name, by=ops.session.operator.name, reason=reason)))

    return await _change(ops, PAUSE_SCHEDULE, name, pause, reason=reason, dry_run=dry_run)


async def resume_schedule(
    ops: Ops, name: str, *, catch_up: bool = False, reason: str | None = None, dry_run: bool = False
) -> ActionReport:
    """Resume a paused schedule at the first slot after now; with `catch_up`, where it was paused."""

    async def resume(store: ScheduleStore, locked: LockedSchedule) -> _Change:
        policy = _policy(locked)
        following = None if catch_up else policy.next_slot(locked.now)
        return _Change(affected=int(await store.resume(name, next_run_at=following)))

    return await _change(ops, RESUME_SCHEDULE, name, resume, reason=reason, dry_run=dry_run)


async def run_schedule(ops: Ops, name: str, *, reason: str | None = None, dry_run: bool = False) -> ActionReport:
    """Send the task of a schedule now, or start its workflow run; its slots stay as they are."""

    async def run(store: ScheduleStore, locked: LockedSchedule) -> _Change:
        fired = await _fire(store, locked, [(None, locked.now)], RunKind.MANUAL)
        return _Change(affected=len(fired), fired=fired)

    return await _change(ops, RUN_SCHEDULE, name, run, reason=reason, dry_run=dry_run)


async def plan_backfill(ops: Ops, name: str, first: datetime, last: datetime) -> BackfillPlan:
    """Preview a backfill of the slots from `first` to `last`, both included; raises Refused if there are too many."""

    async def plan(transaction: Transaction) -> BackfillPlan:
        store = ScheduleStore(transaction)
        return await _plan_backfill(store, await _locked(store, name), first, last)

    return await ops.session.run(plan)


async def backfill_schedule(
    ops: Ops, name: str, first: datetime, last: datetime, *, reason: str | None = None, dry_run: bool = False
) -> ActionReport:
    """Fire the slots of a range that were skipped, refused or never decided; a slot that fired stays as it is."""

    async def backfill(store: ScheduleStore, locked: LockedSchedule) -> _Change:
        plan = await _plan_backfill(store, locked, first, last)
        matched = len(plan.slots) + plan.already_fired
        if dry_run:
            return _Change(matched=matched, affected=len(plan.slots))
        slots = list(zip(plan.previous_slots, plan.slots, strict=True))
        fired = await _fire(store, locked, slots, RunKind.BACKFILL)
        return _Change(matched=matched, affected=len(fired), fired=fired)

    scope = {"from": first.isoformat(), "until": last.isoformat()}
    return await _change(ops, BACKFILL_SCHEDULE, name, backfill, reason=reason, dry_run=dry_run, scope=scope)


async def forget_schedule(ops: Ops, name: str, *, reason: str | None = None, dry_run: bool = False) -> ActionReport:
    """Delete a schedule and its history; refused while a process that defines it is running."""

    async def forget(store: ScheduleStore, locked: LockedSchedule) -> _Change:
        if locked.state is ScheduleState.ACTIVE and locked.source != "dynamic" and locked.is_defined:
            hint = f"remove it from the app, or stop its processes; a killed one counts for {LIVE_PARTICIPANT_S:g} s"
            raise Refused(f"schedule {name!r} is defined by app {locked.owner!r}, which is running", hint=hint)
        return _Change(affected=int(await store.forget(name)))

    return await _change(ops, FORGET_SCHEDULE, name, forget, reason=reason, dry_run=dry_run)


async def sync_schedules(
    ops: Ops,
    owner: str,
    definitions: Sequence[ScheduleDefinition],
    *,
    reason: str | None = None,
    dry_run: bool = False,
) -> ActionReport:
    """Store the definitions of an app, also those that newer ones had replaced: a deliberate rollback."""

    async def sync(transaction: Transaction) -> _Change:
        report = await store_definitions(transaction, owner, definitions, force=True)
        notes = tuple(f"{change.definition.name}: {change.note}" for change in report.changes if change.note)
        return _Change(matched=len(definitions), affected=len(report.changes), warnings=notes)

    return await _audited(ops, SYNC_SCHEDULES, {"owner": owner}, sync, reason=reason, dry_run=dry_run)


async def _change(
    ops: Ops,
    action: str,
    name: str,
    change: Callable[[ScheduleStore, LockedSchedule], Awaitable[_Change]],
    *,
    reason: str | None,
    dry_run: bool,
    scope: dict[str, str] | None = None,
) -> ActionReport:
    async def work(transaction: Transaction) -> _Change:
        store = ScheduleStore(transaction)
        return await change(store, await _locked(store, name))

    return await _audited(ops, action, {"schedule": name, **(scope or {})}, work, reason=reason, dry_run=dry_run)


class _DryRun(Exception):
    """Rolls the transaction of a dry run back."""

    def __init__(self, change: _Change) -> None:
        super().__init__()
        self.change = change


async def _audited(
    ops: Ops,
    action: str,
    scope: dict[str, str],
    change: Callable[[Transaction], Awaitable[_Change]],
    *,
    reason: str | None,
    dry_run: bool,
) -> ActionReport:
    """Make a change and write its audit entry in one transaction; a dry run makes it as well and rolls it back."""
    session = ops.session

    async def work(transaction: Transaction) -> ActionReport:
        return await report(transaction, await change(transaction))

    async def preview(transaction: Transaction) -> ActionReport:
        raise _DryRun(await change(transaction))

    async def report(transaction: Transaction, done: _Change) -> ActionReport:
        affected = 0 if dry_run else done.affected
        entry = session.audit_entry(action, reason, scope, matched=done.matched, is_dry_run=dry_run)
        ids = tuple(run.fired_id for run in done.fired)
        progress = AuditProgress(affected=affected, skipped=done.matched - done.affected, task_ids=ids)
        return ActionReport(
            action=action,
            matched=done.matched if not dry_run else done.affected,
            affected=affected,
            skipped_count=done.matched - done.affected,
            audit_id=await record_audit(transaction, entry, progress),
            new_ids=() if dry_run else ids,
            is_dry_run=dry_run,
            warnings=done.warnings,
        )

    if not dry_run:
        return await session.run(work)
    try:
        return await session.run(preview)
    except _DryRun as stopped:
        found = stopped.change
    return await session.run(lambda transaction: report(transaction, found))


async def _locked(store: ScheduleStore, name: str) -> LockedSchedule:
    locked = await store.locked(name)
    if locked is None:
        raise NotFound(f"no schedule {name!r}", hint="horsies schedule list shows all of them")
    return locked


def _policy(locked: LockedSchedule) -> SchedulePolicy:
    """The policy with a zone that this machine knows; raises Refused."""
    policy = anchored_policy(locked.definition, locked.anchor_at)
    try:
        _ = policy.zone
    except ZoneInfoNotFoundError as cause:
        hint = "update the time zone data of this machine, or correct the zone of the schedule"
        raise Refused(
            f"unknown time zone {policy.timezone!r} of schedule {locked.schedule_name!r}", hint=hint
        ) from cause
    return policy


async def _plan_backfill(store: ScheduleStore, locked: LockedSchedule, first: datetime, last: datetime) -> BackfillPlan:
    policy = _policy(locked)
    if last < first:
        raise Refused(f"the range from {first} to {last} ends before it begins", hint="give an earlier start")
    if first < _EPOCH:
        raise Refused(f"{first} is before 1970", hint="backfill a shorter range")
    last = min(last, locked.now)
    start, slots = policy.next_slot(first - _MOMENT), list[datetime]()
    for slot in takewhile(lambda slot: slot <= last, policy.slots_from(start) if start else ()):
        slots.append(slot)
        if len(slots) > MAX_BACKFILL:
            hint = "backfill a shorter range"
            raise Refused(f"more than {MAX_BACKFILL:,} slots from {first} to {last}", hint=hint)
    outcomes = await store.slot_outcomes(locked.schedule_name, first, last)
    due = {
        slot: previous
        for previous, slot in zip((None, *slots), slots, strict=False)
        if outcomes.get(slot) is not SlotOutcome.FIRED
    }
    return BackfillPlan(
        name=locked.schedule_name,
        slots=tuple(due),
        previous_slots=tuple(due.values()),
        already_fired=len(slots) - len(due),
    )


async def _fire(
    store: ScheduleStore,
    locked: LockedSchedule,
    slots: Sequence[tuple[datetime | None, datetime]],
    kind: RunKind,
) -> Sequence[FiredRun]:
    """Fire slots, each given with the one before it."""
    policy = anchored_policy(locked.definition, locked.anchor_at)
    if policy.good_for == "next":
        policy = _policy(locked)
    # The task of an old slot may start although the time that it was good for has passed: an operator wants it now.
    limit = good_until(policy, locked.now)
    due = [FireSlot(slot=slot, previous_slot=previous, good_until=limit) for previous, slot in slots]
    fired = await store.record_requested(locked.schedule_name, due, kind=kind)
    if locked.plan is not None and isinstance(store.executor, Transaction):
        for slot in fired:
            await start_run(store.executor, locked.plan, slot)
    return fired
