"""Recovery of stale tasks: find them without locks, apply decisions one guarded statement at a time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias, TypeVar
from uuid import UUID

from horsies.model.events import EventRecord
from horsies.model.recovery.decision import LiveTask
from horsies.model.recovery.fleet import Fleet, FleetMember
from horsies.model.task import TaskInfo, TaskStatus
from horsies.store.connection import DRIVER_ERRORS
from horsies.store.database import SWEEP_LOCK, Database, PoolSettings, Transaction, log_suspicious_holders
from horsies.store.queries import Query, load_queries

LEADER_LOCK_INTERVAL: Final = timedelta(seconds=5)
"""How long the leader lock outlives a process that vanished during a manual sweep."""
PAGE_SIZE: Final = 1000
EXPIRY_BATCH: Final = 500

A = TypeVar("A")

RecordCallback: TypeAlias = "Callable[[Transaction, Sequence[UUID]], Awaitable[None]]"
"""Records in the same transaction that these tasks were changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerClockRow:
    now: datetime
    server_started_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleRow(LiveTask):
    """A task silent for longer than the scan's threshold, with its owner's state; `now` is the time of the scan."""

    task_name: str
    queue_name: str
    priority: int
    max_retries: int
    sent_at: datetime
    claimed_at: datetime | None
    started_at: datetime | None
    owner_id: UUID | None
    worker_hostname: str | None
    worker_pid: int | None
    worker_process_name: str | None
    failed_reason: str | None
    workflow_id: str | None
    retry_of: str | None
    last_heartbeat_at: datetime
    """Last heartbeat, or else the time of the claim or start."""
    now: datetime
    owner_state: str | None
    owner_seen_at: datetime | None
    owner_config: Mapping[str, object] | None

    def task_info(self) -> TaskInfo:
        """The task as recovery hooks receive it."""
        shared: dict[str, Any] = {
            field.name: getattr(self, field.name) for field in fields(TaskInfo) if hasattr(self, field.name)
        }
        return TaskInfo(task_id=str(self.id), worker_id=None if self.owner_id is None else str(self.owner_id), **shared)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverdueRow:
    id: UUID
    task_name: str
    queue_name: str
    priority: int
    sent_at: datetime
    enqueued_at: datetime
    good_until: datetime
    retry_count: int
    max_retries: int
    workflow_id: UUID | None
    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleScan:
    """Which tasks to read: in one status, silent for `threshold`, of one owner or all."""

    status: TaskStatus
    threshold: timedelta
    listening_since: datetime | None = None
    """Silence before this time does not count; None counts all of it."""
    owner_id: UUID | None = None
    include_on_hold: bool = False
    """Include tasks that a recovery hook put on hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryUpdate:
    """How a decision changes a task: PENDING again and due at `due_at`, or ended with `document` as its result."""

    status: TaskStatus
    due_at: datetime | None = None
    retry_count: int | None = None
    error_code: str | None = None
    document: str | None = None
    failed_reason: str | None = None
    crash_message: str | None = None
    """Error message of the attempt of a RUNNING task."""
    overlap_possible: bool = False
    events: Sequence[EventRecord] = ()
    """Kind and evidence are stored; the other columns are those of the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostWorker:
    """A worker to declare lost, identified with its last heartbeat."""

    worker_id: UUID
    last_heartbeat_at: datetime
    evidence: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryQueries:
    server_clock: Query[ServerClockRow]
    live_workers: Query[FleetMember]
    stale: Query[StaleRow]
    apply_decision: Query[UUID]
    hold: Query[UUID]
    mark_lost: Query[UUID]
    overdue: Query[OverdueRow]
    expire: Query[UUID]
    record_fleet_mismatch: Query[None]
    try_leader_lock: Query[bool]
    keep_leader_lock: Query[None]


RECOVERY = load_queries(RecoveryQueries, "horsies.store", "recovery")

_FIRST_ID: Final = UUID(int=0)
_FIRST_INSTANT: Final = datetime.min  # noqa: DTZ901  # asyncpg sends this as -infinity


@dataclass(frozen=True, slots=True)
class RecoveryStore:
    """Reads and writes of the reaper."""

    database: Database

    async def fleet(self) -> Fleet:
        """Live workers, and the database clock."""
        clock = await self.database.fetch_single(RECOVERY.server_clock)
        members = await self.database.fetch(RECOVERY.live_workers)
        return Fleet(now=clock.now, server_started_at=clock.server_started_at, members=tuple(members))

    async def stale(self, scan: StaleScan, *, after: UUID | None) -> list[StaleRow]:
        """The next page, ordered by id; the last page is shorter than PAGE_SIZE."""
        return await self.database.fetch(
            RECOVERY.stale,
            scan.status,
            after or _FIRST_ID,
            scan.threshold,
            scan.listening_since,
            scan.owner_id,
            scan.include_on_hold,
            PAGE_SIZE,
        )

    async def apply_decision(
        self, row: StaleRow, update: RecoveryUpdate, *, record: RecordCallback | None = None
    ) -> bool:
        """Apply a decision; False if the task has changed, sent a heartbeat or been put on hold since it was read.

        `record` is called in the same transaction if the decision was applied.
        """
        arguments = (
            *_as_read(row),
            update.status,
            update.due_at,
            update.retry_count,
            update.error_code,
            update.document,
            update.failed_reason,
            update.crash_message,
            update.overlap_possible,
            json.dumps([{"kind": event.kind, "evidence": event.evidence} for event in update.events]),
        )

        async def apply_and_record(transaction: Transaction, record: RecordCallback) -> bool:
            applied = await transaction.fetch(RECOVERY.apply_decision, *arguments)
            if applied:
                await record(transaction, applied)
            return bool(applied)

        if record is not None:
            return await self.database.run(lambda transaction: apply_and_record(transaction, record))
        # Without `record` a single statement is enough; it saves the round trips of BEGIN and COMMIT.
        return bool(await self.database.fetch(RECOVERY.apply_decision, *arguments))

    async def hold(self, row: StaleRow, until: datetime) -> bool:
        """Put a task on hold; False if it has changed or sent a heartbeat since it was read."""
        return bool(await self.database.fetch(RECOVERY.hold, *_as_read(row), until))

    async def mark_lost(self, workers: Sequence[LostWorker]) -> list[UUID]:
        """Declare workers lost; returns those that sent no heartbeat since they were read."""
        return await self.database.fetch(
            RECOVERY.mark_lost,
            [worker.worker_id for worker in workers],
            [worker.last_heartbeat_at for worker in workers],
            [json.dumps(worker.evidence) for worker in workers],
        )

    async def overdue(self, *, after: OverdueRow | None) -> list[OverdueRow]:
        """The next PENDING tasks past their good_until; the last page is shorter than EXPIRY_BATCH."""
        position = (_FIRST_INSTANT, _FIRST_ID) if after is None else (after.good_until, after.id)
        return await self.database.fetch(RECOVERY.overdue, *position, EXPIRY_BATCH)

    async def expire(self, documents: Mapping[UUID, str], *, record: RecordCallback | None = None) -> list[UUID]:
        """End overdue tasks, each with the result given; returns those that were still PENDING.

        `record` is called with them in the same transaction.
        """

        async def expire_and_record(transaction: Transaction) -> list[UUID]:
            ended = await transaction.fetch(RECOVERY.expire, list(documents), list(documents.values()))
            if ended and record is not None:
                await record(transaction, ended)
            return ended

        return await self.database.run(expire_and_record)

    async def record_fleet_mismatch(self, values: Mapping[str, object]) -> None:
        await self.database.execute(RECOVERY.record_fleet_mismatch, json.dumps(values, sort_keys=True))

    async def with_leader_lock(
        self, work: Callable[[], Awaitable[A]], *, interval: timedelta = LEADER_LOCK_INTERVAL
    ) -> A | None:
        """Run `work` under the leader lock; None if another worker holds it.

        The lock only saves work: two sweeps at once come to the same result, so losing it midway does no harm. It is
        held by an idle transaction on its own connection, past any pooler: a pooler may have a single server
        connection, and holding that one would block our own statements. If this process vanishes, the server ends the
        transaction after `interval`. If the lock is held by a stranger or for longer than that, the log names the
        holder.
        """
        spec = self.database.connection_spec
        lock_database = Database(spec.direct, PoolSettings(max_size=1)) if spec.is_pooled else self.database
        async with lock_database.lock_transaction() as transaction:
            limit = f"{interval // timedelta(milliseconds=1)}ms"
            if await transaction.fetch_single(RECOVERY.try_leader_lock, limit):
                keepalive = asyncio.create_task(_keep_alive(transaction, interval.total_seconds() / 3))
                try:
                    return await work()
                finally:
                    keepalive.cancel()
                    await asyncio.wait([keepalive])
        await log_suspicious_holders(self.database, SWEEP_LOCK, limit=interval)
        return None


async def _keep_alive(transaction: Transaction, every_s: float) -> None:
    """Keep an idle transaction from its timeout until this is cancelled or the connection is lost."""
    with suppress(*DRIVER_ERRORS):
        while True:
            await asyncio.sleep(every_s)
            try:
                await transaction.execute(RECOVERY.keep_leader_lock)
            except asyncio.CancelledError:
                transaction.connection.terminate()  # waiting for the answer of a server may take long
                raise


def _as_read(row: StaleRow) -> tuple[object, ...]:
    """Arguments of horsies_lock_stale: what must not have changed since the row was read."""
    return row.id, row.status, row.claim_token, row.last_heartbeat_at, row.no_restart
