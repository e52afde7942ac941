"""Worker rows, snapshots, recorded events, and what a worker polls for."""

from __future__ import annotations

import json
from dataclasses import asdict
from uuid import uuid4

import pytest

from horsies.model.events import EventRecord
from horsies.model.result import WorkerLoad, WorkerStateSnapshot
from horsies.store.database import Database
from horsies.store.operators import EventStore
from horsies.store.workers import WorkerRegistration, WorkerState, WorkerStore
from tests.support.store import WORKER, Connection, claim, collect_notifications, insert_pending, only_row

REGISTRATION = WorkerRegistration(
    worker_id=WORKER,
    hostname="here",
    pid=1,
    version="0",
    queues=["a", "b"],
    processes=4,
    recovery_config={"max_crashes": 3},
)


@pytest.fixture
def workers(database: Database) -> WorkerStore:
    return WorkerStore(database)


async def test_worker_states_from_starting_to_stopped(workers: WorkerStore, connection: Connection) -> None:
    started_at = await workers.register(REGISTRATION)
    row = ("state", "queues", "processes", "recovery_config", "started_at", "stopped_at")
    expected = ("starting", ["a", "b"], 4, '{"max_crashes": 3}', started_at, None)
    assert await only_row(connection, "horsies_workers", *row) == expected
    await workers.set_state(WORKER, WorkerState.RUNNING)
    assert await only_row(connection, "horsies_workers", "state", "stopped_at") == ("running", None)
    await workers.set_state(WORKER, WorkerState.STOPPED)
    assert await only_row(connection, "horsies_workers", "state", "stopped_at IS NULL") == ("stopped", False)


async def test_heartbeat_returns_database_time_and_lost_state(workers: WorkerStore, connection: Connection) -> None:
    started_at = await workers.register(REGISTRATION)
    heartbeat = await workers.heartbeat(WORKER, {"listener": "ok"})
    assert heartbeat is not None
    assert heartbeat.at > started_at
    assert not heartbeat.is_lost
    assert await only_row(connection, "horsies_workers", "health", "last_heartbeat_at") == (
        '{"listener": "ok"}',
        heartbeat.at,
    )
    await connection.execute("UPDATE horsies_workers SET state = 'lost', lost_at = now()")
    late = await workers.heartbeat(WORKER, {})
    assert late is not None
    assert late.is_lost


async def test_lost_worker_can_only_become_stopped(workers: WorkerStore, connection: Connection) -> None:
    await workers.register(REGISTRATION)
    await connection.execute("UPDATE horsies_workers SET state = 'lost'")
    await workers.set_state(WORKER, WorkerState.RUNNING)
    assert await only_row(connection, "horsies_workers", "state") == ("lost",)
    await workers.set_state(WORKER, WorkerState.STOPPED)
    assert await only_row(connection, "horsies_workers", "state") == ("stopped",)


async def test_heartbeat_of_deleted_worker_returns_none(workers: WorkerStore) -> None:
    assert await workers.heartbeat(uuid4(), {}) is None


async def test_snapshot_round_trip(workers: WorkerStore, database: Database) -> None:
    started_at = await workers.register(REGISTRATION)
    load = WorkerLoad(
        worker_id=str(WORKER),
        hostname="here",
        pid=1,
        processes=2,
        max_claim_batch=0,
        max_claim_per_worker=8,
        cluster_wide_cap=None,
        queues=["a", "b"],
        queue_priorities={"a": 1, "b": 100},
        queue_max_concurrency={"a": 3, "b": None},
        recovery_config={"max_crashes": 3},
        tasks_running=4,
        tasks_claimed=5,
        memory_usage_mb=50.5,
        memory_percent=1.5,
        cpu_percent=None,
        children_memory_mb=20.25,
        worker_started_at=started_at,
    )
    await workers.write_snapshot(load)
    (snapshot,) = await WorkerStore(database).newest_states()
    assert snapshot == WorkerStateSnapshot(**asdict(load), snapshot_at=snapshot.snapshot_at)
    assert snapshot.snapshot_at >= started_at
    assert await workers.state_history(WORKER, None) == [snapshot]


async def test_next_due_is_earliest_future_task_of_served_queues(workers: WorkerStore, connection: Connection) -> None:
    assert (await workers.due_work(["a", "b"])).next_due_s is None
    await insert_pending(connection, count=1, queue="a", due_in_s=-5)
    assert (await workers.due_work(["a", "b"])).next_due_s is None
    for queue, due_in_s in (("a", 500), ("b", 200), ("b", 300), ("c", 100)):
        await insert_pending(connection, count=1, queue=queue, due_in_s=due_in_s)
    delay_s = (await workers.due_work(["a", "b"])).next_due_s
    assert delay_s is not None
    assert 100 < delay_s < 200


async def test_due_work_includes_due_tasks_and_expired_leases(database: Database, connection: Connection) -> None:
    workers = WorkerStore(database)
    await insert_pending(connection, count=1, queue="elsewhere")
    await insert_pending(connection, count=1, due_in_s=60)
    assert not (await workers.due_work(["default"])).has_due_tasks
    await insert_pending(connection, count=1)
    assert (await workers.due_work(["default"])).has_due_tasks
    assert len(await claim(database)) == 1
    assert not (await workers.due_work(["default"])).has_due_tasks
    await connection.execute("UPDATE horsies_tasks SET claim_expires_at = now() WHERE status = 'CLAIMED'")
    assert (await workers.due_work(["default"])).has_due_tasks


async def test_due_work_includes_outbox_entries_that_are_not_quarantined(
    workers: WorkerStore, connection: Connection
) -> None:
    await connection.execute("SET session_replication_role = replica")  # without the run that an entry refers to
    await connection.execute(
        "INSERT INTO horsies_workflow_outbox (task_id, workflow_id, task_index) VALUES ($1, $1, 0)", uuid4()
    )
    assert (await workers.due_work([])).has_outbox_entries
    await connection.execute("UPDATE horsies_workflow_outbox SET quarantined_at = now()")
    assert not (await workers.due_work([])).has_outbox_entries


async def test_event_is_stored_and_notified(database: Database, database_url: str, connection: Connection) -> None:
    task_id = uuid4()
    async with collect_notifications(database_url, "horsies_events") as notifications:
        await EventStore(database).record(
            EventRecord(kind="child_died", task_id=task_id, claim_token=2, queue_name="a", evidence={"signal": 9})
        )
        await EventStore(database).record(EventRecord(kind="listener_degraded"))
        sent = [json.loads(str(payload)) for _, payload in await notifications()]
    row = await connection.fetchrow("SELECT kind, task_id, claim_token, evidence FROM horsies_events ORDER BY id")
    assert row is not None
    assert tuple(row) == ("child_died", task_id, 2, '{"signal": 9}')
    assert [(event["kind"], event["queue"], event["count"], event["ids"]) for event in sent] == [
        ("child_died", "a", 1, [str(task_id)]),
        ("listener_degraded", None, 1, []),
    ]


async def test_viewers_can_be_notified_without_a_write(database: Database, database_url: str) -> None:
    async with collect_notifications(database_url, "horsies_events") as notifications:
        await EventStore(database).notify_viewers(["one", "two"])
        assert [payload for _, payload in await notifications()] == ["one", "two"]
