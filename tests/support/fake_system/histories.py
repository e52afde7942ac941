"""Invented histories of the fake system: schedules and their runs, heartbeats, snapshots of workers, storage."""

from __future__ import annotations

from datetime import datetime, timedelta
from math import sin
from typing import Final

from horsies.model.schedule.decide import RunKind, SchedulePolicy, ScheduleState, SlotOutcome
from horsies.model.task import TaskStatus
from horsies_ops.reads.schedules import ScheduleRow, ScheduleRunRow
from horsies_ops.reads.server import OpenTransaction, Storage, TableStorage
from horsies_ops.reads.tasks import HeartbeatRow
from horsies_ops.reads.workers import SnapshotRow, WorkerRow
from tests.support.fake_system import catalog
from tests.support.fake_system.catalog import HOT_WORKER, LOST_WORKER
from tests.support.fake_system.system import FakeSystem

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
HEARTBEAT_INTERVAL: Final = 30 * SECOND


def schedule_rows(system: FakeSystem) -> tuple[ScheduleRow, ...]:
    """The schedules of the catalog; an empty system has none."""
    now, rows = system.now(), list[ScheduleRow]()
    last_tasks = {task.name: task for task in system.tasks.values() if task.finished_at is not None}
    for name, task_name, pattern, timezone, next_s, last_s, run_count in catalog.SCHEDULES if last_tasks else ():
        last, due_in = last_tasks.get(task_name), None if next_s is None else next_s * SECOND
        pause = system.paused_schedules.get(name)
        row = ScheduleRow(
            name=name,
            owner="shop",
            state=ScheduleState.DISABLED if due_in is None else ScheduleState.ACTIVE,
            target=task_name,
            definition=SchedulePolicy(pattern=pattern, timezone=timezone).to_json(),
            anchor_at=system.started_at,
            next_run_at=None if due_in is None else now + due_in,
            due_in=due_in,
            last_slot_at=now - last_s * SECOND,
            last_run_at=now - last_s * SECOND,
            lag=0.1 * SECOND,
            last_task_id=last and last.id,
            last_status=last and last.status,
            last_error_code=last and last.error_code,
            run_count=run_count,
            paused_at=pause and pause.at,
            paused_by=pause and pause.actor,
            pause_reason=pause and pause.reason,
            is_overdue=pause is None and due_in is not None and due_in < -MINUTE,
            recent=["skipped" if n == 16 else "fired" for n in range(20)],
        )
        rows.append(row)
    return tuple(sorted(rows, key=lambda row: not row.is_overdue))


def schedule_runs(row: ScheduleRow, now: datetime, *, limit: int) -> tuple[ScheduleRunRow, ...]:
    """The last slots; the system does not record them, so all that are shown fired on time."""
    runs = list[ScheduleRunRow]()
    for n, outcome in enumerate(reversed(row.recent[-limit:])):
        slot = (row.last_slot_at or now) - n * HOUR
        is_fired = outcome == SlotOutcome.FIRED
        run = ScheduleRunRow(
            slot_at=slot,
            kind=RunKind.CLOCK,
            outcome=SlotOutcome(outcome),
            reason=None if is_fired else "an earlier slot is running",
            task_id=row.last_task_id if is_fired else None,
            workflow_id=None,
            fired_at=slot + 0.1 * SECOND if is_fired else None,
            lag=0.1 * SECOND if is_fired else None,
            fired_by=None,
            revision=1,
            status=TaskStatus.COMPLETED if is_fired else None,
            error_code=None,
        )
        runs.append(run)
    return tuple(runs)


def heartbeats_between(token: int, start: datetime, end: datetime) -> list[HeartbeatRow]:
    """One per interval, newest first."""
    times = [start + number * HEARTBEAT_INTERVAL for number in range(int((end - start) / HEARTBEAT_INTERVAL), 0, -1)]
    return [HeartbeatRow(role="runner", sender_id="w", claim_token=token, at=at, age=timedelta(0)) for at in times]


def snapshot_at(worker: WorkerRow, at: datetime, last: datetime) -> SnapshotRow:
    """A made-up load; the lost worker ran out of memory in its last 20 minutes."""
    load = 0.6 + 0.25 * sin(at.timestamp() / 97 + worker.pid)
    memory = max(46, 96 - (last - at) / MINUTE * 2.5) if worker is LOST_WORKER else 30 + 20 * load
    return SnapshotRow(
        at=at,
        processes=worker.processes,
        tasks_running=round(worker.processes * load),
        tasks_claimed=round(3 * load),
        cpu_percent=round(75 + 25 * load if worker is HOT_WORKER else 70 * load, 1),
        memory_percent=round(memory, 1),
        memory_mb=round(memory * 40.96, 1),
    )


def storage(now: datetime) -> Storage:
    """Sizes of the tables, and a transaction left open in psql."""
    psql = OpenTransaction(pid=8123, application_name="psql", state="idle in transaction", age=41 * SECOND)
    tables = [
        TableStorage(name=name, bytes=size, rows=rows, dead_rows=dead, last_vacuum_at=now - 11 * MINUTE)
        for name, size, rows, dead in catalog.TABLES
    ]
    return Storage(tables=tuple(tables), notify_queue_usage=0.0, longest_transaction=psql)
