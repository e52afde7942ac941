"""Bulk sends: batches, validation, atomicity."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import asyncpg

from horsies import Horsies, TaskFunction, TaskSendErrorCode
from tests.support.store import count_tasks, listen_on, make_app

ITEMS = 2500


def double_task(app: Horsies) -> TaskFunction[..., Any]:
    return app.tasks["double"]


def test_bulk_send_stores_all_items(blocking_app: Horsies, database_url: str) -> None:
    handles = double_task(blocking_app).send_many([{"n": number} for number in range(10)]).unwrap()
    assert count_tasks(database_url) == 10
    for number, handle in enumerate(handles):
        document = blocking_app.get_task_info(handle.task_id).unwrap()
        assert document is not None, number


async def test_bulk_send_of_2500_items_takes_three_statements(
    app: Horsies, connection: asyncpg.Connection[Any]
) -> None:
    handles = (await double_task(app).send_many_async([(number,) for number in range(ITEMS)])).unwrap()
    by_id = {str(row["id"]): row["args"] for row in await connection.fetch("SELECT id, args FROM horsies_tasks")}
    assert [by_id[handle.task_id] for handle in handles] == [f"[{number}]" for number in range(ITEMS)]
    # Each statement reads the clock for its own rows; rows of one transaction share their xmin.
    stored = (
        "SELECT count(DISTINCT enqueued_at) AS instants, count(DISTINCT xmin::text) AS transactions FROM horsies_tasks"
    )
    row = await connection.fetchrow(stored)
    assert row is not None
    assert row["transactions"] == 1
    assert row["instants"] == 3


async def test_invalid_item_in_a_later_batch_stores_nothing(app: Horsies, connection: asyncpg.Connection[Any]) -> None:
    items: list[tuple[object, ...]] = [(number,) for number in range(ITEMS)]
    items[1700] = ("not a number",)
    error = (await double_task(app).send_many_async(items)).unwrap_err()
    assert error.code is TaskSendErrorCode.VALIDATION_FAILED
    assert "item 1700" in error.message
    assert await connection.fetchval("SELECT count(*) FROM horsies_tasks") == 0


async def test_bulk_send_notifies_once_per_queue(app: Horsies, connection: asyncpg.Connection[Any]) -> None:
    notifications = await listen_on(connection, "horsies_task_new")
    await double_task(app).send_many_async([(number,) for number in range(ITEMS)])
    assert await notifications.get() == "default"
    # Earlier notifications arrive before the answer of this query.
    await connection.fetchval("SELECT 1")
    assert notifications.empty()


async def test_empty_bulk_send_needs_no_database() -> None:
    app = make_app("postgresql://nobody@127.0.0.1:1/nothing")
    assert (await double_task(app).send_many_async([])).unwrap() == []


async def test_bulk_send_can_use_the_callers_transaction(app: Horsies, connection: asyncpg.Connection[Any]) -> None:
    transaction = connection.transaction()
    await transaction.start()
    options = double_task(app).with_options(connection=connection)
    assert len((await options.send_many_async([(1,), (2,)])).unwrap()) == 2
    await transaction.rollback()
    assert await connection.fetchval("SELECT count(*) FROM horsies_tasks") == 0


async def test_invalid_item_leaves_the_callers_transaction_usable(
    app: Horsies, connection: asyncpg.Connection[Any]
) -> None:
    items: list[tuple[object, ...]] = [(number,) for number in range(ITEMS)]
    async with connection.transaction():
        options = double_task(app).with_options(connection=connection)
        assert (await options.send_async(5)).is_ok()
        assert "item 2400" in (await options.send_many_async([*items[:2400], ("not a number",)])).unwrap_err().message
    assert await connection.fetchval("SELECT count(*) FROM horsies_tasks") == 1


def test_blocking_bulk_send_validates_items_before_storing(blocking_app: Horsies, database_url: str) -> None:
    items: list[tuple[object, ...]] = [*((number,) for number in range(ITEMS)), ("not a number",)]
    assert f"item {ITEMS}" in double_task(blocking_app).send_many(items).unwrap_err().message
    assert count_tasks(database_url) == 0


async def test_items_may_reuse_one_mutable_row(app: Horsies, connection: asyncpg.Connection[Any]) -> None:
    row = {"n": 0}

    def reused_row() -> Iterator[dict[str, int]]:
        for row["n"] in range(3):
            yield row

    (await double_task(app).send_many_async(reused_row())).unwrap()
    stored = await connection.fetch("SELECT kwargs FROM horsies_tasks ORDER BY id")
    assert [stored_row["kwargs"] for stored_row in stored] == [f'{{"n": {number}}}' for number in range(3)]


async def test_changing_items_during_the_send_has_no_effect(app: Horsies, connection: asyncpg.Connection[Any]) -> None:
    items = [{"n": 1} for _ in range(ITEMS)]
    sending = asyncio.create_task(double_task(app).send_many_async(items))
    await asyncio.sleep(0)
    for item in items:
        item["n"] = 2
    assert (await sending).is_ok()
    assert await connection.fetchval("SELECT count(*) FROM horsies_tasks WHERE kwargs <> '{\"n\": 1}'") == 0


async def test_invalid_item_is_rejected_without_a_database() -> None:
    app = make_app("postgresql://nobody@127.0.0.1:1/nothing")
    items: list[tuple[object, ...]] = [*((number,) for number in range(ITEMS)), ("not a number",)]
    assert (await double_task(app).send_many_async(items)).unwrap_err().code is TaskSendErrorCode.VALIDATION_FAILED
