"""The task catalog: which tasks live workers have registered, and tasks that none has."""

from __future__ import annotations

import json
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from horsies import Horsies, TaskError, TaskResult
from horsies.registry.definition import TaskCatalog
from horsies.store.database import Database
from horsies.store.workers import CatalogStore, UnregisteredTask
from tests.support.store import Connection

WORKER = """
INSERT INTO horsies_workers (id, hostname, pid, version, queues, processes, state, started_at, last_heartbeat_at,
                             catalog_hash, health)
VALUES ($1, 'here', 1, '1', $2, 1, $3, now() - $4::interval, now() - $5::interval, $6, $7::text::jsonb)
"""
TASK = """
INSERT INTO horsies_tasks (id, task_name, queue_name, sent_at, enqueued_at, enqueue_sha)
VALUES ($1, $2, 'default', now(), now() - $3::interval, '')
"""
HOUR, MINUTE, NOW = timedelta(hours=1), timedelta(minutes=1), timedelta()


def catalog_of(*names: str) -> TaskCatalog:
    app = Horsies()

    def task(first: int, *, second: str = "x") -> TaskResult[None, TaskError]:
        raise NotImplementedError

    for name in names:
        app.task(name)(task)
    return TaskCatalog.of(task.definition for task in app.tasks.values())


@pytest.fixture
def store(database: Database) -> CatalogStore:
    return CatalogStore(database)


async def add_worker(
    connection: Connection,
    *,
    catalog_hash: str | None,
    unknown: tuple[str, ...] = (),
    state: str = "running",
    up: timedelta = 2 * HOUR,
    silent: timedelta = NOW,
) -> None:
    health = json.dumps({"unknown_tasks": unknown})
    await connection.execute(WORKER, uuid4(), ["default"], state, up, silent, catalog_hash, health)


async def publish(store: CatalogStore, *names: str) -> str:
    catalog = catalog_of(*names)
    await store.publish(catalog.catalog_hash, catalog.entries_json)
    return catalog.catalog_hash


async def insert_task(connection: Connection, name: str, *, waited: timedelta) -> UUID:
    task_id = uuid4()
    await connection.execute(TASK, task_id, name, waited)
    return task_id


async def test_equal_catalogs_share_their_rows(store: CatalogStore, connection: Connection) -> None:
    assert await publish(store, "a", "b") == await publish(store, "b", "a")
    assert await publish(store, "a") != await publish(store, "b")
    rows = await connection.fetch("SELECT task_name, queue_name, params_schema FROM horsies_task_catalog")
    assert sorted(row["task_name"] for row in rows) == ["a", "a", "b", "b"]
    assert json.loads(rows[0]["params_schema"]) == {
        "first": {"position": 0, "kind": "positional_or_keyword", "required": True, "type": "'int'"},
        "second": {"position": 1, "kind": "keyword_only", "required": False, "type": "'str'"},
    }


async def test_name_is_unregistered_if_no_live_worker_knows_it(store: CatalogStore, connection: Connection) -> None:
    old = await publish(store, "a")
    await add_worker(connection, catalog_hash=old, unknown=("b",))
    assert await store.unregistered() == [UnregisteredTask(queue_name="default", task_name="b")]
    await add_worker(connection, catalog_hash=await publish(store, "a", "b"))
    assert await store.unregistered() == []


@pytest.mark.parametrize(
    ("worker", "is_known"),
    [
        ({"state": "stopped", "silent": MINUTE}, True),
        ({"state": "stopped", "silent": 2 * HOUR}, False),
        ({"state": "running", "silent": MINUTE}, True),
    ],
)
async def test_name_is_known_for_the_grace_after_a_worker_left(
    store: CatalogStore, connection: Connection, worker: dict[str, object], is_known: bool
) -> None:
    await add_worker(connection, catalog_hash=await publish(store, "a"), unknown=("b",))
    await add_worker(connection, catalog_hash=await publish(store, "b"), **worker)  # pyright: ignore[reportArgumentType]
    assert (await store.unregistered(for_s=3600) == []) is is_known


async def test_worker_without_a_catalog_may_know_any_task(store: CatalogStore, connection: Connection) -> None:
    await add_worker(connection, catalog_hash=await publish(store, "a"), unknown=("b",))
    await add_worker(connection, catalog_hash=None)
    assert await store.unregistered() == []


async def test_tasks_fail_only_after_the_grace(store: CatalogStore, connection: Connection) -> None:
    late = await insert_task(connection, "b", waited=2 * HOUR)
    recent, known = (
        await insert_task(connection, "b", waited=MINUTE),
        await insert_task(connection, "a", waited=2 * HOUR),
    )
    await add_worker(connection, catalog_hash=await publish(store, "a"), unknown=("b",), up=MINUTE)
    assert await store.fail_unregistered(grace_s=3600) == 0, "the worker has not been up for long enough"
    await connection.execute("UPDATE horsies_workers SET started_at = now() - interval '2 hours'")
    assert await store.fail_unregistered(grace_s=3600) == 1
    rows = await connection.fetch("SELECT id, status, error_code, attempts FROM horsies_tasks")
    assert {row["id"]: (row["status"], row["error_code"], row["attempts"]) for row in rows} == {
        late: ("FAILED", "WORKER_RESOLUTION_ERROR", 0),
        recent: ("PENDING", None, 0),
        known: ("PENDING", None, 0),
    }
    waiting = await store.waiting(await store.unregistered())
    assert [(each.task_name, each.tasks) for each in waiting] == [("b", 1)]


async def test_unused_catalogs_expire_after_seven_days(store: CatalogStore, connection: Connection) -> None:
    used, _ = await publish(store, "a"), await publish(store, "b")
    await add_worker(connection, catalog_hash=used)
    await store.expire()
    assert await connection.fetchval("SELECT count(*) FROM horsies_task_catalog") == 2
    await connection.execute("UPDATE horsies_task_catalog SET seen_at = now() - interval '8 days'")
    await store.expire()
    assert await connection.fetchval("SELECT task_name FROM horsies_task_catalog") == "a"
