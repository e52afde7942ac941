"""Work whose owner fell silent: found without a lock, settled one guarded call at a time."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias, TypeVar, cast
from uuid import UUID

from horsies.model.recovery.fleet import Fleet, FleetMember
from horsies.model.task import TaskStatus
from horsies.store.database import Database, PoolSettings, Transaction
from horsies.store.queries import Query, load_queries
from horsies.store.tasks import IdRow  # `load` reads the annotations

PAGE_SIZE: Final = 1000
EXPIRY_BATCH: Final = 500

A = TypeVar("A")

RecordCallback: TypeAlias = "Callable[[Transaction, Sequence[UUID]], Awaitable[None]]"
"""Writes down that these tasks were moved, in the transaction that moves them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerClockRow:
    now: datetime
    server_started_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveWorkerRow:
    worker_id: UUID
    state: str
    last_heartbeat_at: datetime
    recovery_config: str
    health: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleRow:
    """A task past the judge's own threshold, with what is known of its owner; `now` is the instant of the scan."""

    id: UUID
    task_name: str
    status: str
    queue_name: str
    priority: int
    claim_token: int
    retry_count: int
    max_retries: int
    crash_count: int
    flags: str
    task_options: str
    sent_at: datetime
    enqueued_at: datetime
    claimed_at: datetime | None
    started_at: datetime | None
    good_until: datetime | None
    owner_id: UUID | None
    worker_hostname: str | None
    worker_pid: int | None
    worker_process_name: str | None
    failed_reason: str | None
    workflow_id: UUID | None
    retry_of: UUID | None
    recovery_hold_until: datetime | None
    no_restart: str | None
    last_heartbeat_at: datetime
    """Its newest beat, else the claim or the start."""
    now: datetime
    owner_state: str | None
    owner_seen_at: datetime | None
    owner_config: str | None


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
class RecoveryAppliedRow:
    is_applied: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderLockRow:
    is_ours: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleScan:
    """Which tasks to look at: those in one state, quiet for `threshold`, of one owner or of all."""

    status: TaskStatus
    threshold: timedelta
    listening_since: datetime | None = None
    """Silence before it does not count; None for plain ages."""
    owner_id: UUID | None = None
    include_on_hold: bool = False
    """Those too that a hook wants left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryEvent:
    """An event of the task at hand, written in the transaction that settles it."""

    kind: str
    evidence: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryUpdate:
    """What a row becomes. Without a `status` it stays as it is, and is held."""

    status: TaskStatus | None = None
    due_at: datetime | None = None
    retry_count: int | None = None
    error_code: str | None = None
    document: str | None = None
    """The result of a task that ends, as JSON."""
    failed_reason: str | None = None
    crash_message: str | None = None
    """What the attempt of a RUNNING task is said to have died of."""
    overlap_possible: bool = False
    hold_until: datetime | None = None
    events: Sequence[RecoveryEvent] = field(default=())

    def to_json(self) -> str:
        document = None if self.document is None else json.loads(self.document)
        return json.dumps({**asdict(self), "document": document}, default=datetime.isoformat)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostWorker:
    """A worker that is to be declared lost, by its last sign of life."""

    worker_id: UUID
    last_heartbeat_at: datetime
    evidence: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryQueries:
    server_clock: Query[ServerClockRow]
    live_workers: Query[LiveWorkerRow]
    stale: Query[StaleRow]
    apply_decision: Query[RecoveryAppliedRow]
    mark_lost: Query[IdRow]
    overdue: Query[OverdueRow]
    expire: Query[IdRow]
    record_fleet_mismatch: Query[None]
    try_leader_lock: Query[LeaderLockRow]


RECOVERY = load_queries(RecoveryQueries, "horsies.store", "recovery")

_FIRST_ID: Final = UUID(int=0)
_FIRST_INSTANT: Final = datetime.min  # noqa: DTZ901  # the driver's word for minus infinity


@dataclass(frozen=True, slots=True)
class RecoveryStore:
    """Recovery in one database."""

    database: Database

    async def fleet(self) -> Fleet:
        """The workers that should be alive, and the database's time."""
        (clock,) = await self.database.fetch(RECOVERY.server_clock)
        members = tuple(_member(row) for row in await self.database.fetch(RECOVERY.live_workers))
        return Fleet(now=clock.now, server_started_at=clock.server_started_at, members=members)

    async def stale(self, scan: StaleScan, *, after: UUID | None) -> list[StaleRow]:
        """The next page, in the order of ids; shorter than `PAGE` where it is the last."""
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
        self, row: StaleRow, move: RecoveryUpdate, *, record: RecordCallback | None = None
    ) -> bool:
        """Carry out a verdict; False where the task has moved or beaten since it was read, or is held by now.

        `record` writes down that it was carried out, in the same transaction.
        """
        judged = (row.id, row.status, row.claim_token, row.last_heartbeat_at, row.no_restart, move.to_json())

        async def carry_out(transaction: Transaction) -> bool:
            (answer,) = await transaction.fetch(RECOVERY.apply_decision, *judged)
            if answer.is_applied and record is not None:
                await record(transaction, [row.id])
            return answer.is_applied

        if record is not None:
            return await self.database.run(carry_out)
        (answer,) = await self.database.fetch(RECOVERY.apply_decision, *judged)
        return answer.is_applied

    async def mark_lost(self, workers: Sequence[LostWorker]) -> list[UUID]:
        """Those of the workers that are now declared lost."""
        marked = await self.database.fetch(
            RECOVERY.mark_lost,
            [each.worker_id for each in workers],
            [each.last_heartbeat_at for each in workers],
            [json.dumps(each.evidence) for each in workers],
        )
        return [row.id for row in marked]

    async def overdue(self, *, after: OverdueRow | None) -> list[OverdueRow]:
        """The next PENDING tasks past their good_until; fewer than `EXPIRY_BATCH` at the end."""
        place = (_FIRST_INSTANT, _FIRST_ID) if after is None else (after.good_until, after.id)
        return await self.database.fetch(RECOVERY.overdue, *place, EXPIRY_BATCH)

    async def expire(self, documents: Mapping[UUID, str], *, record: RecordCallback | None = None) -> list[UUID]:
        """End overdue tasks with the result given for each; returns those that were still waiting.

        `record` writes down which they were, in the same transaction.
        """

        async def end(transaction: Transaction) -> list[UUID]:
            rows = await transaction.fetch(RECOVERY.expire, list(documents), list(documents.values()))
            ended = [row.id for row in rows]
            if ended and record is not None:
                await record(transaction, ended)
            return ended

        return await self.database.run(end)

    async def record_fleet_mismatch(self, values: Mapping[str, object]) -> None:
        await self.database.execute(RECOVERY.record_fleet_mismatch, json.dumps(values, sort_keys=True))

    async def with_leader_lock(self, work: Callable[[], Awaitable[A]]) -> A | None:
        """Do `work` while nobody else sweeps; None where somebody does.

        The turn is a lock of a transaction that does nothing else, on a connection of its own, and an economy: two
        sweeps at once would cost twice and settle the same. So a turn that is lost meanwhile changes nothing. It is
        taken past a pooler, which may have one connection for all of us: who kept that would wait for himself.
        """
        direct = self.database.connection_spec.direct
        keeper = self.database if direct is None else Database(direct, PoolSettings(max_size=1))
        async with keeper.lock_transaction() as transaction:
            (turn,) = await transaction.fetch(RECOVERY.try_leader_lock)
            return await work() if turn.is_ours else None


def _member(row: LiveWorkerRow) -> FleetMember:
    return FleetMember(
        worker_id=row.worker_id,
        state=row.state,
        last_heartbeat_at=row.last_heartbeat_at,
        stored_config=_object(row.recovery_config),
        health=_object(row.health),
    )


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
