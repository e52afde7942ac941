"""Rows inserted directly into the tables, and values such as QueueRow and SweepReport, for tests of reads."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
from uuid_utils.compat import uuid7

from horsies.model.recovery.decision import DecisionKind
from horsies.model.recovery.fleet import HeartbeatSeries, OperatorObserver, SweepOptions, Thresholds, ThresholdSource
from horsies.model.settings import RecoveryConfig
from horsies.model.task import TASK_TERMINAL_STATES, TaskStatus
from horsies.recovery.report import SweepReport, SweepStatus, SweptTask
from horsies.recovery.sweep import Sweep
from horsies.store.database import Database
from horsies_ops.reads.overview import QueueRow
from horsies_ops.reads.workers import WorkerRow
from tests.support.store import Connection


@dataclass(frozen=True, slots=True)
class RelativeTime:
    """A time relative to the moment a row is inserted, because test parameters are built long before."""

    after: timedelta

    def __add__(self, span: timedelta) -> RelativeTime:
        return RelativeTime(self.after + span)

    def __sub__(self, span: timedelta) -> RelativeTime:
        return RelativeTime(self.after - span)

    def instant(self, now: datetime | None = None) -> datetime:
        return (now or datetime.now(UTC)) + self.after


NOW = RelativeTime(timedelta())


async def insert_task(database_url: str, **columns: Any) -> UUID:
    """Insert a task with these columns; the others are those of a task just sent."""
    now = datetime.now(UTC)
    row: dict[str, Any] = {
        "id": uuid7(),
        "task_name": "mail.send",
        "sent_at": now,
        "enqueue_sha": "0" * 64,
    } | columns
    if row.get("status") in TASK_TERMINAL_STATES:
        row.setdefault("terminal_at", now)
        if row["status"] != "COMPLETED":
            row.setdefault("error_code", "UNHANDLED_EXCEPTION")
    await insert(database_url, "horsies_tasks", **row)
    return row["id"]


async def insert(database_url: str, table: str, **columns: Any) -> None:
    """Insert one row; lists and dicts go into jsonb columns, and RelativeTime values count from now."""
    parameters = ", ".join(f"${number + 1}" for number in range(len(columns)))
    connection = await asyncpg.connect(database_url)
    try:
        for kind in ("json", "jsonb"):
            await connection.set_type_codec(kind, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({parameters})"
        now = datetime.now(UTC)
        values = [value.instant(now) if isinstance(value, RelativeTime) else value for value in columns.values()]
        await connection.execute(statement, *values)
    finally:
        await connection.close()


# Workers


async def insert_worker(database_url: str, **columns: Any) -> UUID:
    """Insert a worker with these columns; the others are those of one with a fresh heartbeat."""
    worker_id = uuid4()
    row = {"id": worker_id, "hostname": "host", "pid": 7, "version": "1", "queues": ["default"], "processes": 4}
    await insert(database_url, "horsies_workers", **row | {"state": "running"} | columns)
    return worker_id


async def insert_snapshot(database_url: str, worker_id: UUID, **columns: Any) -> None:
    row: dict[str, Any] = {
        "worker_id": worker_id,
        "worker_started_at": datetime.now(UTC),
        "hostname": "host",
        "pid": 7,
        "processes": 4,
        "max_claim_batch": 0,
        "max_claim_per_worker": 0,
        "queues": ["default"],
        "tasks_running": 1,
        "tasks_claimed": 0,
    }
    await insert(database_url, "horsies_worker_states", **row | columns)


# Workflow runs


async def insert_run(database_url: str, **columns: Any) -> UUID:
    """Insert a run with these columns; the others are those of a RUNNING root."""
    run_id: UUID = columns.get("id") or uuid7()
    row = {"id": run_id, "name": "digest", "status": "RUNNING", "on_error": "fail", "sent_at": datetime.now(UTC)}
    await insert(database_url, "horsies_workflows", **row | {"root_workflow_id": run_id} | columns)
    return run_id


async def insert_node(database_url: str, run_id: UUID, index: int, *dependencies: int, **columns: Any) -> None:
    """Insert a PENDING node that depends on the nodes with these indexes."""
    row: dict[str, Any] = {
        "id": uuid7(),
        "workflow_id": run_id,
        "task_index": index,
        "node_id": f"node:{index}",
        "task_name": f"step_{index}",
        "queue_name": "default",
        "priority": 100,
        "status": "PENDING",
        "dependencies": list(dependencies),
    }
    await insert(database_url, "horsies_workflow_tasks", **row | columns)


# Old rows, for tests of retention

HOUR = timedelta(hours=1)


def time_ago(age: timedelta) -> datetime:
    return datetime.now(UTC) - age


async def insert_finished_task(url: str, *, age: timedelta, attempts: int = 1, **columns: Any) -> UUID:
    """Insert a task that finished `age` ago, with its attempts."""
    row = {"status": "COMPLETED", "terminal_at": time_ago(age), "attempts": attempts} | columns
    task_id = await insert_task(url, **row)
    for attempt in range(1, attempts + 1):
        times = {"started_at": time_ago(age), "finished_at": time_ago(age)}
        row = {"task_id": task_id, "attempt": attempt, "claim_token": attempt, "outcome": "COMPLETED", **times}
        await insert(url, "horsies_task_attempts", **row)
    return task_id


async def insert_old_heartbeat(
    url: str, task_id: UUID, *, age: timedelta, token: int = 1, role: str = "runner"
) -> None:
    columns = {"task_id": task_id, "claim_token": token, "role": role, "sender_id": "w", "sent_at": time_ago(age)}
    await insert(url, "horsies_heartbeats", **columns)


async def insert_old_worker(url: str, *, state: str, age: timedelta) -> UUID:
    """Insert a worker whose last heartbeat was `age` ago."""
    worker_id = uuid4()
    end_column = {"stopped": "stopped_at", "lost": "lost_at"}.get(state)
    columns: dict[str, Any] = {} if end_column is None else {end_column: time_ago(age)}
    usual = {"hostname": "h", "pid": 1, "version": "1", "processes": 1, "last_heartbeat_at": time_ago(age)}
    await insert(url, "horsies_workers", id=worker_id, state=state, **usual, **columns)
    return worker_id


async def insert_finished_run(
    url: str,
    *,
    age: timedelta,
    status: str = "COMPLETED",
    parent: UUID | None = None,
    root: UUID | None = None,
    tasks: tuple[str, ...] = ("COMPLETED",),
) -> UUID:
    """Insert a finished run with one node and backing task per status in `tasks`; with `parent` a sub-workflow."""
    run_id = uuid4()
    usual = {"name": "flow", "on_error": "fail", "sent_at": time_ago(age), "completed_at": time_ago(age)}
    tree = {"parent_workflow_id": parent, "root_workflow_id": root or parent or run_id}
    await insert(url, "horsies_workflows", id=run_id, status=status, **usual, **tree)
    for index, task_status in enumerate(tasks):
        link: dict[str, Any] = {"is_workflow_task": True, "workflow_id": run_id, "workflow_task_index": index}
        is_live = task_status in {"PENDING", "CLAIMED", "RUNNING"}
        task_id = (
            await insert_task(url, status=task_status, **link)
            if is_live
            else await insert_finished_task(url, age=age, status=task_status, **link)
        )
        node = {"node_id": f"n{index}", "task_name": "mail.send", "queue_name": "default", "priority": 100}
        state = {"task_id": task_id, "status": "RUNNING" if is_live else "COMPLETED"}
        await insert(url, "horsies_workflow_tasks", id=uuid4(), workflow_id=run_id, task_index=index, **node, **state)
    return run_id


async def table_ids(url: str, table: str) -> set[Any]:
    """All ids of a table."""
    return {row[0] for row in await _fetch(url, f"SELECT id FROM {table}")}


async def count_rows(url: str, table: str) -> int:
    return (await _fetch(url, f"SELECT count(*) FROM {table}"))[0][0]


async def _fetch(url: str, sql: str) -> list[Any]:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetch(sql)
    finally:
        await connection.close()


# Silent workers and tasks, for tests of recovery

OPERATOR_OBSERVER = OperatorObserver(local_config=RecoveryConfig())
CRASH_RETRY = {"retry_policy": {"max_retries": 1, "intervals": [5], "auto_retry_for": ["WORKER_CRASHED"]}}


def seconds_ago(seconds: float) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=seconds)


def heartbeats(*, for_s: float) -> HeartbeatSeries:
    """The series of a worker that has sent heartbeats for this long, the last one just now."""
    return HeartbeatSeries(since=seconds_ago(for_s), last_heartbeat_at=seconds_ago(0))


async def insert_listening_worker(
    url: str, *, state: str = "running", silent_s: float = 0, listens_s: float | None = 86_400, **config: Any
) -> UUID:
    """Insert a worker with this recovery config, last heard `silent_s` ago and listening since `listens_s`."""
    worker_id = uuid4()
    since = None if listens_s is None else seconds_ago(listens_s).isoformat()
    await insert(
        url,
        "horsies_workers",
        id=worker_id,
        hostname="there",
        pid=7,
        version="1",
        processes=1,
        state=state,
        last_heartbeat_at=seconds_ago(silent_s),
        recovery_config=RecoveryConfig(**config).model_dump(mode="json"),
        health={"listening_since": since},
    )
    return worker_id


async def insert_owned_task(url: str, status: str, *, owner: UUID | None, silent_s: float, **columns: Any) -> UUID:
    """Insert a CLAIMED or RUNNING task that was claimed or started `silent_s` ago and has sent no heartbeat."""
    claim: dict[str, Any] = {"claimed": status == "CLAIMED", "claimed_at": seconds_ago(silent_s), "claim_token": 1}
    if status == "RUNNING":
        claim |= {"started_at": seconds_ago(silent_s), "worker_pid": 8, "worker_hostname": "there"}
    return await insert_task(url, status=status, claimed_by_worker_id=owner, **claim | columns)


async def insert_heartbeat(url: str, task_id: UUID, *, silent_s: float, role: str = "runner", token: int = 1) -> None:
    await insert(
        url,
        "horsies_heartbeats",
        task_id=task_id,
        claim_token=token,
        role=role,
        sender_id="x",
        sent_at=seconds_ago(silent_s),
    )


async def task_columns(connection: Connection, task_id: UUID, *columns: str) -> tuple[Any, ...]:
    """Values of these columns of one task."""
    row = await connection.fetchrow(f"SELECT {', '.join(columns)} FROM horsies_tasks WHERE id = $1", task_id)
    assert row is not None
    return tuple(row)


@dataclass(frozen=True)
class SweepDatabase:
    """A database with one healthy worker without tasks, for tests of sweeps."""

    url: str
    database: Database
    connection: Connection

    async def sweep(self, **options: Any) -> SweepReport:
        return await Sweep(self.database, SweepOptions(**options), observer=OPERATOR_OBSERVER).run()

    async def row(self, task_id: UUID, *columns: str) -> tuple[Any, ...]:
        return await task_columns(self.connection, task_id, *columns)

    async def events(self) -> Counter[str]:
        return Counter(row["kind"] for row in await self.connection.fetch("SELECT kind FROM horsies_events"))


# Values, for tests of renderers

NOON = datetime(2026, 11, 14, 12, 4, 31, tzinfo=UTC)
WORKER = UUID("019a8c00-0000-7000-8000-0000000000a7")
TASK = UUID("019a8c41-7d0e-7c55-9d1c-2f1aa91f03c2")


def make_queue(name: str = "mail", **fields: Any) -> QueueRow:
    """A healthy, empty queue."""
    queue = QueueRow(
        name=name,
        priority=10,
        max_concurrency=None,
        paused_at=None,
        paused_by=None,
        pause_reason=None,
        pending=0,
        delayed=0,
        claimed=0,
        running=0,
        oldest_due_age=None,
        next_due_in=None,
        finished_last_minute=0,
        failed_last_minute=0,
        served_by=1,
    )
    return replace(queue, **fields)


def make_worker(**fields: Any) -> WorkerRow:
    """A healthy, idle worker."""
    worker = WorkerRow(
        worker_id=WORKER,
        hostname="host-3",
        pid=4121,
        version="1",
        state="running",
        queues=("mail",),
        processes=4,
        started_at=NOON - timedelta(hours=3),
        last_heartbeat_at=NOON,
        heartbeat_age=timedelta(0),
        is_stale=False,
        tasks_running=0,
        tasks_claimed=0,
        children_busy=0,
        cpu_percent=None,
        memory_mb=None,
        memory_percent=None,
        listener=None,
        listening_since=None,
        outage_grace_until=None,
        last_pass_at=None,
        disabled_operations=(),
        warnings=(),
        is_silent=False,
        is_degraded=False,
        heartbeat_interval=timedelta(seconds=30),
    )
    return replace(worker, **fields)


def make_swept_task(state: TaskStatus = TaskStatus.RUNNING, **fields: Any) -> SweptTask:
    """A task of a lost worker with the decision to retry it."""
    task = SweptTask(
        task_id=TASK,
        task_name="mail.send",
        queue_name="mail",
        state=state,
        owner_id=WORKER,
        owner_state="lost",
        heartbeat_age=timedelta(minutes=11, seconds=20),
        effective_threshold=timedelta(minutes=5),
        resilient=False,
        decision=DecisionKind.RETRY,
        reason="OWNER_LOST",
        max_retries=2,
        retries_left=2,
    )
    return replace(task, **fields)


def make_sweep_report(*tasks: SweptTask, **fields: Any) -> SweepReport:
    """Report of a dry run that found these tasks."""
    limits = Thresholds(
        claimed=timedelta(minutes=2),
        running=timedelta(minutes=5),
        recovery_delay=timedelta(0),
        resilient_multiplier=3,
        source=ThresholdSource.FLEET,
    )
    report = SweepReport(status=SweepStatus.WOULD_ACT, dry_run=True, thresholds=limits, tasks=tasks)
    return replace(report, **fields)
