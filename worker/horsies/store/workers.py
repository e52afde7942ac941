"""Workers: registration, heartbeats and published snapshots; the catalog of the tasks that they registered."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from horsies.codec.results import error_document
from horsies.model.bounds import format_ms
from horsies.model.result import WorkerLoad, WorkerStateSnapshot
from horsies.model.task_result import OperationalErrorCode, TaskError
from horsies.store.claims import ClaimRef, claim_arrays
from horsies.store.database import Database, Executor
from horsies.store.queries import Query, column_values, load_queries


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
    catalog_hash: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHeartbeatRow:
    """Database time of a stored heartbeat, and the worker's state."""

    at: datetime
    state: str

    @property
    def is_lost(self) -> bool:
        return self.state == WorkerState.LOST


class HeartbeatRole(StrEnum):
    """Who sends the heartbeats of a task: its worker while it is CLAIMED, on behalf of its child while RUNNING."""

    CLAIMER = "claimer"
    RUNNER = "runner"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRenewal:
    """New length of a lease, and the maximum age of a claim that may still be renewed."""

    length_s: float
    max_claim_age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReply:
    """Current state of a task for which a heartbeat was sent.

    The heartbeat was stored only if the claim was still valid (`is_held`). `status` is None if the task was deleted;
    `error_code` is set once it has ended.
    """

    id: UUID
    claim_token: int
    is_held: bool
    status: str | None
    current_token: int | None
    kill_requested: bool
    error_code: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DueWork:
    """What a worker may have to do now, and in how many seconds its next delayed task is due; None without one."""

    has_due_tasks: bool
    next_due_s: float | None
    has_outbox_entries: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerQueries:
    register: Query[datetime]
    worker_heartbeat: Query[WorkerHeartbeatRow]
    set_state: Query[None]
    insert_snapshot: Query[None]
    newest_states: Query[WorkerStateSnapshot]
    state_history: Query[WorkerStateSnapshot]
    due_work: Query[DueWork]
    task_heartbeats: Query[HeartbeatReply]


WORKERS = load_queries(WorkerQueries, "horsies.store", "workers")


@dataclass(frozen=True, slots=True)
class WorkerStore:
    """Workers of one database and their heartbeats."""

    database: Database

    async def register(self, worker: WorkerRegistration) -> datetime:
        """Insert the row of a starting worker; returns its start by the database clock."""
        return await self.database.fetch_single(WORKERS.register, *column_values(worker))

    async def heartbeat(self, worker_id: UUID, health: Mapping[str, object]) -> WorkerHeartbeatRow | None:
        """Store a heartbeat with health data; None if the worker's row was deleted."""
        return await self.database.fetch_one(WORKERS.worker_heartbeat, worker_id, json.dumps(health))

    async def task_heartbeats(
        self,
        role: HeartbeatRole,
        pids: Mapping[ClaimRef, int],
        *,
        hostname: str,
        lease: LeaseRenewal | None = None,
        events: Sequence[str] = (),
    ) -> list[HeartbeatReply]:
        """Send heartbeats for claimed or running tasks, each with the process it is in; publishes `events`.

        With `lease` the leases of claimed tasks are renewed; one that has expired is not.
        """
        renewal = (None, None) if lease is None else (lease.length_s, lease.max_claim_age_s)
        return await self.database.fetch(
            WORKERS.task_heartbeats, *claim_arrays(pids), list(pids.values()), role, hostname, *renewal, events
        )

    async def set_state(self, worker_id: UUID, state: WorkerState) -> None:
        """Set the state; a lost worker can only become STOPPED."""
        await self.database.execute(WORKERS.set_state, worker_id, state)

    async def write_snapshot(self, load: WorkerLoad) -> None:
        await self.database.execute(WORKERS.insert_snapshot, *column_values(load))

    async def due_work(self, queues: Sequence[str]) -> DueWork:
        """What a worker of these queues polls for."""
        (due,) = await self.database.fetch(WORKERS.due_work, queues)
        return due

    async def newest_states(self) -> list[WorkerStateSnapshot]:
        """Newest snapshot of each worker, newest first."""
        return await self.database.fetch(WORKERS.newest_states)

    async def state_history(self, worker_id: UUID, limit: int | None) -> list[WorkerStateSnapshot]:
        """Snapshots of one worker, newest first."""
        return await self.database.fetch(WORKERS.state_history, worker_id, limit)


# The task catalog


BATCH_ROWS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisteredTask:
    """A task name that no worker of this queue has registered."""

    queue_name: str
    task_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingTasks:
    """Due tasks of one name in one queue."""

    queue_name: str
    task_name: str
    tasks: int
    oldest_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogQueries:
    publish: Query[None]
    expire: Query[None]
    unregistered: Query[UnregisteredTask]
    fail_unregistered: Query[UUID]
    waiting: Query[WaitingTasks]


CATALOG = load_queries(CatalogQueries, "horsies.store", "catalog")


@dataclass(frozen=True, slots=True)
class CatalogStore:
    """The catalog of one database."""

    database: Executor

    async def publish(self, catalog_hash: str, entries_json: str) -> None:
        """Store the tasks of a worker; entries are a JSON array of objects with the columns of the table."""
        await self.database.execute(CATALOG.publish, catalog_hash, entries_json)

    async def expire(self) -> None:
        """Delete catalogs that no worker has used for 7 days."""
        await self.database.execute(CATALOG.expire)

    async def unregistered(self, *, for_s: float = 0) -> list[UnregisteredTask]:
        """Names that a live worker does not know and that no worker of the same queue has known for `for_s` seconds."""
        return await self.database.fetch(CATALOG.unregistered, for_s)

    async def waiting(self, unregistered: Sequence[UnregisteredTask]) -> list[WaitingTasks]:
        """Due tasks of these names; names without any are left out."""
        queues, names = [each.queue_name for each in unregistered], [each.task_name for each in unregistered]
        return await self.database.fetch(CATALOG.waiting, queues, names)

    async def fail_unregistered(self, *, grace_s: float) -> int:
        """Fail tasks that have been due for `grace_s` seconds and that no worker has registered for as long."""
        failed, unregistered = 0, await self.unregistered(for_s=grace_s)
        documents = [_document(each, grace_s) for each in unregistered]
        queues, names = [each.queue_name for each in unregistered], [each.task_name for each in unregistered]
        while unregistered:
            ids = await self.database.fetch(CATALOG.fail_unregistered, queues, names, documents, grace_s, BATCH_ROWS)
            failed += len(ids)
            if len(ids) < BATCH_ROWS:
                break
        return failed


def _document(task: UnregisteredTask, grace_s: float) -> str:
    grace = format_ms(round(grace_s * 1000))
    message = f"no worker of the queue {task.queue_name!r} has registered the task {task.task_name!r} for {grace}"
    return error_document(TaskError(error_code=OperationalErrorCode.WORKER_RESOLUTION_ERROR, message=message))
