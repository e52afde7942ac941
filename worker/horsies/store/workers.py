"""Workers seen through the database: what they wrote about themselves, and a call that they answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from horsies.errors import DatabaseUnreachable
from horsies.model.result import WorkerStateSnapshot
from horsies.store.claims import ClaimRef, claim_arrays
from horsies.store.connection import ConnectionSpec, is_database_error, translate_error
from horsies.store.database import Database
from horsies.store.queries import Query, load_queries

_JSON_COLUMNS = frozenset({"queue_priorities", "queue_max_concurrency", "recovery_config"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PingSentRow:
    is_sent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStateRow:
    worker_id: str
    snapshot_at: datetime
    hostname: str
    pid: int
    processes: int
    max_claim_batch: int
    max_claim_per_worker: int
    cluster_wide_cap: int | None
    queues: list[str]
    queue_priorities: str
    queue_max_concurrency: str
    recovery_config: str
    tasks_running: int
    tasks_claimed: int
    memory_usage_mb: float | None
    memory_percent: float | None
    cpu_percent: float | None
    children_memory_mb: float | None
    worker_started_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerQueries:
    send_ping: Query[PingSentRow]
    newest_states: Query[WorkerStateRow]
    state_history: Query[WorkerStateRow]


WORKERS = load_queries(WorkerQueries, "horsies.store", "workers")


@dataclass(frozen=True, slots=True)
class WorkerStore:
    """Workers of one database."""

    database: Database

    async def newest_states(self) -> list[WorkerStateSnapshot]:
        """The newest snapshot of each worker, newest first."""
        return [_snapshot(row) for row in await self.database.fetch(WORKERS.newest_states)]

    async def state_history(self, worker_id: UUID, limit: int | None) -> list[WorkerStateSnapshot]:
        """The snapshots of one worker, newest first."""
        return [_snapshot(row) for row in await self.database.fetch(WORKERS.state_history, worker_id, limit)]


class PingReplies:
    """A connection on which a ping was sent and its answers arrive."""

    def __init__(self, link: ConnectionSpec) -> None:
        self._link = link
        self._heard: asyncio.Queue[str | None] = asyncio.Queue()

    async def next_reply(self) -> str:
        """The next answer, as it was sent; raises when the connection is lost."""
        payload = await self._heard.get()
        if payload is None:
            raise DatabaseUnreachable(f"the connection to {self._link.masked_url} was lost while waiting for workers")
        return payload

    def on_reply(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        self._heard.put_nowait(str(payload))

    def on_disconnect(self, _connection: object) -> None:
        self._heard.put_nowait(None)


@asynccontextmanager
async def open_ping(
    connection_spec: ConnectionSpec, *, reply_channel: str, message: str
) -> AsyncGenerator[PingReplies]:
    """Listen on the reply channel, then ping all workers; a direct link, for LISTEN needs a connection of its own."""
    line = PingReplies(connection_spec)
    connection = await connection_spec.connect()
    try:
        connection.add_termination_listener(line.on_disconnect)
        await connection.add_listener(reply_channel, line.on_reply)
        await connection.fetch(WORKERS.send_ping.sql, message)
        yield line
    except Exception as error:
        if is_database_error(error) and not isinstance(error, TimeoutError):
            raise translate_error(error, where=connection_spec.masked_url) from error
        raise
    finally:
        connection.remove_termination_listener(line.on_disconnect)
        connection.terminate()


def _snapshot(row: WorkerStateRow) -> WorkerStateSnapshot:
    values: dict[str, Any] = {each.name: getattr(row, each.name) for each in fields(row)}
    parsed = {name: json.loads(values[name]) for name in _JSON_COLUMNS}
    return WorkerStateSnapshot(**values | parsed)


# A worker's own rows: that it is there, how it fares, and when it next has something to do.


class WorkerState(StrEnum):
    """Where a run of a worker stands; `lost` is what others declare, `stopped` is final."""

    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    STOPPED = "stopped"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRegistration:
    """One run of a worker process, and the recovery settings that it lives by."""

    worker_id: UUID
    hostname: str
    pid: int
    version: str
    queues: Sequence[str]
    processes: int
    recovery_config: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSnapshot:
    """The limits of a run and its load at this moment."""

    worker: WorkerRegistration
    started_at: datetime
    max_claim_batch: int
    max_claim_per_worker: int
    cluster_wide_cap: int | None
    queue_priorities: Mapping[str, int]
    queue_max_concurrency: Mapping[str, int | None]
    tasks_running: int
    tasks_claimed: int
    memory_usage_mb: float | None = None
    memory_percent: float | None = None
    cpu_percent: float | None = None
    children_memory_mb: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredWorkerRow:
    started_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHeartbeatRow:
    """A worker beat that was written, at this instant of the database, and what the row says of the worker."""

    at: datetime
    state: str

    @property
    def is_lost(self) -> bool:
        return self.state == WorkerState.LOST


@dataclass(frozen=True, slots=True, kw_only=True)
class NextDue:
    delay_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PongSentRow:
    told: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetQueries:
    send_pong: Query[PongSentRow]
    register: Query[RegisteredWorkerRow]
    worker_heartbeat: Query[WorkerHeartbeatRow]
    set_state: Query[None]
    insert_snapshot: Query[None]
    next_due: Query[NextDue]


FLEET = load_queries(FleetQueries, "horsies.store", "fleet")


@dataclass(frozen=True, slots=True)
class WorkerLifecycleStore:
    """Rows of workers in one database."""

    database: Database

    async def register(self, worker: WorkerRegistration) -> datetime:
        """Write the row of a run that is starting; returns the database's time of it."""
        (row,) = await self.database.fetch(
            FLEET.register,
            worker.worker_id,
            worker.hostname,
            worker.pid,
            worker.version,
            worker.queues,
            worker.processes,
            json.dumps(worker.recovery_config),
        )
        return row.started_at

    async def heartbeat(self, worker_id: UUID, health: Mapping[str, object]) -> WorkerHeartbeatRow | None:
        """Say that the worker lives and how it fares; None when its row is gone."""
        return await self.database.fetch_one(FLEET.worker_heartbeat, worker_id, json.dumps(health))

    async def set_state(self, worker_id: UUID, state: WorkerState) -> None:
        """A run that was declared lost can only be stopped."""
        await self.database.execute(FLEET.set_state, worker_id, state)

    async def write_snapshot(self, snapshot: WorkerSnapshot) -> None:
        run = snapshot.worker
        await self.database.execute(
            FLEET.insert_snapshot,
            run.worker_id,
            snapshot.started_at,
            run.hostname,
            run.pid,
            run.processes,
            snapshot.max_claim_batch,
            snapshot.max_claim_per_worker,
            snapshot.cluster_wide_cap,
            run.queues,
            json.dumps(snapshot.queue_priorities),
            json.dumps(snapshot.queue_max_concurrency),
            json.dumps(run.recovery_config),
            snapshot.tasks_running,
            snapshot.tasks_claimed,
            snapshot.memory_usage_mb,
            snapshot.memory_percent,
            snapshot.cpu_percent,
            snapshot.children_memory_mb,
        )

    async def send_pong(self, channel: str, answer: str) -> None:
        """Answer a ping on the channel that it named."""
        await self.database.fetch(FLEET.send_pong, channel, answer)

    async def next_due_s(self, queues: Sequence[str]) -> float | None:
        """Seconds of the database's clock until the soonest task that is not yet due; None when there is none."""
        (row,) = await self.database.fetch(FLEET.next_due, queues)
        return row.delay_s


# Signs of life for what a worker holds; the answer tells it what it no longer does.


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHeartbeat:
    """A task that is alive in the process `pid`."""

    claim: ClaimRef
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRenewal:
    """How long a claim is renewed for, and how old it may be for that."""

    length_s: float
    max_claim_age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReply:
    """How a task stands that was beaten for. Only where `is_held` was a beat written.

    `status` is None where the task is gone; `error_code` is that of its end.
    """

    id: UUID
    claim_token: int
    is_held: bool
    status: str | None
    current_token: int | None
    kill_requested: bool
    error_code: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatQueries:
    task_heartbeats: Query[HeartbeatReply]


BEATS = load_queries(BeatQueries, "horsies.store", "beats")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatStore:
    """Heartbeats in one database, sent from one host."""

    database: Database
    hostname: str

    async def send_claimer_heartbeats(
        self, beats: Sequence[TaskHeartbeat], *, lease: LeaseRenewal | None = None, events: Sequence[str] = ()
    ) -> list[HeartbeatReply]:
        """Beat for CLAIMED tasks and renew their leases; one that has lapsed already is left to whoever takes it."""
        return await self._send_heartbeats("claimer", beats, lease, events)

    async def send_runner_heartbeats(
        self, beats: Sequence[TaskHeartbeat], *, events: Sequence[str] = ()
    ) -> list[HeartbeatReply]:
        """Beat for RUNNING tasks, and tell viewers how many live."""
        return await self._send_heartbeats("runner", beats, None, events)

    async def _send_heartbeats(
        self, role: str, beats: Sequence[TaskHeartbeat], lease: LeaseRenewal | None, events: Sequence[str]
    ) -> list[HeartbeatReply]:
        return await self.database.fetch(
            BEATS.task_heartbeats,
            *claim_arrays([beat.claim for beat in beats]),
            [beat.pid for beat in beats],
            role,
            self.hostname,
            lease and lease.length_s,
            lease and lease.max_claim_age_s,
            events,
        )
