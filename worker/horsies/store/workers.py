"""Workers seen through the database: what they wrote about themselves, and a call that they answer."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from horsies.errors import DatabaseUnreachable
from horsies.model.result import WorkerStateSnapshot
from horsies.store.claims import hold_columns
from horsies.store.connection import explain, is_failure_of_database
from horsies.store.queries import Query, load

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from horsies.store.claims import Hold
    from horsies.store.connection import Link
    from horsies.store.database import Database


_JSON_COLUMNS = frozenset({"queue_priorities", "queue_max_concurrency", "recovery_config"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    is_sent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRow:
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
    ping: Query[Sent]
    newest_states: Query[StateRow]
    state_history: Query[StateRow]


WORKERS = load(WorkerQueries, "horsies.store", "workers")


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


class PingLine:
    """A connection on which a ping was sent and its answers arrive."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._heard: asyncio.Queue[str | None] = asyncio.Queue()

    async def answer(self) -> str:
        """The next answer, as it was sent; raises when the connection is lost."""
        payload = await self._heard.get()
        if payload is None:
            raise DatabaseUnreachable(f"the connection to {self._link.masked_url} was lost while waiting for workers")
        return payload

    def hear(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        self._heard.put_nowait(str(payload))

    def hear_the_end(self, _connection: object) -> None:
        self._heard.put_nowait(None)


@asynccontextmanager
async def pinging(link: Link, *, reply_channel: str, message: str) -> AsyncGenerator[PingLine]:
    """Listen on the reply channel, then ping all workers; a direct link, for LISTEN needs a connection of its own."""
    line = PingLine(link)
    connection = await link.connect()
    try:
        connection.add_termination_listener(line.hear_the_end)
        await connection.add_listener(reply_channel, line.hear)
        await connection.fetch(WORKERS.ping.sql, message)
        yield line
    except Exception as error:
        if is_failure_of_database(error) and not isinstance(error, TimeoutError):
            raise explain(error, where=link.masked_url) from error
        raise
    finally:
        connection.remove_termination_listener(line.hear_the_end)
        connection.terminate()


def _snapshot(row: StateRow) -> WorkerStateSnapshot:
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
class WorkerRun:
    """One run of a worker process, and the recovery settings that it lives by."""

    worker_id: UUID
    hostname: str
    pid: int
    version: str
    queues: Sequence[str]
    processes: int
    recovery_config: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The limits of a run and its load at this moment."""

    run: WorkerRun
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
class Registered:
    started_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerBeat:
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
class Told:
    told: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetQueries:
    pong: Query[Told]
    register: Query[Registered]
    beat: Query[WorkerBeat]
    set_state: Query[None]
    snapshot: Query[None]
    next_due: Query[NextDue]


FLEET = load(FleetQueries, "horsies.store", "fleet")


@dataclass(frozen=True, slots=True)
class FleetStore:
    """Rows of workers in one database."""

    database: Database

    async def register(self, run: WorkerRun) -> datetime:
        """Write the row of a run that is starting; returns the database's time of it."""
        (row,) = await self.database.fetch(
            FLEET.register,
            run.worker_id,
            run.hostname,
            run.pid,
            run.version,
            run.queues,
            run.processes,
            json.dumps(run.recovery_config),
        )
        return row.started_at

    async def beat(self, worker_id: UUID, health: Mapping[str, object]) -> WorkerBeat | None:
        """Say that the worker lives and how it fares; None when its row is gone."""
        return await self.database.fetch_one(FLEET.beat, worker_id, json.dumps(health))

    async def set_state(self, worker_id: UUID, state: WorkerState) -> None:
        """A run that was declared lost can only be stopped."""
        await self.database.execute(FLEET.set_state, worker_id, state)

    async def write_snapshot(self, snapshot: Snapshot) -> None:
        run = snapshot.run
        await self.database.execute(
            FLEET.snapshot,
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

    async def pong(self, channel: str, answer: str) -> None:
        """Answer a ping on the channel that it named."""
        await self.database.fetch(FLEET.pong, channel, answer)

    async def next_due_s(self, queues: Sequence[str]) -> float | None:
        """Seconds of the database's clock until the soonest task that is not yet due; None when there is none."""
        (row,) = await self.database.fetch(FLEET.next_due, queues)
        return row.delay_s


# Signs of life for what a worker holds; the answer tells it what it no longer does.


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A task that is alive in the process `pid`."""

    hold: Hold
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """How long a claim is renewed for, and how old it may be for that."""

    length_s: float
    longest_age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
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
    beat: Query[Answer]


BEATS = load(BeatQueries, "horsies.store", "beats")


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatStore:
    """Heartbeats in one database, sent from one host."""

    database: Database
    hostname: str

    async def claimer_beats(
        self, beats: Sequence[Beat], *, lease: Lease | None = None, events: Sequence[str] = ()
    ) -> list[Answer]:
        """Beat for CLAIMED tasks and renew their leases; one that has lapsed already is left to whoever takes it."""
        return await self._beat("claimer", beats, lease, events)

    async def runner_beats(self, beats: Sequence[Beat], *, events: Sequence[str] = ()) -> list[Answer]:
        """Beat for RUNNING tasks, and tell viewers how many live."""
        return await self._beat("runner", beats, None, events)

    async def _beat(self, role: str, beats: Sequence[Beat], lease: Lease | None, events: Sequence[str]) -> list[Answer]:
        return await self.database.fetch(
            BEATS.beat,
            *hold_columns([beat.hold for beat in beats]),
            [beat.pid for beat in beats],
            role,
            self.hostname,
            lease and lease.length_s,
            lease and lease.longest_age_s,
            events,
        )
