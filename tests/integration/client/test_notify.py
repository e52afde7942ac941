"""Notifications of sends: with the commit, or coalesced during bursts."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from horsies import Horsies
from horsies.client.payload import DEFAULT_OPTIONS
from horsies.model.send import SendOutcome
from horsies.store.tasks import Notify
from tests.support.store import listen_on, until_lock_waiters

TAKE_NOTIFY_LOCK = "SELECT pg_try_advisory_xact_lock(horsies_lock_key('announce/default'))"
NOTIFY_EACH_INSERT = """
CREATE OR REPLACE FUNCTION notify_stored() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('horsies_task_new', 'stored');
    RETURN NULL;
END
$$;
CREATE TRIGGER notify_stored AFTER INSERT ON horsies_tasks EXECUTE FUNCTION notify_stored();
"""
BURST_PROGRAM = """
import sys
from horsies.client import delivery
from tests.support.store import make_app
delivery.BURST_GAP_S = delivery.FLUSH_AFTER_S = 60
task = make_app(sys.argv[1]).tasks["double"]
for number in range(20):
    task.send(number).unwrap()
"""


@pytest.fixture
async def notifications(connection: asyncpg.Connection[Any]) -> asyncio.Queue[str]:
    return await listen_on(connection, "horsies_task_new")


@pytest.fixture
async def other(database_url: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    other = await asyncpg.connect(database_url)
    yield other
    await other.close()


async def drain_notifications(notifications: asyncio.Queue[str], other: asyncpg.Connection[Any]) -> list[str]:
    """All notifications so far: they arrive in commit order, so a final one marks the end."""
    await other.execute("NOTIFY horsies_task_new, 'end'")
    received: list[str] = []
    while (payload := await notifications.get()) != "end":
        received.append(payload)
    return received


async def test_send_notifies_its_queue_once(
    app: Horsies, notifications: asyncio.Queue[str], other: asyncpg.Connection[Any]
) -> None:
    (await app.tasks["double"].send_async(1)).unwrap()
    assert await drain_notifications(notifications, other) == ["default"]


@pytest.mark.parametrize(("delay_s", "queues"), [(30, ["default"]), (3600, [])])
async def test_delayed_send_notifies_only_if_due_soon(
    app: Horsies, notifications: asyncio.Queue[str], other: asyncpg.Connection[Any], delay_s: int, queues: list[str]
) -> None:
    (await app.tasks["double"].schedule_async(delay_s, 1)).unwrap()
    await app.close_async()
    assert await drain_notifications(notifications, other) == queues


async def test_deduplicated_send_does_not_notify_again(
    app: Horsies, notifications: asyncio.Queue[str], other: asyncpg.Connection[Any]
) -> None:
    for _ in range(2):
        (await app.tasks["double"].with_options(idempotency_key="once").send_async(1)).unwrap()
    assert await drain_notifications(notifications, other) == ["default"]


async def test_contended_send_is_stored_at_once_and_notified_later(
    app: Horsies, notifications: asyncio.Queue[str], other: asyncpg.Connection[Any]
) -> None:
    async with other.transaction():
        assert await other.fetchval(TAKE_NOTIFY_LOCK)
        (await app.tasks["double"].send_async(1)).unwrap()
        assert await other.fetchval("SELECT count(*) FROM horsies_tasks") == 1
        assert await notifications.get() == "default"
    assert await drain_notifications(notifications, other) == []


async def test_closing_the_app_flushes_deferred_notifications(
    app: Horsies, notifications: asyncio.Queue[str], other: asyncpg.Connection[Any]
) -> None:
    async with other.transaction():
        assert await other.fetchval(TAKE_NOTIFY_LOCK)
        (await app.tasks["double"].send_async(1)).unwrap()
        await app.close_async()
    assert await drain_notifications(notifications, other) == ["default"]


async def test_bulk_send_after_a_send_still_notifies_by_trigger(
    app: Horsies, notifications: asyncio.Queue[str], other: asyncpg.Connection[Any]
) -> None:
    (await app.tasks["double"].send_async(1)).unwrap()
    (await app.tasks["double"].send_many_async([(2,), (3,)])).unwrap()
    assert await drain_notifications(notifications, other) == ["default", "default"]


async def test_long_burst_notifies_rarely_but_after_its_last_task(
    app: Horsies, notifications: asyncio.Queue[str], other: asyncpg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horsies.client.delivery.BURST_GAP_S", 60)
    await other.execute(NOTIFY_EACH_INSERT)
    for number in range(50):
        (await app.tasks["double"].send_async(number)).unwrap()
    received: list[str] = []
    async with asyncio.timeout(10):
        # Notifications arrive in commit order.
        while received.count("stored") < 50 or received[-1] != "default":
            received.append(await notifications.get())
    await other.execute("DROP TRIGGER notify_stored ON horsies_tasks")
    assert received.count("default") < 50


async def test_blocking_sends_are_flushed_at_program_exit(
    database_url: str, notifications: asyncio.Queue[str], other: asyncpg.Connection[Any]
) -> None:
    await other.execute(NOTIFY_EACH_INSERT)
    program = await asyncio.create_subprocess_exec(sys.executable, "-c", BURST_PROGRAM, database_url)
    assert await program.wait() == 0
    await other.execute("DROP TRIGGER notify_stored ON horsies_tasks")
    assert (await drain_notifications(notifications, other))[-1] == "default"


async def test_cancelled_deferred_send_is_notified_as_it_may_be_stored(
    app: Horsies, notifications: asyncio.Queue[str], other: asyncpg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horsies.client.delivery.BURST_GAP_S", 60)
    for number in range(20):
        (await app.tasks["double"].send_async(number)).unwrap()
    session = await app.get_broker().session()
    await session.notify_coalescer.flush()
    await drain_notifications(notifications, other)
    async with other.transaction():
        await other.execute("LOCK TABLE horsies_tasks IN SHARE MODE")
        cancelled = asyncio.create_task(app.tasks["double"].send_async(20))
        await until_lock_waiters(other)
        cancelled.cancel()
        await asyncio.wait([cancelled])
    async with asyncio.timeout(10):
        assert await notifications.get() == "default"


@pytest.mark.parametrize("notify", Notify)
async def test_each_notify_mode_stores_a_task_once(
    app: Horsies, connection: asyncpg.Connection[Any], notify: Notify
) -> None:
    session = await app.get_broker().session()
    payload = app.tasks["double"].payload_builder.build(DEFAULT_OPTIONS, (1,), {})
    stored, again = [await session.tasks.enqueue(payload, notify=notify) for _ in range(2)]
    assert (stored.outcome, stored.is_notified) == (SendOutcome.STORED, notify is not Notify.NEVER)
    assert (again.outcome, again.is_notified) == (SendOutcome.ALREADY_STORED, False)
    assert await connection.fetchval("SELECT count(*) FROM horsies_tasks") == 1


async def test_starting_a_run_after_a_send_notifies(
    app: Horsies, notifications: asyncio.Queue[str], other: asyncpg.Connection[Any]
) -> None:
    (await app.tasks["double"].send_async(1)).unwrap()
    spec = app.workflow("one", [app.tasks["double"].node()(n=5)], definition_key="tests.one")
    (await spec.start_async()).unwrap()
    assert await drain_notifications(notifications, other) == ["default", "default"]
