"""The connection pool: reuse, waiting, timeouts and closing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from horsies.store import database
from horsies.store.connection import ConnectionSpec
from horsies.store.database import ConnectionPool, PoolSettings


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[ConnectionPool]:
    pool = ConnectionPool(
        ConnectionSpec(url=database_url, masked_url="test"), PoolSettings(max_size=2, acquire_timeout_s=5)
    )
    yield pool
    await pool.close()


async def test_most_recently_used_connection_is_reused(pool: ConnectionPool) -> None:
    first, second = await pool.acquire(), await pool.acquire()
    pool.release(first)
    pool.release(second)
    assert await pool.acquire() is second
    pool.release(second)


async def test_waiter_gets_the_next_released_connection(pool: ConnectionPool) -> None:
    first, second = await pool.acquire(), await pool.acquire()
    waiting = asyncio.create_task(pool.acquire())
    pool.release(first)
    assert await waiting is first
    pool.release(first)
    pool.release(second)


async def test_waiters_are_served_in_order(pool: ConnectionPool) -> None:
    first, second = await pool.acquire(), await pool.acquire()
    waiting = asyncio.create_task(pool.acquire())
    await asyncio.sleep(0)
    pool.release(first)
    late = asyncio.create_task(pool.acquire())
    assert await waiting is first
    assert not late.done()
    pool.release(first)
    assert await late is first
    pool.release(first)
    pool.release(second)


async def test_slot_granted_at_timeout_goes_to_next_waiter(pool: ConnectionPool) -> None:
    first, second = await pool.acquire(), await pool.acquire()
    impatient, patient = asyncio.create_task(pool.acquire()), asyncio.create_task(pool.acquire())
    await asyncio.sleep(0)
    pool.release(first)
    impatient.cancel()
    assert await patient is first
    assert impatient.cancelled()
    pool.release(first)
    pool.release(second)
    both = [await pool.acquire() for _ in range(2)]
    assert set(both) == {first, second}
    for connection in both:
        pool.release(connection)


async def test_timed_out_waiters_are_removed(pool: ConnectionPool) -> None:
    both = [await pool.acquire() for _ in range(2)]
    waiting = asyncio.create_task(pool.acquire())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    for connection in both:
        pool.release(connection)
    again = [await pool.acquire() for _ in range(2)]
    assert set(again) == set(both)
    for connection in both:
        pool.release(connection)


async def test_failed_connect_releases_its_slot(empty_database_url: str) -> None:
    url = empty_database_url.replace("/test_", "/nope_")
    pool = ConnectionPool(ConnectionSpec(url=url, masked_url="test"), PoolSettings(max_size=1, acquire_timeout_s=5))
    for _ in range(2):
        with pytest.raises(Exception, match="does not exist"):
            await pool.acquire()


async def test_connection_in_transaction_is_dropped_on_release(pool: ConnectionPool) -> None:
    left_open = await pool.acquire()
    await left_open.execute("BEGIN")
    pool.release(left_open)
    assert left_open.is_closed()


async def test_terminated_connection_releases_its_slot(pool: ConnectionPool) -> None:
    for _ in range(3):
        terminated = await pool.acquire()
        terminated.terminate()
        pool.release(terminated)


async def test_idle_connections_are_closed_down_to_min_size(database_url: str) -> None:
    pool = ConnectionPool(
        ConnectionSpec(url=database_url, masked_url="test"), PoolSettings(min_size=1, max_size=2, idle_s=0)
    )
    older, newer = await pool.acquire(), await pool.acquire()
    closed = asyncio.Event()
    older.add_termination_listener(lambda _: closed.set())
    pool.release(older)
    pool.release(newer)
    await closed.wait()
    assert older.is_closed()
    assert not newer.is_closed()
    await pool.close()


async def test_connection_in_use_at_close_is_closed_on_release(pool: ConnectionPool) -> None:
    in_use = await pool.acquire()
    await pool.close()
    assert not in_use.is_closed()
    pool.release(in_use)
    assert in_use.is_closed()


async def test_connection_is_closed_if_its_check_is_cancelled(
    pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "CHECK_AFTER_IDLE_S", 0)
    connection = await pool.acquire()
    pool.release(connection)
    acquiring = asyncio.create_task(pool.acquire())
    await asyncio.sleep(0)  # the check is on its way
    acquiring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await acquiring
    assert connection.is_closed()


async def test_dropped_connections_are_closed_now_or_on_release(pool: ConnectionPool) -> None:
    in_use, idle = await pool.acquire(), await pool.acquire()
    pool.release(idle)
    pool.drop_all()
    assert idle.is_closed()
    assert not in_use.is_closed()
    pool.release(in_use)
    assert in_use.is_closed()
    pool.release(await pool.acquire())
