from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

import horsies_ops
from horsies.errors import ConfigurationError, ErrorCode, HorsiesError
from horsies.store.database import Database
from horsies_ops import TaskFilter, TaskOrder
from tests.support.rows import insert, insert_task
from tests.support.store import ops_on


async def _ids_of_all_pages(database: Database, order: TaskOrder, task_filter: TaskFilter) -> list[UUID]:
    ids: list[UUID] = []
    after = None
    while True:
        page = await ops_on(database).list_tasks(task_filter, order=order, after=after, limit=2)
        ids += [task.id for task in page.tasks]
        if page.next is None:
            return ids
        after = page.next


@pytest.mark.parametrize("task_filter", [TaskFilter(), TaskFilter(queues=["default"])], ids=["all", "filtered"])
async def test_pages_have_every_task_once_in_sending_order(
    database: Database, database_url: str, task_filter: TaskFilter
) -> None:
    ids = [await insert_task(database_url) for _ in range(4)]
    assert await _ids_of_all_pages(database, TaskOrder.NEWEST_FIRST, task_filter) == ids[::-1]
    assert await _ids_of_all_pages(database, TaskOrder.OLDEST_FIRST, task_filter) == ids


async def test_task_sent_while_paging_does_not_shift_pages(database: Database, database_url: str) -> None:
    ids = [await insert_task(database_url) for _ in range(3)]
    first = await ops_on(database).list_tasks(limit=2)
    await insert_task(database_url)
    second = await ops_on(database).list_tasks(limit=2, after=first.next)
    assert [task.id for task in (*first.tasks, *second.tasks)] == ids[::-1]


async def test_detail_has_payload_attempts_heartbeats_and_events(database: Database, database_url: str) -> None:
    at = datetime.now(UTC) - timedelta(minutes=1)
    task_id = await insert_task(
        database_url, status="RUNNING", claim_token=2, args=[1], kwargs={"a": None}, task_options={"timeout_ms": 5000}
    )
    for token in (1, 2):
        heartbeat = {"task_id": task_id, "claim_token": token, "role": "runner", "sender_id": "w:1"}
        await insert(database_url, "horsies_heartbeats", **heartbeat, sent_at=at + timedelta(seconds=token))
    attempt = {"task_id": task_id, "attempt": 1, "claim_token": 1, "outcome": "FAILED", "error_code": "SMTP_DOWN"}
    await insert(database_url, "horsies_task_attempts", **attempt, started_at=at, finished_at=at)
    await insert(database_url, "horsies_events", kind="child_died", task_id=task_id, evidence={"pid": 7})

    detail = await ops_on(database).task(str(task_id))

    assert detail is not None
    assert (detail.task.args, detail.task.kwargs, detail.task.options) == ([1], {"a": None}, {"timeout_ms": 5000})
    assert [attempt.error_code for attempt in detail.attempts] == ["SMTP_DOWN"]
    assert [event.evidence for event in detail.events] == [{"pid": 7}]
    assert detail.last_heartbeat is not None
    assert (detail.last_heartbeat.claim_token, detail.last_heartbeat.at) == (2, at + timedelta(seconds=2))


async def test_heartbeat_of_an_earlier_claim_is_not_the_last(database: Database, database_url: str) -> None:
    task_id = await insert_task(database_url, claim_token=2)
    heartbeat = {"task_id": task_id, "claim_token": 1, "role": "runner", "sender_id": "w:1"}
    await insert(database_url, "horsies_heartbeats", **heartbeat)
    detail = await ops_on(database).task(task_id)
    assert detail is not None
    assert (len(detail.heartbeats), detail.last_heartbeat) == (1, None)


async def test_unknown_task_is_none_and_malformed_id_is_rejected(database: Database) -> None:
    assert await ops_on(database).task(uuid4()) is None
    with pytest.raises(ValueError, match="invalid id"):
        await ops_on(database).task("nope")


async def test_connect_uses_the_database_url_of_the_environment(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HORSIES_BROKER__DATABASE_URL", database_url)
    task_id = await insert_task(database_url)
    async with horsies_ops.connect() as ops:
        assert [task.id for task in (await ops.list_tasks()).tasks] == [task_id]
        assert (await ops.database_status()).is_current


async def test_connect_prefers_its_argument(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORSIES_BROKER__DATABASE_URL", "postgresql://127.0.0.1:1/nowhere")
    task_id = await insert_task(database_url)
    async with horsies_ops.connect(database_url) as ops:
        detail = await ops.task(task_id)
    assert detail is not None


async def test_database_rejects_writes_of_a_read_only_connection(database_url: str) -> None:
    async with horsies_ops.connect(database_url, read_only=True) as ops:
        with pytest.raises(HorsiesError, match="read-only transaction"):
            await ops.session.database.run(lambda transaction: transaction.run_script("DELETE FROM horsies_tasks"))


async def test_database_without_tables_raises_schema_not_migrated(empty_database_url: str) -> None:
    async with horsies_ops.connect(empty_database_url, read_only=True) as ops:
        with pytest.raises(ConfigurationError) as refused:
            await ops.list_tasks()
    assert refused.value.code is ErrorCode.SCHEMA_NOT_MIGRATED
