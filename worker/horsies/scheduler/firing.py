"""Fires due slots: locks due schedules, decides about their slots, and carries the decisions out in one transaction."""

from __future__ import annotations

import asyncio
import logging
import zoneinfo
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from uuid import UUID
from zoneinfo import ZoneInfoNotFoundError

import tzdata
from pydantic import TypeAdapter

from horsies.errors import format_one_line, is_transient
from horsies.model.events import EventKind, EventRecord
from horsies.model.schedule.decide import Decision, FireSlot, RefuseSlot, SkipSlot, SlotPlan, decide_slots
from horsies.model.task import TaskStatus
from horsies.model.task_result import OutcomeCode, TaskError
from horsies.model.workflow.plan import WorkflowPlan
from horsies.store.database import Database, Executor, Transaction
from horsies.store.operators import EventStore, Target, Termination, end_tasks
from horsies.store.schedules import DueRow, FiredRun, ScheduleStore
from horsies.store.workflows import WorkflowStore
from horsies.workflows.control import cancel
from horsies.workflows.start import store_run

FIRST_BATCH = 100
"""Schedules fired in the first transaction of a check."""
BATCH = 1000
"""Schedules fired in each further transaction."""
CONCURRENT_BATCHES = 2
"""Further transactions at a time: while the server writes one, this process decides about the slots of the other."""
MAX_LOGGED = 20
"""Slots of one transaction that are logged one by one; above that, only their number is logged."""

logger = logging.getLogger("horsies.scheduler")


@dataclass(frozen=True, slots=True, kw_only=True)
class FiringResult:
    """What `fire_due` or `fire_all_due` did."""

    schedules: int = 0
    fired: int = 0
    has_more: bool = False
    """Whether more slots are probably due now."""


async def fire_all_due(
    database: Database, by: UUID | None, stop: asyncio.Event, *, includes_waiting: bool = True
) -> FiringResult:
    """Fire until no slot is due, or `stop` is set; several batches at a time while there are many."""

    async def fire_batches() -> Sequence[FiringResult]:
        results: list[FiringResult] = []
        while not stop.is_set():
            results.append(await fire_due(database, by, includes_waiting=False))
            if not results[-1].has_more:
                break
        return results

    results = [await fire_due(database, by, limit=FIRST_BATCH, includes_waiting=includes_waiting)]
    if results[0].has_more:
        # If one of them fails, the others finish before its error is raised.
        for found in await asyncio.gather(*(fire_batches() for _ in range(CONCURRENT_BATCHES)), return_exceptions=True):
            if isinstance(found, BaseException):
                raise found
            results += found
    return FiringResult(schedules=sum(each.schedules for each in results), fired=sum(each.fired for each in results))


async def fire_due(
    executor: Executor, by: UUID | None = None, *, limit: int = BATCH, includes_waiting: bool = True
) -> FiringResult:
    """Decide about all due slots of up to `limit` schedules in one transaction, and record them as fired `by` a worker.

    `includes_waiting` adds slots that waited for an earlier run of their schedule to end. After a permanent error each
    schedule gets its own transaction, so that one faulty schedule does not delay the others.
    """
    try:
        return await executor.run(
            lambda transaction: _Firing(transaction, by).run(limit=limit, includes_waiting=includes_waiting)
        )
    except Exception as error:
        if is_transient(error) or not isinstance(executor, Database):
            raise
        return await _fire_one_by_one(executor, by, limit)


async def _fire_one_by_one(database: Database, by: UUID | None, limit: int) -> FiringResult:
    names = await database.run(lambda transaction: _due_names(transaction, limit))
    fired = 0
    for name in names:
        try:
            result = await database.run(lambda transaction, name=name: _Firing(transaction, by).run(limit=1, name=name))
        except Exception as error:
            if is_transient(error):
                raise
            reason = format_one_line(error) or type(error).__qualname__
            logger.exception("schedule refused", extra={"schedule": name})
            await database.run(lambda transaction, name=name, reason=reason: _refuse(transaction, name, by, reason))
        else:
            fired += result.fired
    return FiringResult(schedules=len(names), fired=fired, has_more=len(names) == limit)


async def _due_names(transaction: Transaction, limit: int) -> list[str]:
    return [row.schedule_name for row in await ScheduleStore(transaction).lock_due(limit=limit)]


async def _refuse(transaction: Transaction, name: str, by: UUID | None, reason: str) -> None:
    """Record the due slots of a schedule that cannot be sent as refused, and continue with the next slot."""
    for row in await ScheduleStore(transaction).lock_due(limit=1, name=name):
        await _Firing(transaction, by).refuse(row, reason)


class _Firing:
    """The decisions and writes of one transaction."""

    def __init__(self, transaction: Transaction, by: UUID | None) -> None:
        self._transaction = transaction
        self._store = ScheduleStore(transaction)
        self._by = by

    async def run(self, *, limit: int, name: str | None = None, includes_waiting: bool = False) -> FiringResult:
        rows = await self._store.lock_due(limit=limit, name=name)
        is_full = len(rows) == limit
        rows += await self._store.lock_waiting(limit=limit) if includes_waiting else []
        plans: list[tuple[DueRow, SlotPlan]] = []
        known: dict[tuple[object, ...], SlotPlan] = {}
        for row in rows:
            plan = known.get(row.key) or known.setdefault(row.key, _decide(row))
            if plan.pause_reason is None:
                plans.append((row, plan))
            else:
                await self._pause(row.schedule_name, plan.pause_reason)
        fired = await self._carry_out(plans)
        if len(fired) > MAX_LOGGED:
            logger.info("schedules fired", extra={"count": len(fired)})
        else:
            for run in fired:
                slot = run.slot_at.isoformat(timespec="seconds")
                fields = {"schedule": run.schedule_name, "slot": slot, "id": str(run.fired_id)}
                logger.info("schedule fired", extra=fields)
        return FiringResult(
            schedules=len(rows),
            fired=len(fired),
            has_more=is_full or any(plan.has_more for _, plan in plans),
        )

    async def refuse(self, row: DueRow, reason: str) -> None:
        plan = decide_slots(replace(row.to_due(), is_running=False), row.now)
        refused = tuple(_refused(decision, reason) for decision in plan.decisions)
        await self._carry_out([(row, replace(plan, decisions=refused, waiting_slot=None, replaces_running=False))])

    async def _pause(self, name: str, reason: str) -> None:
        logger.warning("schedule paused", extra={"schedule": name, "reason": reason})
        await self._store.pause(name, by="horsies", reason=reason)
        await self._event(EventKind.SCHEDULE_PAUSED, name, reason=reason)

    async def _carry_out(self, plans: Sequence[tuple[DueRow, SlotPlan]]) -> Sequence[FiredRun]:
        for row, plan in plans:
            if plan.replaces_running:
                await cancel_unfinished(self._transaction, row.schedule_name)
        fired = await self._store.record(plans, by=self._by, tz_version=zone_data_version())
        workflows = {row.schedule_name: row.plan for row, _ in plans if row.plan is not None}
        for slot in fired if workflows else ():
            if slot.schedule_name in workflows:
                await start_run(self._transaction, workflows[slot.schedule_name], slot)
        for row, plan in plans:
            if len(plan.decisions) != 1 or not isinstance(plan.decisions[0], FireSlot):
                await self._report(row.schedule_name, plan.decisions)
        return fired

    async def _report(self, name: str, decisions: Sequence[Decision]) -> None:
        if skipped := [decision for decision in decisions if isinstance(decision, SkipSlot)]:
            slots = [decision.slot.isoformat() for decision in skipped[-20:]]
            reasons = sorted({decision.reason for decision in skipped})
            await self._event(EventKind.SCHEDULE_SKIPPED, name, count=len(skipped), slots=slots, reasons=reasons)
        if refused := [decision for decision in decisions if isinstance(decision, RefuseSlot)]:
            slots = [decision.slot.isoformat() for decision in refused[-20:]]
            await self._event(EventKind.SCHEDULE_REFUSED, name, slots=slots, reason=refused[-1].reason)

    async def _event(self, kind: EventKind, name: str, **evidence: object) -> None:
        record = EventRecord(kind=kind, worker_id=self._by, evidence={"schedule": name, **evidence})
        await EventStore(self._transaction).record(record)


def _decide(row: DueRow) -> SlotPlan:
    """Decide about a schedule; one whose zone or definition cannot be read here is to be paused."""
    try:
        due = row.to_due()
        try:
            return decide_slots(due, row.now)
        except ZoneInfoNotFoundError:
            return SlotPlan(pause_reason=f"unknown time zone {due.policy.timezone}")
    except ValueError as error:
        return SlotPlan(pause_reason=f"invalid definition: {format_one_line(error)}")


def _refused(decision: Decision, reason: str) -> Decision:
    return RefuseSlot(slot=decision.slot, reason=reason) if isinstance(decision, FireSlot) else decision


async def start_run(transaction: Transaction, workflow_plan: str, fired: FiredRun) -> None:
    """Start the workflow run of a recorded slot."""
    workflow = parse_plan(workflow_plan)
    nodes = tuple(replace(node, good_until=node.good_until or fired.good_until) for node in workflow.nodes)
    await store_run(WorkflowStore(transaction), replace(workflow, nodes=nodes), fired.fired_id)


async def cancel_unfinished(transaction: Transaction, name: str) -> None:
    """Cancel the unfinished tasks and runs of a schedule and kill their processes, for the overlap policy `replace`."""
    unfinished = await ScheduleStore(transaction).unfinished(name)
    for row in unfinished:
        if row.workflow_id is not None:
            await cancel(transaction, row.workflow_id, kill=True)
    targets = [
        Target(id=row.task_id, status=row.status, claim_token=row.claim_token)
        for row in unfinished
        if row.task_id is not None and row.status is not None and row.claim_token is not None
    ]
    if targets:
        error = TaskError(
            error_code=OutcomeCode.TASK_CANCELLED, message=f"replaced by a later slot of schedule {name!r}"
        )
        end = Termination(kind="cancel", status=TaskStatus.CANCELLED, error=error, kill=True)
        await end_tasks(transaction, sorted(targets, key=lambda target: target.id), end)


@cache
def _plan_adapter() -> TypeAdapter[WorkflowPlan]:
    return TypeAdapter(WorkflowPlan)  # built when it is first used: most apps schedule tasks only


def encode_plan(plan: WorkflowPlan) -> str:
    """The workflow of a schedule as JSON text."""
    return _plan_adapter().dump_json(plan).decode()


@lru_cache(maxsize=256)
def parse_plan(document: str) -> WorkflowPlan:
    return _plan_adapter().validate_json(document)


@cache
def zone_data_version() -> str:
    """The version of the time zone data in use, such as 2026a; the system's data comes before that of `tzdata`."""
    for folder in zoneinfo.TZPATH:
        try:
            first_line = (Path(folder) / "tzdata.zi").read_text(encoding="utf-8").partition("\n")[0]
        except OSError:
            continue
        return first_line.removeprefix("# version ").strip()
    return tzdata.IANA_VERSION
