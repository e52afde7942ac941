from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import asyncpg

from horsies import Horsies, TaskFunction, TaskSendErrorCode
from tests.support.store import count_tasks, listen_on, make_app

ITEMS = 2500


def doubling(app: Horsies) -> TaskFunction[..., Any]:
    return app.tasks["double"]


def test_a_bulk_send_stores_all_in_order(blocking_app: Horsies, database_url: str) -> None:
    handles = doubling(blocking_app).send_many([{"n": number} for number in range(10)]).unwrap()
    assert count_tasks(database_url) == 10
    for number, handle in enumerate(handles):
        document = blocking_app.get_task_info(handle.task_id).unwrap()
        assert document is not None, number


async def test_2500_items_take_three_statements_and_keep_their_order(
    app: Horsies, connection: asyncpg.Connection[Any]
) -> None:
    handles = (await doubling(app).send_many_async([(number,) for number in range(ITEMS)])).unwrap()
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


async def test_one_bad_item_late_in_the_list_stores_nothing(app: Horsies, connection: asyncpg.Connection[Any]) -> None:
    items: list[tuple[object, ...]] = [(number,) for number in range(ITEMS)]
    items[1700] = ("no number",)
    error = (await doubling(app).send_many_async(items)).unwrap_err()
    assert error.code is TaskSendErrorCode.VALIDATION_FAILED
    assert "item 1700" in error.message
    assert await connection.fetchval("SELECT count(*) FROM horsies_tasks") == 0


async def test_a_bulk_send_is_announced_once_a_queue(app: Horsies, connection: asyncpg.Connection[Any]) -> None:
    heard = await listen_on(connection, "horsies_task_new")
    await doubling(app).send_many_async([(number,) for number in range(ITEMS)])
    assert await heard.get() == "default"
    # Whatever was said before this answer has been heard by now.
    await connection.fetchval("SELECT 1")
    assert heard.empty()


async def test_nothing_to_send_needs_no_database() -> None:
    app = make_app("postgresql://nobody@127.0.0.1:1/nothing")
    assert (await doubling(app).send_many_async([])).unwrap() == []


async def test_a_bulk_send_can_be_part_of_the_callers_transaction(
    app: Horsies, connection: asyncpg.Connection[Any]
) -> None:
    transaction = connection.transaction()
    await transaction.start()
    options = doubling(app).with_options(connection=connection)
    assert len((await options.send_many_async([(1,), (2,)])).unwrap()) == 2
    await transaction.rollback()
    assert await connection.fetchval("SELECT count(*) FROM horsies_tasks") == 0


async def test_a_bad_item_that_is_met_on_the_way_leaves_the_callers_transaction_usable(
    app: Horsies, connection: asyncpg.Connection[Any]
) -> None:
    items: list[tuple[object, ...]] = [(number,) for number in range(ITEMS)]
    async with connection.transaction():
        options = doubling(app).with_options(connection=connection)
        assert (await options.send_async(5)).is_ok()
        assert "item 2400" in (await options.send_many_async([*items[:2400], ("no number",)])).unwrap_err().message
    assert await connection.fetchval("SELECT count(*) FROM horsies_tasks") == 1


def test_a_blocking_bulk_send_looks_at_every_item_in_the_callers_thread(
    blocking_app: Horsies, database_url: str
) -> None:
    items: list[tuple[object, ...]] = [*((number,) for number in range(ITEMS)), ("no number",)]
    assert f"item {ITEMS}" in doubling(blocking_app).send_many(items).unwrap_err().message
    assert count_tasks(database_url) == 0


async def test_items_are_stored_as_they_were_when_each_was_made(
    app: Horsies, connection: asyncpg.Connection[Any]
) -> None:
    row = {"n": 0}

    def reused() -> Iterator[dict[str, int]]:
        for row["n"] in range(3):
            yield row

    (await doubling(app).send_many_async(reused())).unwrap()
    stored = await connection.fetch("SELECT kwargs FROM horsies_tasks ORDER BY id")
    assert [each["kwargs"] for each in stored] == [f'{{"n": {number}}}' for number in range(3)]


async def test_what_happens_to_items_while_they_are_on_their_way_changes_nothing(
    app: Horsies, connection: asyncpg.Connection[Any]
) -> None:
    items = [{"n": 1} for _ in range(ITEMS)]
    sending = asyncio.create_task(doubling(app).send_many_async(items))
    await asyncio.sleep(0)
    for item in items:
        item["n"] = 2
    assert (await sending).is_ok()
    assert await connection.fetchval("SELECT count(*) FROM horsies_tasks WHERE kwargs <> '{\"n\": 1}'") == 0


async def test_a_bad_item_is_found_before_the_database_is_asked() -> None:
    app = make_app("postgresql://nobody@127.0.0.1:1/nothing")
    items: list[tuple[object, ...]] = [*((number,) for number in range(ITEMS)), ("no number",)]
    assert (await doubling(app).send_many_async(items)).unwrap_err().code is TaskSendErrorCode.VALIDATION_FAILED
