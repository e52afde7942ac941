"""Single sends and the rows they store."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from horsies import Horsies, TaskSendErrorCode, TaskStatus
from tests.support.store import count_tasks, fetch_rows, make_app


def test_a_send_stores_a_pending_task(blocking_app: Horsies, database_url: str) -> None:
    handle = blocking_app.tasks["double"].send(5, note="x").unwrap()
    rows = fetch_rows(
        database_url, "SELECT id::text, status, args::text, kwargs::text, enqueued_at - sent_at FROM horsies_tasks"
    )
    ((task_id, status, args, kwargs, gap),) = rows
    assert (task_id, status, args, kwargs) == (handle.task_id, "PENDING", "[5]", '{"note": "x"}')
    assert abs(gap) < timedelta(seconds=5)


async def test_async_send_stores_a_pending_task(app: Horsies) -> None:
    handle = (await app.tasks["double"].send_async(5)).unwrap()
    info = (await handle.info_async()).unwrap()
    assert info is not None
    assert (info.task_name, info.status, info.queue_name, info.priority) == (
        "double",
        TaskStatus.PENDING,
        "default",
        100,
    )


async def test_scheduled_task_is_due_later(app: Horsies, connection: asyncpg.Connection[Any]) -> None:
    await app.tasks["double"].schedule_async(3600, 5)
    due_in = await connection.fetchval("SELECT enqueued_at - now() FROM horsies_tasks")
    assert timedelta(seconds=3590) < due_in <= timedelta(seconds=3600)


async def test_delay_may_be_a_fraction_of_a_second(app: Horsies, connection: asyncpg.Connection[Any]) -> None:
    (await app.tasks["double"].schedule_async(0.5, 5)).unwrap()
    delay = await connection.fetchval("SELECT enqueued_at - sent_at FROM horsies_tasks")
    assert timedelta(seconds=0.5) <= delay < timedelta(seconds=1)


async def test_send_options_are_stored(app: Horsies) -> None:
    good_until = datetime(2040, 1, 1, tzinfo=UTC)
    options = app.tasks["double"].with_options(good_until=good_until, priority=3, flags={"fast": True, "slow": False})
    handle = (await options.send_async(5)).unwrap()
    info = (await handle.info_async()).unwrap()
    assert info is not None
    assert (info.good_until, info.priority, info.flags) == (good_until, 3, {"fast": True, "slow": False})


async def test_rejected_send_stores_no_row(app: Horsies, connection: asyncpg.Connection[Any]) -> None:
    task: Any = app.tasks["double"]
    for result in (
        await task.send_async("x"),
        await task.schedule_async(-1, 5),
        await task.with_options(good_until=datetime(2040, 1, 1)).send_async(5),  # noqa: DTZ001
        await task.with_options(connection="no connection").send_async(5),
    ):
        assert result.unwrap_err().code is TaskSendErrorCode.VALIDATION_FAILED
    assert await connection.fetchval("SELECT count(*) FROM horsies_tasks") == 0


async def test_repeated_retry_stores_one_row(app: Horsies, connection: asyncpg.Connection[Any]) -> None:
    task = app.tasks["double"]
    error = task.send(5).unwrap_err()
    first, again = await task.retry_send_async(error), await task.retry_send_async(error)
    assert first.unwrap().task_id == again.unwrap().task_id == error.task_id
    assert await connection.fetchval("SELECT count(*) FROM horsies_tasks") == 1


async def test_another_payload_with_the_same_id_is_rejected(app: Horsies, connection: asyncpg.Connection[Any]) -> None:
    task = app.tasks["double"]
    error = task.send(5).unwrap_err()
    assert error.payload is not None
    await task.retry_send_async(error)
    changed = replace(error, payload=error.payload._replace(args="[6]"))
    rejected = (await task.retry_send_async(changed)).unwrap_err()
    assert (rejected.code, rejected.retryable) == (TaskSendErrorCode.PAYLOAD_MISMATCH, False)
    assert await connection.fetchval("SELECT args::text FROM horsies_tasks") == "[5]"


async def test_blocking_schedule_inside_a_loop_can_be_retried_async(
    app: Horsies, connection: asyncpg.Connection[Any]
) -> None:
    task = app.tasks["double"]
    error = task.schedule(60, 5).unwrap_err()
    assert error.code is TaskSendErrorCode.ASYNC_CONTEXT
    handle = (await task.retry_schedule_async(error)).unwrap()
    assert handle.task_id == error.task_id
    assert await connection.fetchval("SELECT id::text FROM horsies_tasks") == error.task_id


def test_suppressed_send_stores_no_row(blocking_app: Horsies, database_url: str) -> None:
    blocking_app.suppress_sends(True)
    assert blocking_app.tasks["double"].send(5).unwrap_err().code is TaskSendErrorCode.SEND_SUPPRESSED
    assert count_tasks(database_url) == 0


async def test_database_without_tables_names_the_migrate_command(empty_database_url: str) -> None:
    app = make_app(empty_database_url)
    error = (await app.tasks["double"].send_async(5)).unwrap_err()
    await app.close_async()
    assert (error.code, error.retryable) == (TaskSendErrorCode.ENQUEUE_FAILED, False)
    assert "horsies db migrate" in error.message
