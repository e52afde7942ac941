"""A worker's own rows: that it is there, how it fares, and when it next has something to do."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from horsies.store.queries import Query, load

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from horsies.store.db import Database


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
