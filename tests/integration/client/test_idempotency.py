"""Idempotency keys: deduplication, conflicts, and waits for concurrent transactions."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import asyncpg

from horsies import Horsies, TaskSendErrorCode
from tests.support.store import fetch_rows, make_app


def test_concurrent_producers_with_one_key_store_one_task(database_url: str) -> None:
    """Each producer has its own app, pool and thread, like a separate program."""
    apps = [make_app(database_url) for _ in range(20)]

    def produce(app: Horsies) -> str:
        async def send() -> str:
            return (await app.tasks["double"].with_options(idempotency_key="k").send_async(5)).unwrap().task_id

        return asyncio.run(send())

    with ThreadPoolExecutor(20) as producers:
        ids = set(producers.map(produce, apps))
    assert fetch_rows(database_url, "SELECT id::text FROM horsies_tasks") == [(ids.pop(),)]
    assert not ids


async def test_key_is_kept_until_the_task_is_deleted(app: Horsies, connection: asyncpg.Connection[Any]) -> None:
    options = app.tasks["double"].with_options(idempotency_key="k")
    first = (await options.send_async(5)).unwrap()
    await connection.execute("UPDATE horsies_tasks SET status = 'COMPLETED', terminal_at = now()")
    assert (await options.send_async(5)).unwrap().task_id == first.task_id
    await connection.execute("DELETE FROM horsies_tasks")
    assert (await options.send_async(5)).unwrap().task_id != first.task_id


async def test_other_arguments_with_the_same_key_conflict(app: Horsies) -> None:
    options = app.tasks["double"].with_options(idempotency_key="k")
    first = (await options.send_async(5)).unwrap()
    error = (await options.send_async(6)).unwrap_err()
    assert (error.code, error.retryable) == (TaskSendErrorCode.IDEMPOTENCY_KEY_CONFLICT, False)
    assert first.task_id in error.message


async def test_keys_are_scoped_to_the_task_name(app: Horsies) -> None:
    first = await app.tasks["double"].with_options(idempotency_key="k").send_async(5)
    other = await app.tasks["tomorrow"].with_options(idempotency_key="k").send_async("2030-01-01")
    assert first.unwrap().task_id != other.unwrap().task_id


async def test_send_waits_for_an_open_transaction_with_its_key(
    app: Horsies, connection: asyncpg.Connection[Any]
) -> None:
    task = app.tasks["double"]
    transaction = connection.transaction()
    await transaction.start()
    first = (await task.with_options(idempotency_key="k", connection=connection).send_async(5)).unwrap()
    waiting = asyncio.create_task(task.with_options(idempotency_key="k").send_async(5))
    await _until_lock_waiter(connection)
    await transaction.commit()
    assert (await waiting).unwrap().task_id == first.task_id


async def test_send_succeeds_after_the_first_was_rolled_back(app: Horsies, connection: asyncpg.Connection[Any]) -> None:
    task = app.tasks["double"]
    transaction = connection.transaction()
    await transaction.start()
    first = (await task.with_options(idempotency_key="k", connection=connection).send_async(5)).unwrap()
    waiting = asyncio.create_task(task.with_options(idempotency_key="k").send_async(6))
    await _until_lock_waiter(connection)
    await transaction.rollback()
    assert (await waiting).unwrap().task_id != first.task_id


async def test_wait_for_a_key_ends_with_the_pool_timeout(
    database_url: str, connection: asyncpg.Connection[Any]
) -> None:
    app = make_app(database_url, settings={"pool_timeout": 1}, resend_on_transient_err=True)
    task = app.tasks["double"]
    async with connection.transaction():
        await task.with_options(idempotency_key="k", connection=connection).send_async(5)
        started_at = time.monotonic()
        error = (await task.with_options(idempotency_key="k").send_async(5)).unwrap_err()
        waited = time.monotonic() - started_at
    assert (error.code, error.retryable) == (TaskSendErrorCode.ENQUEUE_FAILED, True)
    assert "another open transaction seems to hold the idempotency key 'k' of double" in error.message
    assert 0.9 < waited < 3
    assert (await task.retry_send_async(error)).is_ok()
    await app.close_async()


async def test_sends_waiting_for_a_key_do_not_block_others(
    database_url: str, connection: asyncpg.Connection[Any]
) -> None:
    app = make_app(database_url, settings={"pool_size": 2, "max_overflow": 0, "pool_timeout": 2})
    task = app.tasks["double"]
    async with connection.transaction():
        await task.with_options(idempotency_key="k", connection=connection).send_async(5)
        waiting = [asyncio.create_task(task.with_options(idempotency_key="k").send_async(5)) for _ in range(5)]
        await _until_lock_waiter(connection)
        async with asyncio.timeout(1):
            assert (await task.send_async(6)).is_ok()
        errors = [(await send).unwrap_err() for send in waiting]
    assert all(error.retryable and "idempotency key" in error.message for error in errors)
    await app.close_async()


async def _until_lock_waiter(connection: asyncpg.Connection[Any]) -> None:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(10):
        while not await connection.fetchval(waiting):
            # Inside a transaction the view is a cached snapshot.
            await connection.execute("SELECT pg_stat_clear_snapshot()")
