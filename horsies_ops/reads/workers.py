"""Workers: state and load, history, pings, and the maintenance they do."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from horsies.client.workers import WorkerPing
from horsies.model.events import EventKind
from horsies.model.recovery.fleet import MAX_GAP_INTERVALS, is_silent, longest_thresholds, parse_config, parse_instant
from horsies.model.result import WorkerPong
from horsies.model.settings import RecoveryConfig
from horsies.model.task import parse_id
from horsies.store.listen import open_ping
from horsies.store.queries import Query, load_queries
from horsies.store.recovery import RecoveryStore
from horsies.store.workers import WorkerState
from horsies_ops.reads.events import events

if TYPE_CHECKING:
    from horsies_ops.ops import Ops

MAX_WORKERS: Final = 1_000
MAX_SNAPSHOTS: Final = 2_000
HEALTH_INSTANTS: Final = ("listening_since", "outage_grace_until", "last_pass_at")
"""Fields of a worker's health that are timestamps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerBase:
    """The columns of a worker row, and the tasks it owns now."""

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
    """Number of child processes that run at least one task."""
    cpu_percent: float | None
    memory_mb: float | None
    """Of the worker and its children together, from the newest snapshot."""
    memory_percent: float | None
    """The same memory, of the memory of the host."""
    listener: str | None
    disabled_operations: Sequence[str]
    warnings: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWorker(WorkerBase):
    health: Mapping[str, object]
    config: Mapping[str, object]

    def to_row(self) -> WorkerRow:
        """Parse health and settings; malformed timestamps become None, so that one worker cannot break the list."""
        columns: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(WorkerBase)}
        instants: dict[str, Any] = {name: parse_instant(self.health, name) for name in HEALTH_INSTANTS}
        config = parse_config(self.config)
        return WorkerRow(
            **columns,
            **instants,
            is_silent=is_silent(self.heartbeat_age, config),
            is_degraded="degraded" in (self.health.get("children"), self.health.get("listener")),
            heartbeat_interval=timedelta(milliseconds=config.effective_worker_heartbeat_ms),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow(WorkerBase):
    """A worker that has not stopped. CPU and memory are from its newest snapshot."""

    listening_since: datetime | None
    outage_grace_until: datetime | None
    last_pass_at: datetime | None
    is_silent: bool
    """It missed several heartbeats and may be dead, but has not reached the threshold for being stale."""
    is_degraded: bool
    """It cannot start all its children, has lost its fork server, or receives no notifications.

    `warnings` says which.
    """
    heartbeat_interval: timedelta

    @property
    def is_presumed_dead(self) -> bool:
        """Marked lost, or stale and about to be marked lost."""
        return self.is_stale or self.state == WorkerState.LOST

    @property
    def is_responsive(self) -> bool:
        """Neither silent nor presumed dead."""
        return not (self.is_presumed_dead or self.is_silent)

    @property
    def is_late(self) -> bool:
        """A heartbeat is overdue, so its state and load may be out of date."""
        return self.heartbeat_age > MAX_GAP_INTERVALS * self.heartbeat_interval

    @property
    def problems(self) -> list[str]:
        """What the worker reports about itself."""
        failing = [f"{operation} keeps failing and is retried rarely" for operation in self.disabled_operations]
        return [*failing, *self.warnings]

    @property
    def display_state(self) -> str:
        """Its state; `degraded` while it lacks something, `late`, `silent` or `stale` without heartbeats."""
        if self.state == WorkerState.LOST:
            return self.state
        if not self.is_responsive:
            return "stale" if self.is_stale else "silent"
        if self.is_late:
            return "late"
        return "degraded" if self.is_degraded and self.state == WorkerState.RUNNING else self.state


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRow:
    """The load of a worker at one instant."""

    at: datetime
    processes: int
    tasks_running: int
    tasks_claimed: int
    cpu_percent: float | None
    memory_percent: float | None
    memory_mb: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReadQueries:
    active: Query[StoredWorker]
    history: Query[SnapshotRow]


WORKER_READS = load_queries(WorkerReadQueries, "horsies_ops.reads", "workers")


async def list_active_workers(ops: Ops, threshold: timedelta | None = None) -> tuple[WorkerRow, ...]:
    """Return workers that have not stopped, newest heartbeat first.

    `is_stale` means silent for `threshold` [default: recovery.worker_stale_threshold_ms].
    """
    if threshold is None:
        threshold = timedelta(milliseconds=ops.settings.recovery.worker_stale_threshold_ms)
    return tuple(stored.to_row() for stored in await ops.reader.fetch(WORKER_READS.active, threshold, MAX_WORKERS))


async def worker_history(ops: Ops, worker_id: str | UUID, window: timedelta) -> tuple[SnapshotRow, ...]:
    """Return the snapshots of the last `window`, oldest first; raises ValueError for a malformed id."""
    worker_uuid = UUID(parse_id(str(worker_id)))
    return tuple(await ops.reader.fetch(WORKER_READS.history, worker_uuid, window, MAX_SNAPSHOTS))


async def ping_workers(
    ops: Ops, *, within: timedelta, worker_id: UUID | None = None, expected: Collection[UUID] = ()
) -> tuple[WorkerPong, ...]:
    """Return the workers that answer in time, in order of their answers.

    Stops waiting when all `expected` workers have answered, or when `worker_id` has.
    """
    target = None if worker_id is None else str(worker_id)
    ping = WorkerPing(target=target, expected={str(expected_id) for expected_id in expected})
    async with open_ping(ops.direct_spec, reply_channel=ping.reply_channel, message=ping.message) as replies:
        await ping.collect(replies, within.total_seconds())
    return tuple(ping.pongs.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceStatus:
    """The automatic maintenance of the live workers. Without a live worker there is none."""

    at: datetime
    config: RecoveryConfig | None
    """The settings of the live worker with the longest thresholds; None without a live worker."""
    last_pass_at: datetime | None
    """When a live worker last finished a reaper pass."""
    last_pass_by: UUID | None
    last_retention_at: datetime | None
    """When retention last deleted rows, automatically or on request."""

    @property
    def has_live_worker(self) -> bool:
        return self.config is not None


async def maintenance_status(ops: Ops) -> MaintenanceStatus:
    """Return the automatic maintenance of the live workers, and when it last ran."""
    fleet = await RecoveryStore(ops.reader).fleet()
    passes = {
        member.worker_id: at for member in fleet.live if (at := member.health_instant("last_pass_at")) is not None
    }
    last = max(passes, key=lambda worker_id: passes[worker_id], default=None)
    retention = await events(ops, kinds=(EventKind.RETENTION_FINISHED,), limit=1)
    return MaintenanceStatus(
        at=fleet.now,
        config=longest_thresholds(fleet.live),
        last_pass_at=None if last is None else passes[last],
        last_pass_by=last,
        last_retention_at=retention[0].at if retention else None,
    )
