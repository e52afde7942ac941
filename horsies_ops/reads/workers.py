"""Workers as operators see them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Final, cast
from uuid import UUID

from horsies.client.workers import WorkerPing
from horsies.model.events import EventKind
from horsies.model.recovery.fleet import is_silent, longest_thresholds, parse_config, parse_instant
from horsies.model.result import WorkerPong
from horsies.model.settings import RecoveryConfig
from horsies.model.task import parse_id
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database
from horsies.store.queries import Query, load_queries
from horsies.store.recovery import RecoveryStore
from horsies.store.workers import WorkerState, open_ping
from horsies_ops.reads.events import events

MAX_WORKERS: Final = 1_000
MAX_SNAPSHOTS: Final = 2_000
INSTANTS: Final = ("listening_since", "outage_grace_until", "last_pass_at")
"""What a worker's health tells the time of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCount:
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerBase:
    """What the columns say of a worker."""

    worker_id: UUID
    hostname: str
    pid: int
    version: str
    state: str
    queues: Sequence[str]
    processes: int
    started_at: datetime
    last_heartbeat_at: datetime
    heartbeat_age: timedelta
    is_stale: bool
    tasks_running: int
    tasks_claimed: int
    children_busy: int
    """Its processes that run something; one of them may run several tasks."""
    cpu_percent: float | None
    memory_mb: float | None
    """Of the worker and its children together."""
    memory_percent: float | None
    listener: str | None
    disabled_operations: Sequence[str]
    warnings: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWorker(WorkerBase):
    health_json: str
    config_json: str

    def row(self) -> WorkerRow:
        """As operators see it; an instant in its health that is none is left out, and hides no other worker."""
        health, config = _document(self.health_json), parse_config(_document(self.config_json))
        facts: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(WorkerBase)}
        instants: dict[str, Any] = {name: parse_instant(health, name) for name in INSTANTS}
        return WorkerRow(**facts, **instants, is_silent=is_silent(self.heartbeat_age, config))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow(WorkerBase):
    """A run of a worker that has not stopped. Load is of its newest snapshot, the tasks are those it holds now."""

    listening_since: datetime | None
    outage_grace_until: datetime | None
    last_pass_at: datetime | None
    is_silent: bool
    """Several of its own beats are missing; it may be dead, though the silence that proves it is longer."""

    @property
    def is_presumed_dead(self) -> bool:
        """Lost, or silent for so long that it will be declared so."""
        return self.is_stale or self.state == WorkerState.LOST

    @property
    def is_alive(self) -> bool:
        """Neither given up nor silent."""
        return not (self.is_presumed_dead or self.is_silent)

    @property
    def display_state(self) -> str:
        """The one word for how it is: its state, or `silent` and later `stale` until somebody declares it lost."""
        if self.is_alive or self.state == WorkerState.LOST:
            return self.state
        return "stale" if self.is_stale else "silent"


def _document(text: str) -> dict[str, object]:
    found = json.loads(text)
    return cast("dict[str, object]", found) if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRow:
    """The load of a worker at one moment."""

    at: datetime
    processes: int
    tasks_running: int
    tasks_claimed: int
    cpu_percent: float | None
    memory_percent: float | None
    memory_mb: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReadQueries:
    live: Query[WorkerCount]
    active: Query[StoredWorker]
    history: Query[SnapshotRow]


WORKER_READS = load_queries(WorkerReadQueries, "horsies_ops.reads", "workers")


async def count_live_workers(database: Database, *, threshold: timedelta) -> int:
    """How many workers have not stopped and have given a sign of life within `threshold`."""
    (found,) = await database.fetch(WORKER_READS.live, threshold)
    return found.count


async def list_active_workers(database: Database, threshold: timedelta) -> tuple[WorkerRow, ...]:
    """Workers that have not stopped, the newest beat first; stale ones have been silent for `threshold`."""
    return tuple(stored.row() for stored in await database.fetch(WORKER_READS.active, threshold, MAX_WORKERS))


async def worker_history(database: Database, worker_id: str | UUID, window: timedelta) -> tuple[SnapshotRow, ...]:
    """The load of a worker in the last `window`, the oldest snapshot first; `ValueError` for what is no id."""
    identity = UUID(parse_id(str(worker_id)))
    return tuple(await database.fetch(WORKER_READS.history, identity, window, MAX_SNAPSHOTS))


# Which workers answer.


async def ping_workers(
    direct_spec: ConnectionSpec, *, timeout_s: float, worker_id: UUID | None = None, min_responses: int | None = None
) -> tuple[WorkerPong, ...]:
    """Those that answer in time, first come first; `enough` of them, or the one asked for, end the wait."""
    call = WorkerPing(target=None if worker_id is None else str(worker_id), min_responses=min_responses)
    async with open_ping(direct_spec, reply_channel=call.reply_channel, message=call.message) as line:
        await call.collect(line, timeout_s)
    return tuple(call.pongs.values())


# Who keeps the house: whether workers sweep and clean by themselves, and when one last did.


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceStatus:
    """What the live workers do unasked. Without one, nothing is done but by hand."""

    at: datetime
    config: RecoveryConfig | None
    """The settings of the most patient live worker; None when nobody lives."""
    last_pass_at: datetime | None
    """When a worker that lives last went through its duties."""
    last_pass_by: UUID | None
    last_retention_at: datetime | None
    """When records past their time were last found and deleted, by whomever."""


async def maintenance_status(database: Database) -> MaintenanceStatus:
    fleet = await RecoveryStore(database).fleet()
    passes = {each.worker_id: at for each in fleet.live if (at := each.health_instant("last_pass_at")) is not None}
    last = max(passes, key=lambda worker_id: passes[worker_id], default=None)
    deleted = await events(database, kinds=(EventKind.RETENTION_FINISHED,), limit=1)
    return MaintenanceStatus(
        at=fleet.now,
        config=longest_thresholds(fleet.live),
        last_pass_at=None if last is None else passes[last],
        last_pass_by=last,
        last_retention_at=deleted[0].at if deleted else None,
    )
