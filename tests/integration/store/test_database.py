from __future__ import annotations

import asyncio
import logging
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import asyncpg
import pytest

from horsies.errors import BrokerError, ConfigurationError, DatabaseUnreachable, ErrorCode
from horsies.store.connection import ConnectionSpec, Keepalive, StatementFailed
from horsies.store.database import Database, PoolSettings, Transaction
from horsies.store.queries import Query
from tests.support.faults import Proxy


@dataclass(frozen=True, slots=True)
class Number:
    n: int


@dataclass(frozen=True, slots=True)
class Text:
    text: str


def number(sql: str) -> Query[Number]:
    return Query(name="test.number", sql=sql, row_type=Number)


def text(sql: str) -> Query[Text]:
    return Query(name="test.text", sql=sql, row_type=Text)


def nothing(sql: str) -> Query[None]:
    return Query(name="test.nothing", sql=sql, row_type=type(None))


BACKEND = number("SELECT pg_backend_pid() AS n")


async def test_rows_are_returned_as_records(database: Database) -> None:
    assert await database.fetch(number("SELECT generate_series(1, 3) AS n")) == [Number(1), Number(2), Number(3)]
    assert await database.fetch_one(number("SELECT 1 AS n WHERE false")) is None


async def test_echo_logs_statements_without_arguments(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="horsies")
    echo = text("SELECT $1::text\n  AS text")
    for echo_enabled in (False, True):
        async with Database(ConnectionSpec(url=database_url, masked_url="test", echo=echo_enabled)) as database:
            await database.fetch(echo, "secret")
            await database.run(lambda transaction: transaction.fetch(echo, "secret"))
    logged = [record.getMessage() for record in caplog.records if record.name == "horsies.statements"]
    assert logged == ["SELECT $1::text AS text", "BEGIN", "SELECT $1::text AS text", "COMMIT"]


class RecordedKeepalive(Keepalive):
    """Remembers the sockets that it was applied to."""

    sockets: ClassVar[list[socket.socket]] = []

    def apply_to(self, sock: socket.socket) -> None:
        super().apply_to(sock)
        self.sockets.append(sock)


@pytest.mark.skipif(sys.platform != "linux", reason="the options are those of Linux")
async def test_keepalive_settings_apply_to_the_socket(database_url: str) -> None:
    keepalive = RecordedKeepalive(idle_s=7, interval_s=3, count=2, user_timeout_ms=9_000)
    async with Proxy(database_url).running() as proxy:
        connection = await ConnectionSpec(url=proxy.url, masked_url="test", keepalive=keepalive).connect()
        sock = keepalive.sockets[-1]
        names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        options = [sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names]
        assert (sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), options) == (1, [7, 3, 2, 9_000])
        await connection.close()


async def test_failed_transaction_is_rolled_back_and_connection_stays_usable(database: Database) -> None:
    await database.execute(nothing("CREATE TABLE kept (n int)"))

    async def insert_and_fail(transaction: Transaction) -> None:
        await transaction.execute(nothing("INSERT INTO kept VALUES (1)"))
        raise LookupError

    with pytest.raises(LookupError):
        await database.run(insert_and_fail)
    assert await database.fetch(number("SELECT n FROM kept")) == []


async def test_deadlock_is_retried(database: Database) -> None:
    await database.execute(nothing("CREATE TABLE pair (n int PRIMARY KEY, hits int DEFAULT 0)"))
    await database.execute(nothing("INSERT INTO pair VALUES (1), (2)"))
    both_hold_one = asyncio.Barrier(2)
    first_time = {"a", "b"}

    def crossing(name: str, one: int, other: int) -> Callable[[Transaction], asyncio.Future[None]]:
        async def work(transaction: Transaction) -> None:
            await transaction.execute(nothing("UPDATE pair SET hits = hits + 1 WHERE n = $1"), one)
            if name in first_time:
                first_time.discard(name)
                await both_hold_one.wait()
            await transaction.execute(nothing("UPDATE pair SET hits = hits + 1 WHERE n = $1"), other)

        return work  # pyright: ignore[reportReturnType]

    await asyncio.gather(database.run(crossing("a", 1, 2)), database.run(crossing("b", 2, 1)))
    assert await database.fetch(number("SELECT hits AS n FROM pair")) == [Number(2), Number(2)]


async def test_released_connections_are_not_reset(database: Database) -> None:
    (first,) = await database.fetch(BACKEND)
    await database.execute(nothing("SET work_mem = '5MB'"))
    assert await database.fetch(text("SELECT current_setting('work_mem') AS text")) == [Text("5MB")]
    assert await database.fetch(BACKEND) == [first]


async def test_connection_that_died_while_idle_is_replaced(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (before,) = await database.fetch(BACKEND)
    other = await asyncpg.connect(database_url)
    await other.execute("SELECT pg_terminate_backend($1)", before.n)
    await other.close()
    monkeypatch.setattr("horsies.store.database.CHECK_AFTER_IDLE_S", 0.0)
    (after,) = await database.fetch(BACKEND)
    assert after != before


async def test_unreachable_server_is_retryable_with_masked_address() -> None:
    async with Database(
        ConnectionSpec(url="postgresql://u:secret@127.0.0.1:1/db", masked_url="postgresql://u:***@127.0.0.1:1/db")
    ) as gone:
        with pytest.raises(DatabaseUnreachable) as caught:
            await gone.fetch(BACKEND)
    assert caught.value.retryable
    assert "secret" not in str(caught.value)
    assert "127.0.0.1:1" in caught.value.message


async def test_missing_database_is_not_retryable(database_url: str) -> None:
    url = database_url.replace("/test_", "/nope_")
    async with Database(ConnectionSpec(url=url, masked_url=url)) as gone:
        with pytest.raises(DatabaseUnreachable, match="does not exist") as caught:
            await gone.fetch(BACKEND)
    assert not caught.value.retryable


async def test_missing_table_error_names_the_migrate_command(empty_database: Database) -> None:
    with pytest.raises(ConfigurationError) as caught:
        await empty_database.fetch(number("SELECT 1 AS n FROM horsies_tasks"))
    assert caught.value.code is ErrorCode.SCHEMA_NOT_MIGRATED


async def test_statement_timeout_is_retryable(database_url: str) -> None:
    async with Database(ConnectionSpec(url=database_url, masked_url="test", statement_timeout_s=0.5)) as hasty:
        with pytest.raises(BrokerError) as caught:
            await hasty.fetch(text("SELECT pg_sleep(30)::text AS text"))
        assert caught.value.retryable
        assert await hasty.fetch(number("SELECT 1 AS n")) == [Number(1)]


async def test_silent_server_times_out_and_connection_is_dropped(database_url: str) -> None:
    async with Proxy(database_url).running() as proxy:
        database = Database(ConnectionSpec(url=proxy.url, masked_url="test", statement_timeout_s=0.2))
        (before,) = await database.fetch(BACKEND)
        proxy.freeze()
        with pytest.raises(DatabaseUnreachable, match="no answer in time") as caught:
            await database.fetch(BACKEND)
        assert caught.value.retryable
        assert isinstance(caught.value.__cause__, TimeoutError)
        proxy.restore()
        (after,) = await database.fetch(BACKEND)
        assert after != before
        await database.close()


async def test_running_statement_keeps_its_timeout_after_close(database_url: str) -> None:
    async with Proxy(database_url).running() as proxy:
        database = Database(ConnectionSpec(url=proxy.url, masked_url="test", statement_timeout_s=0.2))
        await database.fetch(BACKEND)
        proxy.freeze()
        waiting = asyncio.create_task(database.fetch(BACKEND))
        await asyncio.sleep(0)
        await database.close()
        with pytest.raises(DatabaseUnreachable, match="no answer in time"):
            async with asyncio.timeout(10):
                await waiting


async def test_timeout_between_prepare_and_execute_is_reported_as_timeout(database_url: str) -> None:
    async with Database(ConnectionSpec(url=database_url, masked_url="test", statement_timeout_s=0.1)) as hasty:
        await hasty.fetch(BACKEND)
        query_task = asyncio.create_task(hasty.fetch(number("SELECT 7 AS n")))
        await asyncio.sleep(0)
        time.sleep(0.3)  # noqa: ASYNC251  # the answer to PREPARE and the timeout are processed together
        with pytest.raises(DatabaseUnreachable, match="no answer in time"):
            await query_task
        assert await hasty.fetch(number("SELECT 7 AS n")) == [Number(7)]


@pytest.mark.parametrize(("seconds", "are_discarded"), [(0.6, True), (0.0, False)])
async def test_plans_are_discarded_after_a_slow_statement(
    database_url: str, seconds: float, are_discarded: bool
) -> None:
    spec = ConnectionSpec(url=database_url, masked_url="test", force_generic_plan=True)
    async with Database(spec) as worker, Database(ConnectionSpec(url=database_url, masked_url="test")) as other:
        (backend,) = await worker.fetch(BACKEND)
        await worker.fetch(text("SELECT pg_sleep($1)::text AS text"), seconds)
        (last,) = await other.fetch(text("SELECT query AS text FROM pg_stat_activity WHERE pid = $1"), backend.n)
    assert (last.text == "DISCARD PLANS") is are_discarded


async def test_statement_succeeds_even_if_discarding_plans_fails(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horsies.store.database.SLOW_STATEMENT_S", -1.0)
    async with Proxy(database_url).running() as proxy:
        proxy.lose_answer_to = b"DISCARD PLANS"
        database = Database(ConnectionSpec(url=proxy.url, masked_url="test", force_generic_plan=True))
        (first,) = await database.fetch(BACKEND)
        (again,) = await database.fetch(BACKEND)
        assert proxy.lose_answer_to is None
        assert again != first
        await database.close()


async def test_server_rejects_writes_on_read_only_connection(database_url: str) -> None:
    async with Database(ConnectionSpec(url=database_url, masked_url="test", read_only=True)) as viewer:
        with pytest.raises(StatementFailed, match="read-only transaction"):
            await viewer.execute(nothing("DELETE FROM horsies_tasks"))


async def test_exhausted_pool_raises_after_the_timeout(database_url: str) -> None:
    async with Database(
        ConnectionSpec(url=database_url, masked_url="test"), PoolSettings(max_size=1, acquire_timeout_s=1)
    ) as small:
        held = asyncio.Event()
        done = asyncio.Event()

        async def hold(_: Transaction) -> None:
            held.set()
            await done.wait()

        holder = asyncio.create_task(small.run(hold))
        await held.wait()
        with pytest.raises(DatabaseUnreachable, match="all 1 connections are in use") as caught:
            await small.fetch(BACKEND)
        assert "broker.pool_size" in (caught.value.help_text or "")
        done.set()
        await holder


async def test_cancelled_transaction_does_not_wait_for_an_answer(database_url: str) -> None:
    has_begun = asyncio.Event()

    async def begin_and_wait(_: Transaction) -> None:
        has_begun.set()
        await asyncio.Event().wait()

    async with Proxy(database_url).running() as proxy:
        database = Database(ConnectionSpec(url=proxy.url, masked_url=proxy.url))
        running = asyncio.create_task(database.run(begin_and_wait))
        await has_begun.wait()
        proxy.freeze()
        running.cancel()
        _, late = await asyncio.wait([running], timeout=2)
        assert not late


async def test_connections_are_new_after_a_timeout(database_url: str) -> None:
    async with Proxy(database_url).running() as proxy:
        spec = ConnectionSpec(url=proxy.url, masked_url="test", statement_timeout_s=0.3)
        async with Database(spec) as database:
            before = {row.n for row in await backends(database, 3)}
            proxy.half_open()
            with pytest.raises(DatabaseUnreachable, match="no answer in time"):
                await database.fetch(BACKEND)
            began = time.monotonic()
            after = {row.n for row in await backends(database, 3)}
            assert time.monotonic() - began < 0.3, "no statement waited for a half-open connection"
            assert not before & after


async def test_timed_out_transaction_does_not_wait_for_its_rollback(database_url: str) -> None:
    async with Proxy(database_url).running() as proxy:
        spec = ConnectionSpec(url=proxy.url, masked_url="test", statement_timeout_s=0.2)

        async def freeze_and_ask(transaction: Transaction) -> None:
            proxy.freeze()
            await transaction.fetch(BACKEND)

        async with Database(spec) as database, asyncio.timeout(2):
            with pytest.raises(DatabaseUnreachable, match="no answer in time"):
                await database.run(freeze_and_ask)


async def test_waiting_checking_and_connecting_share_one_timeout(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horsies.store.database.CHECK_AFTER_IDLE_S", 0)
    async with Proxy(database_url).running() as proxy:
        settings = PoolSettings(max_size=4, acquire_timeout_s=0.3)
        async with Database(ConnectionSpec(url=proxy.url, masked_url="test"), settings) as database:
            await backends(database, 4)
            proxy.freeze()
            began = time.monotonic()
            with pytest.raises(DatabaseUnreachable, match="no answer in time"):
                await database.fetch(BACKEND)
            assert time.monotonic() - began < 1


async def backends(database: Database, count: int) -> list[Number]:
    """Run this many statements at once, each on a connection of its own."""
    slow = number("SELECT pg_backend_pid() AS n FROM pg_sleep(0.1)")
    return [row for rows in await asyncio.gather(*(database.fetch(slow) for _ in range(count))) for row in rows]
