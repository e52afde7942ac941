"""A worker's own rows, the events it writes down, and the time of its next task."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest

from horsies.store.database import Database
from horsies.store.operators import EventStore, StoredEvent
from horsies.store.workers import WorkerRegistration, WorkerSnapshot, WorkerState, WorkerStore
from tests.support.store import WORKER, Connection, collect_notifications, insert_pending, only_row

RUN = WorkerRegistration(
    worker_id=WORKER,
    hostname="here",
    pid=1,
    version="0",
    queues=["a", "b"],
    processes=4,
    recovery_config={"max_crashes": 3},
)


@pytest.fixture
def fleet(database: Database) -> WorkerStore:
    return WorkerStore(database)


async def test_a_worker_is_starting_then_running_then_stopped(fleet: WorkerStore, connection: Connection) -> None:
    started_at = await fleet.register(RUN)
    row = ("state", "queues", "processes", "recovery_config", "started_at", "stopped_at")
    expected = ("starting", ["a", "b"], 4, '{"max_crashes": 3}', started_at, None)
    assert await only_row(connection, "horsies_workers", *row) == expected
    await fleet.set_state(WORKER, WorkerState.RUNNING)
    assert await only_row(connection, "horsies_workers", "state", "stopped_at") == ("running", None)
    await fleet.set_state(WORKER, WorkerState.STOPPED)
    assert await only_row(connection, "horsies_workers", "state", "stopped_at IS NULL") == ("stopped", False)


async def test_a_beat_brings_the_databases_time_and_tells_a_lost_worker_so(
    fleet: WorkerStore, connection: Connection
) -> None:
    started_at = await fleet.register(RUN)
    beat = await fleet.heartbeat(WORKER, {"listener": "ok"})
    assert beat is not None
    assert beat.at > started_at
    assert not beat.is_lost
    assert await only_row(connection, "horsies_workers", "health", "last_heartbeat_at") == (
        '{"listener": "ok"}',
        beat.at,
    )
    await connection.execute("UPDATE horsies_workers SET state = 'lost', lost_at = now()")
    late = await fleet.heartbeat(WORKER, {})
    assert late is not None
    assert late.is_lost


async def test_a_lost_run_can_only_be_stopped(fleet: WorkerStore, connection: Connection) -> None:
    await fleet.register(RUN)
    await connection.execute("UPDATE horsies_workers SET state = 'lost'")
    await fleet.set_state(WORKER, WorkerState.RUNNING)
    assert await only_row(connection, "horsies_workers", "state") == ("lost",)
    await fleet.set_state(WORKER, WorkerState.STOPPED)
    assert await only_row(connection, "horsies_workers", "state") == ("stopped",)


async def test_a_beat_for_a_row_that_is_gone_says_so(fleet: WorkerStore) -> None:
    assert await fleet.heartbeat(uuid4(), {}) is None


async def test_a_snapshot_is_read_back_as_it_was_written(fleet: WorkerStore, database: Database) -> None:
    started_at = await fleet.register(RUN)
    await fleet.write_snapshot(
        WorkerSnapshot(
            worker=RUN,
            started_at=started_at,
            max_claim_batch=0,
            max_claim_per_worker=8,
            cluster_wide_cap=None,
            queue_priorities={"a": 1, "b": 100},
            queue_max_concurrency={"a": 3, "b": None},
            tasks_running=2,
            tasks_claimed=1,
            memory_usage_mb=50.5,
        )
    )
    (seen,) = await WorkerStore(database).newest_states()
    assert (seen.worker_id, seen.worker_started_at, seen.tasks_running) == (str(WORKER), started_at, 2)
    assert (seen.queue_max_concurrency, seen.memory_usage_mb, seen.cpu_percent) == ({"a": 3, "b": None}, 50.5, None)


async def test_the_next_due_time_is_the_soonest_of_the_served_queues_that_is_yet_to_come(
    fleet: WorkerStore, connection: Connection
) -> None:
    assert await fleet.next_due_s(["a", "b"]) is None
    await insert_pending(connection, count=1, queue="a", due_in_s=-5)
    assert await fleet.next_due_s(["a", "b"]) is None
    for queue, due_in_s in (("a", 500), ("b", 200), ("b", 300), ("c", 100)):
        await insert_pending(connection, count=1, queue=queue, due_in_s=due_in_s)
    delay_s = await fleet.next_due_s(["a", "b"])
    assert delay_s is not None
    assert 100 < delay_s < 200


async def test_an_event_is_written_down_and_told(database: Database, database_url: str, connection: Connection) -> None:
    task_id = uuid4()
    async with collect_notifications(database_url, "horsies_events") as heard:
        await EventStore(database).record(
            StoredEvent(kind="child_died", task_id=task_id, claim_token=2, queue_name="a", evidence={"signal": 9})
        )
        await EventStore(database).record(StoredEvent(kind="listener_degraded"))
        said = [json.loads(str(payload)) for _, payload in await heard()]
    row = await connection.fetchrow("SELECT kind, task_id, claim_token, evidence FROM horsies_events ORDER BY id")
    assert row is not None
    assert tuple(row) == ("child_died", task_id, 2, '{"signal": 9}')
    assert [(each["kind"], each["queue"], each["count"], each["ids"]) for each in said] == [
        ("child_died", "a", 1, [str(task_id)]),
        ("listener_degraded", None, 1, []),
    ]


async def test_messages_can_leave_alone(database: Database, database_url: str) -> None:
    async with collect_notifications(database_url, "horsies_events") as heard:
        await EventStore(database).notify_viewers(["one", "two"])
        assert [payload for _, payload in await heard()] == ["one", "two"]
