"""Waiting for results."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from datetime import date
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from horsies import BrokerErrorCode, Horsies, OperationalErrorCode, OutcomeCode, RetrievalCode, TaskHandle
from horsies.client.workflow.handle import WorkflowHandle
from horsies.store.database import Transaction
from horsies.store.queries import Query
from horsies.store.tasks import TASKS, TaskResultRow, TaskStore
from horsies.store.workflows import WORKFLOWS
from tests.support.store import finish_tasks, make_app

# Shorter than the poll interval: a result within this time came by notification.
PROMPT_S = 3.0
WAITERS = 5000

_LISTENER = """
SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query ILIKE 'LISTEN%' AND state = 'idle'
"""


@pytest.fixture
async def handle(app: Horsies) -> TaskHandle[int]:
    return (await app.tasks["double"].send_async(5)).unwrap()


async def until_listening(connection: asyncpg.Connection[Any]) -> int:
    """Wait until a listener is connected to this database; returns its backend pid."""
    async with asyncio.timeout(10):
        while not (pid := await connection.fetchval(_LISTENER)):
            pass
    return pid


@pytest.mark.parametrize("timeout_ms", [0, 50])
async def test_get_times_out_and_can_be_repeated(
    handle: TaskHandle[int], connection: asyncpg.Connection[Any], timeout_ms: int
) -> None:
    assert (await handle.get_async(timeout_ms)).err_value.error_code is RetrievalCode.WAIT_TIMEOUT
    await finish_tasks(connection, [handle.task_id])
    assert (await handle.get_async(timeout_ms)).ok_value == 10


@pytest.mark.parametrize(("timeout_ms", "status_text"), [(0, "it is PENDING"), (50, "it was PENDING")])
async def test_timeout_reports_the_last_status(handle: TaskHandle[int], timeout_ms: int, status_text: str) -> None:
    assert status_text in str((await handle.get_async(timeout_ms)).err_value.message)


@pytest.mark.parametrize("timeout_ms", [1, 0, -5])
async def test_finished_task_is_found_with_any_timeout(
    handle: TaskHandle[int], connection: asyncpg.Connection[Any], timeout_ms: int
) -> None:
    await finish_tasks(connection, [handle.task_id])
    assert (await handle.get_async(timeout_ms)).ok_value == 10


@pytest.mark.parametrize("timeout_ms", [0, 50])
async def test_locked_table_is_a_timeout(
    handle: TaskHandle[int], connection: asyncpg.Connection[Any], timeout_ms: int
) -> None:
    async with connection.transaction():
        await connection.execute("LOCK TABLE horsies_tasks")
        async with asyncio.timeout(10):
            result = await handle.get_async(timeout_ms)
    assert result.err_value.error_code is RetrievalCode.WAIT_TIMEOUT
    assert "timed out before the database returned" in str(result.err_value.message)


@pytest.mark.parametrize("timeout_ms", ["5", True, float("nan")])
async def test_invalid_timeout_is_rejected(handle: TaskHandle[int], timeout_ms: Any) -> None:
    with pytest.raises(ValueError, match="timeout_ms must be milliseconds"):
        await handle.get_async(timeout_ms)


async def test_notification_wakes_a_waiter(handle: TaskHandle[int], connection: asyncpg.Connection[Any]) -> None:
    waiting = asyncio.create_task(handle.get_async())
    await until_listening(connection)
    await finish_tasks(connection, [handle.task_id])
    async with asyncio.timeout(PROMPT_S):
        assert (await waiting).ok_value == 10


async def test_poll_finds_a_result_without_notification(
    handle: TaskHandle[int], connection: asyncpg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horsies.client.waiter.POLL_S", 0.2)
    waiting = asyncio.create_task(handle.get_async())
    await until_listening(connection)
    await finish_tasks(connection, [handle.task_id], notify=False)
    async with asyncio.timeout(PROMPT_S):
        assert (await waiting).ok_value == 10


@pytest.fixture
def short_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll soon after the listener starts."""
    monkeypatch.setattr("horsies.client.waiter.POLL_S", 0.2)
    monkeypatch.setattr("horsies.client.waiter.POLL_NOT_LISTENING_S", 0.2)


@pytest.fixture
async def listening_app(app: Horsies, connection: asyncpg.Connection[Any]) -> Horsies:
    """An app whose listener is active, so that the ends of its next sends are notified."""
    handle = (await app.tasks["double"].send_async(5)).unwrap()
    waiting = asyncio.create_task(handle.get_async())
    await until_listening(connection)
    await finish_tasks(connection, [handle.task_id])
    await waiting
    return app


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Task ids read by apps that are created after this fixture, in order."""
    reads: list[str] = []
    read_results = TaskStore.results

    def record(store: TaskStore, task_ids: Sequence[str]) -> Coroutine[Any, Any, list[TaskResultRow]]:
        reads.extend(task_ids)
        return read_results(store, task_ids)

    monkeypatch.setattr(TaskStore, "results", record)
    return reads


async def test_wait_for_a_new_send_reads_once(
    reads: list[str], listening_app: Horsies, connection: asyncpg.Connection[Any]
) -> None:
    reads.clear()
    handle = (await listening_app.tasks["double"].send_async(5)).unwrap()
    waiting = asyncio.create_task(handle.get_async())
    for _ in range(5):  # a first read would start at once
        await asyncio.sleep(0)
    assert reads == []
    await finish_tasks(connection, [handle.task_id])
    assert (await waiting).ok_value == 10
    assert reads == [handle.task_id]


@pytest.mark.parametrize("query", [TASKS.results, WORKFLOWS.run_results], ids=lambda query: query.name)
async def test_plan_made_on_empty_tables_has_no_sequential_scan(
    app: Horsies, connection: asyncpg.Connection[Any], query: Query[Any]
) -> None:
    await connection.execute("VACUUM (ANALYZE) horsies_tasks, horsies_workflows, horsies_workflow_tasks")
    task_id = str(uuid4())
    await app.get_result_async(task_id, timeout_ms=0)
    await WorkflowHandle[Any](task_id, app.get_broker()).get_async(timeout_ms=0)

    async def read_plan(transaction: Transaction) -> tuple[int, str]:
        statement = "SELECT name, generic_plans FROM pg_prepared_statements WHERE statement = $1"
        (prepared,) = await transaction.connection.fetch(statement, query.sql)
        lines = await transaction.connection.fetch(f"EXPLAIN EXECUTE \"{prepared['name']}\"('{{{task_id}}}')")
        return prepared["generic_plans"], "\n".join(line[0] for line in lines)

    generic_plans, text = await (await app.get_broker().session()).database.run(read_plan)
    assert generic_plans == 1
    assert "Seq Scan" not in text


@pytest.mark.parametrize("pause_s", [0, 0.1])
async def test_result_stored_before_the_wait_is_found(
    listening_app: Horsies, connection: asyncpg.Connection[Any], pause_s: float
) -> None:
    handle = (await listening_app.tasks["double"].send_async(5)).unwrap()
    await finish_tasks(connection, [handle.task_id])
    await asyncio.sleep(pause_s)  # the notification arrives before or after the wait begins
    async with asyncio.timeout(PROMPT_S):
        assert (await handle.get_async()).ok_value == 10


async def test_poll_finds_a_new_send_whose_notification_is_lost(
    short_poll: None, listening_app: Horsies, connection: asyncpg.Connection[Any]
) -> None:
    del short_poll
    handle = (await listening_app.tasks["double"].send_async(5)).unwrap()
    waiting = asyncio.create_task(handle.get_async())
    await asyncio.sleep(0)  # it is waiting now
    await finish_tasks(connection, [handle.task_id], notify=False)
    async with asyncio.timeout(PROMPT_S):
        assert (await waiting).ok_value == 10


async def test_wait_for_a_repeated_send_reads_at_once(
    listening_app: Horsies, connection: asyncpg.Connection[Any]
) -> None:
    task = listening_app.tasks["double"]
    failed = task.send(5).unwrap_err()  # a blocking send inside an event loop
    handle = (await task.retry_send_async(failed)).unwrap()
    await finish_tasks(connection, [handle.task_id], notify=False)
    again = (await task.retry_send_async(failed)).unwrap()
    async with asyncio.timeout(PROMPT_S):
        assert (await again.get_async()).ok_value == 10


async def test_wait_for_a_new_send_times_out_with_its_status(listening_app: Horsies) -> None:
    handle = (await listening_app.tasks["double"].send_async(5)).unwrap()
    error = (await handle.get_async(50)).err_value
    assert error.error_code is RetrievalCode.WAIT_TIMEOUT
    assert "it is PENDING" in str(error.message)


async def test_lost_listener_connection_is_replaced(
    handle: TaskHandle[int], connection: asyncpg.Connection[Any]
) -> None:
    waiting = asyncio.create_task(handle.get_async())
    await connection.execute("SELECT pg_terminate_backend($1)", await until_listening(connection))
    await finish_tasks(connection, [handle.task_id])
    async with asyncio.timeout(PROMPT_S):
        assert (await waiting).ok_value == 10


async def test_malformed_notifications_are_ignored(
    handle: TaskHandle[int], connection: asyncpg.Connection[Any]
) -> None:
    waiting = asyncio.create_task(handle.get_async())
    await until_listening(connection)
    await connection.execute("SELECT pg_notify('horsies_task_done', 'nonsense,,')")
    await finish_tasks(connection, [handle.task_id])
    async with asyncio.timeout(PROMPT_S):
        assert (await waiting).ok_value == 10


@pytest.mark.parametrize(
    ("status", "document", "code"),
    [
        ("CANCELLED", None, OutcomeCode.TASK_CANCELLED),
        ("FAILED", '{"err": {"error_code": "CARD_DECLINED"}}', "CARD_DECLINED"),
        ("EXPIRED", '{"err": {"error_code": "TASK_EXPIRED"}}', OutcomeCode.TASK_EXPIRED),
        ("COMPLETED", None, RetrievalCode.RESULT_NOT_AVAILABLE),
        ("COMPLETED", "[]", OperationalErrorCode.RESULT_DESERIALIZATION_ERROR),
    ],
)
async def test_final_result_is_cached(
    handle: TaskHandle[int], connection: asyncpg.Connection[Any], status: str, document: str | None, code: str
) -> None:
    await finish_tasks(connection, [handle.task_id], document, status=status)
    assert (await handle.get_async()).err_value.error_code == code
    await connection.execute("DELETE FROM horsies_tasks")
    assert (await handle.get_async()).err_value.error_code == code


async def test_transient_result_is_not_cached(handle: TaskHandle[int], connection: asyncpg.Connection[Any]) -> None:
    await connection.execute("CREATE TEMP TABLE saved AS SELECT * FROM horsies_tasks")
    await connection.execute("DELETE FROM horsies_tasks")
    assert (await handle.get_async()).err_value.error_code is RetrievalCode.TASK_NOT_FOUND
    await connection.execute("INSERT INTO horsies_tasks SELECT * FROM saved")
    await finish_tasks(connection, [handle.task_id])
    assert (await handle.get_async()).ok_value == 10


async def test_id_may_be_a_uuid_object(
    app: Horsies, handle: TaskHandle[int], connection: asyncpg.Connection[Any]
) -> None:
    await finish_tasks(connection, [handle.task_id])
    task_id = UUID(handle.task_id)
    assert (await app.get_result_async(task_id)).ok_value == 10
    assert (await app.get_raw_result_async(task_id)).unwrap() == {"ok": 10}
    info = (await app.get_task_info_async(task_id)).unwrap()
    assert info is not None
    assert info.task_id == handle.task_id


@pytest.mark.parametrize("document", ["[]", '"text"', "null"])
async def test_raw_result_must_be_a_json_object(
    app: Horsies, handle: TaskHandle[int], connection: asyncpg.Connection[Any], document: str
) -> None:
    await finish_tasks(connection, [handle.task_id], document)
    error = (await app.get_raw_result_async(handle.task_id)).unwrap_err()
    assert error.code is BrokerErrorCode.INVALID_JSON_PAYLOAD


@pytest.mark.parametrize("task_id", ["01890a5d-ac96-774b-bcce-b302099a8057", "malformed", None, 5])
async def test_unknown_id_is_task_not_found(app: Horsies, task_id: Any) -> None:
    assert (await app.get_result_async(task_id)).err_value.error_code is RetrievalCode.TASK_NOT_FOUND


async def test_malformed_id_is_named_in_the_error(app: Horsies) -> None:
    assert "invalid id 'zz': expected a UUID" in str((await app.get_result_async("zz")).err_value.message)


async def test_value_is_decoded_where_its_task_is_registered(
    app: Horsies, connection: asyncpg.Connection[Any], database_url: str
) -> None:
    handle = (await app.tasks["tomorrow"].send_async(date(2030, 1, 1))).unwrap()
    await finish_tasks(connection, [handle.task_id], '{"ok": "2030-01-02"}')
    assert (await handle.get_async()).ok_value == date(2030, 1, 2)
    other_app = type(app)(make_app(database_url).config)
    assert (await other_app.get_result_async(handle.task_id)).ok_value == "2030-01-02"
    await other_app.close_async()


async def test_unreachable_database_is_a_broker_error() -> None:
    app = make_app("postgresql://nobody@127.0.0.1:1/nothing")
    assert (await app.get_result_async(str(uuid4()))).err_value.error_code is OperationalErrorCode.BROKER_ERROR
    assert (await app.ping_database_async()).unwrap_err().code is BrokerErrorCode.DB_PING_FAILED
    await app.close_async()


async def test_closing_the_app_ends_waits(
    app: Horsies, handle: TaskHandle[int], connection: asyncpg.Connection[Any]
) -> None:
    waiting = asyncio.create_task(handle.get_async())
    await until_listening(connection)
    await app.close_async()
    async with asyncio.timeout(PROMPT_S):
        assert (await waiting).err_value.error_code is OperationalErrorCode.BROKER_ERROR


async def test_5000_waiters_share_one_listener_and_a_small_pool(
    app: Horsies, connection: asyncpg.Connection[Any]
) -> None:
    handles = (await app.tasks["double"].send_many_async([(n,) for n in range(WAITERS)])).unwrap()
    waiting = asyncio.gather(*(handle.get_async() for handle in handles))
    await until_listening(connection)
    our_queries = (
        "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'horsies %'"
    )
    queries = [row["query"] for row in await connection.fetch(our_queries)]
    assert sum(query.upper().startswith("LISTEN") for query in queries) == 1
    assert len(queries) <= app.config.broker.pool_size + app.config.broker.max_overflow + 1
    await finish_tasks(connection, [handle.task_id for handle in handles])
    assert {result.ok_value for result in await waiting} == {10}
