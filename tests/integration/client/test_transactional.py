"""Sends inside a transaction of the caller."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import asyncpg
import pytest

from horsies import Horsies, RetrievalCode, TaskSendErrorCode
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database
from horsies.store.migrate import migrate
from tests.support.store import listen_on, make_app


async def test_rollback_removes_the_task(app: Horsies, connection: asyncpg.Connection[Any]) -> None:
    transaction = connection.transaction()
    await transaction.start()
    assert (await app.tasks["double"].with_options(connection=connection).send_async(5)).is_ok()
    await transaction.rollback()
    assert await connection.fetchval("SELECT count(*) FROM horsies_tasks") == 0


async def test_task_becomes_visible_and_notifies_at_commit(
    app: Horsies, connection: asyncpg.Connection[Any], database_url: str
) -> None:
    listening = await asyncpg.connect(database_url)
    notifications = await listen_on(listening, "horsies_task_new")
    async with connection.transaction():
        handle = (await app.tasks["double"].with_options(connection=connection).send_async(5)).unwrap()
        assert (await handle.get_async(0)).err_value.error_code is RetrievalCode.TASK_NOT_FOUND
        await listening.fetchval("SELECT 1")
        assert notifications.empty()
    assert await notifications.get() == "default"
    assert (await handle.get_async(0)).err_value.error_code is RetrievalCode.WAIT_TIMEOUT
    await listening.close()


async def test_key_conflict_leaves_the_transaction_usable(app: Horsies, connection: asyncpg.Connection[Any]) -> None:
    await connection.execute("CREATE TEMP TABLE orders (n int)")
    await app.tasks["double"].with_options(idempotency_key="k").send_async(5)
    async with connection.transaction():
        await connection.execute("INSERT INTO orders VALUES (1)")
        options = app.tasks["double"].with_options(connection=connection, idempotency_key="k")
        assert (await options.send_async(6)).unwrap_err().code is TaskSendErrorCode.IDEMPOTENCY_KEY_CONFLICT
        await connection.execute("INSERT INTO orders VALUES (2)")
    assert await connection.fetchval("SELECT count(*) FROM orders") == 2


async def test_transactional_send_is_retried_only_in_a_transaction(
    app: Horsies, connection: asyncpg.Connection[Any]
) -> None:
    task = app.tasks["double"]
    options = task.with_options(connection=connection)
    await connection.execute("BEGIN")
    with pytest.raises(asyncpg.UndefinedTableError):
        await connection.execute("TABLE no_such_table")
    plain, delayed = (await options.send_async(5)).unwrap_err(), (await options.schedule_async(9, 5)).unwrap_err()
    await connection.execute("ROLLBACK")
    outside = [await task.retry_send_async(plain), await task.retry_schedule_async(delayed)]
    assert [rejected.unwrap_err().code for rejected in outside] == [TaskSendErrorCode.VALIDATION_FAILED] * 2
    await connection.execute("BEGIN")
    assert (await options.retry_send_async(plain)).unwrap().task_id == plain.task_id
    assert (await options.retry_schedule_async(delayed)).unwrap().task_id == delayed.task_id
    await connection.execute("ROLLBACK")
    assert await connection.fetchval("SELECT count(*) FROM horsies_tasks") == 0


async def test_failed_insert_leaves_the_transaction_usable(app: Horsies, connection: asyncpg.Connection[Any]) -> None:
    await connection.execute("CREATE TEMP TABLE orders (n int)")
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("ALTER TABLE horsies_tasks ADD CHECK (args <> '[5]')")
    await connection.execute("INSERT INTO orders VALUES (1)")
    error = (await app.tasks["double"].with_options(connection=connection).send_async(5)).unwrap_err()
    assert (error.code, error.retryable) == (TaskSendErrorCode.ENQUEUE_FAILED, False)
    assert (await app.tasks["double"].with_options(connection=connection).send_async(6)).is_ok()
    assert await connection.fetchval("SELECT count(*) FROM orders") == 1
    await transaction.rollback()


async def test_connection_without_a_transaction_commits_the_send(
    app: Horsies, connection: asyncpg.Connection[Any]
) -> None:
    await app.tasks["double"].with_options(connection=connection).send_async(5)
    assert not connection.is_in_transaction()
    assert await connection.fetchval("SELECT count(*) FROM horsies_tasks") == 1


async def test_custom_type_codecs_of_the_caller_have_no_effect(
    app: Horsies, connection: asyncpg.Connection[Any]
) -> None:
    for kind in ("json", "jsonb"):
        await connection.set_type_codec(kind, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    await connection.set_type_codec("uuid", encoder=str, decoder=str, schema="pg_catalog")
    options = app.tasks["double"].with_options(connection=connection, idempotency_key="k")
    first = (await options.send_async(5)).unwrap()
    assert (await options.send_async(5)).unwrap().task_id == first.task_id
    assert (await options.send_async(6)).unwrap_err().code is TaskSendErrorCode.IDEMPOTENCY_KEY_CONFLICT
    assert await connection.fetchval("SELECT args FROM horsies_tasks") == [5]


async def test_pooled_connection_is_accepted(app: Horsies, database_url: str) -> None:
    async with asyncpg.create_pool(database_url, min_size=1) as pool, pool.acquire() as connection:
        assert (await app.tasks["double"].with_options(connection=connection).send_async(5)).is_ok()


async def test_callers_search_path_is_kept(
    empty_database_url: str,
) -> None:
    connection = await asyncpg.connect(empty_database_url)
    await connection.execute('CREATE SCHEMA "OurQueue"')
    spec = ConnectionSpec(url=empty_database_url, masked_url="test", schema="OurQueue")
    async with Database(spec) as database:
        await migrate(database)
    app = make_app(empty_database_url, settings={"schema": "OurQueue"})
    before = await connection.fetchval("SHOW search_path")
    async with connection.transaction():
        handle = (await app.tasks["double"].with_options(connection=connection).send_async(5)).unwrap()
        assert await connection.fetchval("SHOW search_path") == before
    assert await connection.fetchval('SELECT id::text FROM "OurQueue".horsies_tasks') == handle.task_id
    await app.close_async()
    await connection.close()


async def test_same_table_name_in_the_callers_schema_is_ignored(
    app: Horsies, connection: asyncpg.Connection[Any]
) -> None:
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("CREATE SCHEMA theirs")
    await connection.execute("CREATE TABLE theirs.horsies_tasks (LIKE public.horsies_tasks INCLUDING ALL)")
    await connection.execute("SET LOCAL search_path = theirs")
    options = app.tasks["double"].with_options(connection=connection)
    assert (await options.send_async(5)).is_ok()
    assert (await options.send_many_async([(6,), (7,)])).is_ok()
    assert await connection.fetchval("SELECT count(*) FROM public.horsies_tasks") == 3
    assert await connection.fetchval("SELECT count(*) FROM theirs.horsies_tasks") == 0
    assert await connection.fetchval("SHOW search_path") == "theirs"
    await transaction.rollback()


async def test_transaction_opened_with_begin_is_accepted(app: Horsies, connection: asyncpg.Connection[Any]) -> None:
    task = app.tasks["double"]
    await connection.execute("BEGIN")
    assert (await task.with_options(connection=connection, idempotency_key="k").send_async(5)).is_ok()
    rejected = await task.with_options(connection=connection, idempotency_key="k").send_async(6)
    assert rejected.unwrap_err().code is TaskSendErrorCode.IDEMPOTENCY_KEY_CONFLICT
    assert (await task.with_options(connection=connection).send_many_async([(6,)])).is_ok()
    await connection.execute("COMMIT")
    assert await connection.fetchval("SELECT count(*) FROM horsies_tasks") == 2


async def test_failed_send_leaves_an_explicit_transaction_usable(
    app: Horsies, connection: asyncpg.Connection[Any]
) -> None:
    await connection.execute("BEGIN")
    await connection.execute("ALTER TABLE horsies_tasks ADD CHECK (args <> '[5]')")
    assert (await app.tasks["double"].with_options(connection=connection).send_async(5)).is_err()
    assert (await app.tasks["double"].with_options(connection=connection).send_async(6)).is_ok()
    await connection.execute("ROLLBACK")


async def test_busy_or_released_connection_is_not_retryable(app: Horsies, database_url: str) -> None:
    async with asyncpg.create_pool(database_url, min_size=1, max_size=1) as pool:
        options = app.tasks["double"].with_options(connection=(connection := await pool.acquire()))
        busy = asyncio.create_task(connection.execute("SELECT pg_sleep(0.2)"))
        await asyncio.sleep(0)
        in_use = (await options.send_async(5)).unwrap_err()
        await busy
        await pool.release(connection)
        released = (await options.send_async(5)).unwrap_err()
    for error in (in_use, released):
        assert (error.code, error.retryable) == (TaskSendErrorCode.ENQUEUE_FAILED, False)
        assert "the given connection cannot be used" in error.message


async def test_closed_connection_is_retryable(app: Horsies, database_url: str) -> None:
    closed = await asyncpg.connect(database_url)
    await closed.close()
    error = (await app.tasks["double"].with_options(connection=closed).send_async(5)).unwrap_err()
    assert (error.code, error.retryable) == (TaskSendErrorCode.ENQUEUE_FAILED, True)
    assert error.message == "the given connection is closed (pass an open connection)"


async def test_pool_instead_of_a_connection_is_rejected(app: Horsies, database_url: str) -> None:
    async with asyncpg.create_pool(database_url, min_size=1) as pool:
        error = (await app.tasks["double"].with_options(connection=pool).send_async(5)).unwrap_err()
    assert error.code is TaskSendErrorCode.VALIDATION_FAILED
    assert "acquire a connection from the pool and pass that" in error.message
