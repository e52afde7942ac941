"""Workers hear of a task that was sent: at once, or a moment later where sends crowd."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from tests.support.tasks import heard_on

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator

    from horsies import Horsies

TAKE_THE_TURN = "SELECT pg_try_advisory_xact_lock(horsies_lock_key('announce/default'))"


@pytest.fixture
async def heard(connection: asyncpg.Connection[Any]) -> asyncio.Queue[str]:
    return await heard_on(connection, "horsies_task_new")


@pytest.fixture
async def other(database_url: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    other = await asyncpg.connect(database_url)
    yield other
    await other.close()


async def closing_word(heard: asyncio.Queue[str], other: asyncpg.Connection[Any]) -> list[str]:
    """Everything heard until now: notifications come in the order of their commits, and this one is the last."""
    await other.execute("NOTIFY horsies_task_new, 'end'")
    words: list[str] = []
    while (word := await heard.get()) != "end":
        words.append(word)
    return words


async def test_a_send_announces_its_queue_once(
    app: Horsies, heard: asyncio.Queue[str], other: asyncpg.Connection[Any]
) -> None:
    (await app.tasks["double"].send_async(1)).unwrap()
    assert await closing_word(heard, other) == ["default"]


async def test_a_delayed_send_announces_nothing(
    app: Horsies, heard: asyncio.Queue[str], other: asyncpg.Connection[Any]
) -> None:
    (await app.tasks["double"].schedule_async(60, 1)).unwrap()
    await app.close_async()
    assert await closing_word(heard, other) == []


async def test_a_send_that_was_stored_before_announces_nothing_again(
    app: Horsies, heard: asyncio.Queue[str], other: asyncpg.Connection[Any]
) -> None:
    for _ in range(2):
        (await app.tasks["double"].with_options(idempotency_key="once").send_async(1)).unwrap()
    assert await closing_word(heard, other) == ["default"]


async def test_a_send_during_anothers_announcement_is_stored_at_once_and_announced_afterwards(
    app: Horsies, heard: asyncio.Queue[str], other: asyncpg.Connection[Any]
) -> None:
    async with other.transaction():
        assert await other.fetchval(TAKE_THE_TURN)
        (await app.tasks["double"].send_async(1)).unwrap()
        assert await other.fetchval("SELECT count(*) FROM horsies_tasks") == 1
        assert await heard.get() == "default"
    assert await closing_word(heard, other) == []


async def test_a_burst_is_announced_when_the_app_closes_right_after_it(
    app: Horsies, heard: asyncio.Queue[str], other: asyncpg.Connection[Any]
) -> None:
    async with other.transaction():
        assert await other.fetchval(TAKE_THE_TURN)
        (await app.tasks["double"].send_async(1)).unwrap()
        await app.close_async()
    assert await closing_word(heard, other) == ["default"]


async def test_a_send_leaves_the_trigger_on_for_the_next_transaction_of_its_connection(
    app: Horsies, heard: asyncio.Queue[str], other: asyncpg.Connection[Any]
) -> None:
    (await app.tasks["double"].send_async(1)).unwrap()
    (await app.tasks["double"].send_many_async([(2,), (3,)])).unwrap()
    assert await closing_word(heard, other) == ["default", "default"]
