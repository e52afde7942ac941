"""Workers: registration, heartbeats, published snapshots and pings."""

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


class WorkerState(StrEnum):
    """State of a worker. `lost` is set by other workers; `stopped` is final."""

    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    STOPPED = "stopped"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRegistration:
    """Identity and recovery settings of one worker process."""

    worker_id: UUID
    hostname: str
    pid: int
    version: str
    queues: Sequence[str]
    processes: int
    recovery_config: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSnapshot:
    """Limits and current load of a worker."""

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
class WorkerHeartbeatRow:
    """Database time of a stored heartbeat, and the worker's state."""

    at: datetime
    state: str

    @property
    def is_lost(self) -> bool:
        return self.state == WorkerState.LOST


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHeartbeat:
    """A heartbeat for a task in process `pid`."""

    claim: ClaimRef
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRenewal:
    """New length of a lease, and the maximum age of a claim that may still be renewed."""

    length_s: float
    max_claim_age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReply:
    """Current state of a task for which a heartbeat was sent. The heartbeat was stored only if `is_held`.

    `status` is None if the task was deleted; `error_code` is set once it has ended.
    """

    id: UUID
    claim_token: int
    is_held: bool
    status: str | None
    current_token: int | None
    kill_requested: bool
    error_code: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStateRow:
    """A stored snapshot; the columns of _JSON_COLUMNS are JSON text."""

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
    register: Query[datetime]
    worker_heartbeat: Query[WorkerHeartbeatRow]
    set_state: Query[None]
    insert_snapshot: Query[None]
    newest_states: Query[WorkerStateRow]
    state_history: Query[WorkerStateRow]
    send_ping: Query[bool]
    send_pong: Query[bool]
    next_due: Query[float | None]
    task_heartbeats: Query[HeartbeatReply]


WORKERS = load_queries(WorkerQueries, "horsies.store", "workers")

_JSON_COLUMNS = frozenset({"queue_priorities", "queue_max_concurrency", "recovery_config"})


@dataclass(frozen=True, slots=True)
class WorkerStore:
    """Workers of one database."""

    database: Database

    async def register(self, worker: WorkerRegistration) -> datetime:
        """Insert the row of a starting worker; returns its start by the database clock."""
        return await self.database.fetch_single(
            WORKERS.register,
            worker.worker_id,
            worker.hostname,
            worker.pid,
            worker.version,
            worker.queues,
            worker.processes,
            json.dumps(worker.recovery_config),
        )

    async def heartbeat(self, worker_id: UUID, health: Mapping[str, object]) -> WorkerHeartbeatRow | None:
        """Store a heartbeat with health data; None if the worker's row was deleted."""
        return await self.database.fetch_one(WORKERS.worker_heartbeat, worker_id, json.dumps(health))

    async def set_state(self, worker_id: UUID, state: WorkerState) -> None:
        """Set the state; a lost worker can only become STOPPED."""
        await self.database.execute(WORKERS.set_state, worker_id, state)

    async def write_snapshot(self, snapshot: WorkerSnapshot) -> None:
        worker = snapshot.worker
        await self.database.execute(
            WORKERS.insert_snapshot,
            worker.worker_id,
            snapshot.started_at,
            worker.hostname,
            worker.pid,
            worker.processes,
            snapshot.max_claim_batch,
            snapshot.max_claim_per_worker,
            snapshot.cluster_wide_cap,
            worker.queues,
            json.dumps(snapshot.queue_priorities),
            json.dumps(snapshot.queue_max_concurrency),
            json.dumps(worker.recovery_config),
            snapshot.tasks_running,
            snapshot.tasks_claimed,
            snapshot.memory_usage_mb,
            snapshot.memory_percent,
            snapshot.cpu_percent,
            snapshot.children_memory_mb,
        )

    async def send_pong(self, channel: str, answer: str) -> None:
        """Answer a ping on its reply channel."""
        await self.database.execute(WORKERS.send_pong, channel, answer)

    async def next_due_s(self, queues: Sequence[str]) -> float | None:
        """Seconds until the next delayed task of these queues is due; None if there is none."""
        return await self.database.fetch_single(WORKERS.next_due, queues)

    async def newest_states(self) -> list[WorkerStateSnapshot]:
        """Newest snapshot of each worker, newest first."""
        return [_snapshot(row) for row in await self.database.fetch(WORKERS.newest_states)]

    async def state_history(self, worker_id: UUID, limit: int | None) -> list[WorkerStateSnapshot]:
        """Snapshots of one worker, newest first."""
        return [_snapshot(row) for row in await self.database.fetch(WORKERS.state_history, worker_id, limit)]


def _snapshot(row: WorkerStateRow) -> WorkerStateSnapshot:
    values: dict[str, Any] = {column.name: getattr(row, column.name) for column in fields(row)}
    parsed = {name: json.loads(values[name]) for name in _JSON_COLUMNS}
    return WorkerStateSnapshot(**values | parsed)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatStore:
    """Sends heartbeats for the tasks of workers on one host."""

    database: Database
    hostname: str

    async def send_claimer_heartbeats(
        self, heartbeats: Sequence[TaskHeartbeat], *, lease: LeaseRenewal | None = None, events: Sequence[str] = ()
    ) -> list[HeartbeatReply]:
        """Send heartbeats for CLAIMED tasks and renew their leases; an expired lease is not renewed."""
        return await self._send_heartbeats("claimer", heartbeats, lease, events)

    async def send_runner_heartbeats(
        self, heartbeats: Sequence[TaskHeartbeat], *, events: Sequence[str] = ()
    ) -> list[HeartbeatReply]:
        """Send heartbeats for RUNNING tasks and notify viewers of their number."""
        return await self._send_heartbeats("runner", heartbeats, None, events)

    async def _send_heartbeats(
        self, role: str, heartbeats: Sequence[TaskHeartbeat], lease: LeaseRenewal | None, events: Sequence[str]
    ) -> list[HeartbeatReply]:
        return await self.database.fetch(
            WORKERS.task_heartbeats,
            *claim_arrays([heartbeat.claim for heartbeat in heartbeats]),
            [heartbeat.pid for heartbeat in heartbeats],
            role,
            self.hostname,
            lease and lease.length_s,
            lease and lease.max_claim_age_s,
            events,
        )


class PingReplies:
    """Replies to a ping, received on one connection."""

    def __init__(self, connection_spec: ConnectionSpec) -> None:
        self._connection_spec = connection_spec
        self._replies: asyncio.Queue[str | None] = asyncio.Queue()

    async def next_reply(self) -> str:
        """Wait for the next reply; raises DatabaseUnreachable if the connection is lost."""
        payload = await self._replies.get()
        if payload is None:
            where = self._connection_spec.masked_url
            raise DatabaseUnreachable(f"connection to {where} lost while waiting for ping replies")
        return payload

    def on_reply(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        self._replies.put_nowait(str(payload))

    def on_disconnect(self, _connection: object) -> None:
        self._replies.put_nowait(None)


@asynccontextmanager
async def open_ping(
    connection_spec: ConnectionSpec, *, reply_channel: str, message: str
) -> AsyncGenerator[PingReplies]:
    """Listen on the reply channel, then ping all workers. LISTEN needs a direct connection, past any pooler."""
    replies = PingReplies(connection_spec)
    connection = await connection_spec.connect()
    try:
        connection.add_termination_listener(replies.on_disconnect)
        # Before the ping is sent, or the first replies could be missed.
        await connection.add_listener(reply_channel, replies.on_reply)
        await connection.fetch(WORKERS.send_ping.sql, message)
        yield replies
    except Exception as error:
        # TimeoutError is an OSError too, but here it is the caller's own time limit.
        if is_database_error(error) and not isinstance(error, TimeoutError):
            raise translate_error(error, where=connection_spec.masked_url) from error
        raise
    finally:
        # Removed first: our own terminate() is not a lost connection.
        connection.remove_termination_listener(replies.on_disconnect)
        connection.terminate()
