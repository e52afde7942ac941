"""Workers hear of a task that was sent: at once, or a moment later where sends crowd."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from horsies import Horsies
from horsies.client.payload import DEFAULT_OPTIONS
from horsies.model.send import CompactPayload
from horsies.store.connection import UNIQUE_VIOLATION, StatementFailed
from tests.support.store import listen_on, until_lock_waiters

TAKE_THE_TURN = "SELECT pg_try_advisory_xact_lock(horsies_lock_key('announce/default'))"
TELL_WHAT_IS_STORED = """
CREATE OR REPLACE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('horsies_task_new', 'stored');
    RETURN NULL;
END
$$;
CREATE TRIGGER tell AFTER INSERT ON horsies_tasks EXECUTE FUNCTION tell();
"""
HURRIED = """
import sys
from horsies.client import notify as announcing
from tests.support.store import make_app
announcing.PAUSE_S = announcing.SPEAK_EVERY_S = announcing.WAIT_S = 60
task = make_app(sys.argv[1]).tasks["double"]
for number in range(20):
    task.send(number).unwrap()
"""


@pytest.fixture
async def heard(connection: asyncpg.Connection[Any]) -> asyncio.Queue[str]:
    return await listen_on(connection, "horsies_task_new")


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


async def test_a_long_row_of_sends_says_little_and_its_last_word_comes_after_its_last_task(
    app: Horsies, heard: asyncio.Queue[str], other: asyncpg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horsies.client.notify.BURST_GAP_S", 60)
    monkeypatch.setattr("horsies.client.notify.NOTIFY_INTERVAL_S", 60)
    await other.execute(TELL_WHAT_IS_STORED)
    for number in range(50):
        (await app.tasks["double"].send_async(number)).unwrap()
    words: list[str] = []
    async with asyncio.timeout(10):
        # All of them in the order of their commits.
        while words.count("stored") < 50 or words[-1] != "default":
            words.append(await heard.get())
    await other.execute("DROP TRIGGER tell ON horsies_tasks")
    assert words.count("default") < 50


async def test_a_program_of_blocking_sends_has_its_last_word_when_it_ends(
    database_url: str, heard: asyncio.Queue[str], other: asyncpg.Connection[Any]
) -> None:
    await other.execute(TELL_WHAT_IS_STORED)
    program = await asyncio.create_subprocess_exec(sys.executable, "-c", HURRIED, database_url)
    assert await program.wait() == 0
    await other.execute("DROP TRIGGER tell ON horsies_tasks")
    assert (await closing_word(heard, other))[-1] == "default"


async def test_a_send_of_a_long_row_that_is_given_up_is_announced_for_it_may_be_stored(
    app: Horsies, heard: asyncio.Queue[str], other: asyncpg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horsies.client.notify.BURST_GAP_S", 60)
    monkeypatch.setattr("horsies.client.notify.NOTIFY_INTERVAL_S", 60)
    for number in range(20):
        (await app.tasks["double"].send_async(number)).unwrap()
    session = await app.get_broker().session()
    await session.notify_coalescer.flush()
    await closing_word(heard, other)
    async with other.transaction():
        await other.execute("LOCK TABLE horsies_tasks IN SHARE MODE")
        given_up = asyncio.create_task(app.tasks["double"].send_async(20))
        await until_lock_waiters(other)
        given_up.cancel()
        await asyncio.wait([given_up])
    async with asyncio.timeout(10):
        assert await heard.get() == "default"


async def test_a_task_of_a_long_row_that_is_there_already_is_stored_once(
    app: Horsies, connection: asyncpg.Connection[Any]
) -> None:
    session = await app.get_broker().session()
    sent = app.tasks["double"].payload_builder.build(DEFAULT_OPTIONS, (1,), {})
    assert isinstance(sent, CompactPayload)
    await session.tasks.enqueue_without_notify(sent)
    with pytest.raises(StatementFailed) as caught:
        await session.tasks.enqueue_without_notify(sent)
    assert caught.value.sqlstate == UNIQUE_VIOLATION
    assert await connection.fetchval("SELECT count(*) FROM horsies_tasks") == 1


async def test_a_run_that_is_started_after_a_send_is_announced_by_its_transaction(
    app: Horsies, heard: asyncio.Queue[str], other: asyncpg.Connection[Any]
) -> None:
    (await app.tasks["double"].send_async(1)).unwrap()
    spec = app.workflow("one", [app.tasks["double"].node()(n=5)], definition_key="tests.one")
    (await spec.start_async()).unwrap()
    assert await closing_word(heard, other) == ["default", "default"]
