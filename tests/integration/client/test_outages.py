"""Sends during outages and lost connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg
import pytest

from horsies import OperationalErrorCode, TaskSendErrorCode
from horsies.embedded import EmbeddedServer
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database
from horsies.store.migrate import migrate
from tests.support.databases import temporary_cluster_folder
from tests.support.faults import Proxy
from tests.support.store import count_tasks, make_app

_REJECT_SECOND_BULK = """
CREATE FUNCTION reject_bulk() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM horsies_tasks) THEN RAISE 'no second bulk'; END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER reject_bulk BEFORE INSERT ON horsies_tasks FOR EACH STATEMENT EXECUTE FUNCTION reject_bulk();
"""


class RestartableServer:
    """A server that tests stop and start."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server
        self.url = ""

    @contextmanager
    def up(self) -> Generator[str]:
        with self._server.use() as handle:
            self.url = handle.url
            yield handle.url


@pytest.fixture(scope="module")
def server() -> Iterator[RestartableServer]:
    """A migrated server that is stopped."""

    async def prepare(url: str) -> None:
        async with Database(ConnectionSpec(url=url, masked_url=url)) as database:
            await migrate(database)

    with temporary_cluster_folder() as folder:
        server = RestartableServer(EmbeddedServer(folder, durable=False))
        with server.up() as url:
            asyncio.run(prepare(url))
        yield server


@pytest.fixture
async def database_rejecting_a_second_bulk(
    database_url: str, connection: asyncpg.Connection[Any]
) -> AsyncIterator[str]:
    await connection.execute(_REJECT_SECOND_BULK)
    yield database_url
    await connection.execute("DROP FUNCTION reject_bulk() CASCADE")


def test_retries_after_an_outage_store_one_task(server: RestartableServer) -> None:
    app = make_app(server.url)
    task = app.tasks["double"]
    error = task.send(5).unwrap_err()
    assert (error.code, error.retryable) == (TaskSendErrorCode.ENQUEUE_FAILED, True)
    again = task.retry_send(error).unwrap_err()
    assert again.payload == error.payload
    with server.up():
        assert task.retry_send(again).unwrap().task_id == error.task_id
        assert task.retry_send(again).unwrap().task_id == error.task_id
        assert count_tasks(server.url) == 1
        app.close()


def test_restarted_server_is_used_again(server: RestartableServer) -> None:
    app = make_app(server.url)
    with server.up():
        handle = app.tasks["double"].send(5).unwrap()
    assert app.tasks["double"].send(6).unwrap_err().retryable
    assert app.tasks["double"].send_many([(6,)]).unwrap_err().retryable
    assert handle.get(0).err_value.error_code is OperationalErrorCode.BROKER_ERROR
    assert handle.info().unwrap_err().retryable
    with server.up():
        assert app.tasks["double"].send(7).is_ok()
        assert handle.info().unwrap() is not None
        app.close()


async def test_resends_cover_a_short_outage(database_url: str) -> None:
    async with Proxy(database_url).running() as proxy:
        app = make_app(proxy.url, resend_on_transient_err=True)
        proxy.refusals = 2
        assert (await app.tasks["double"].send_async(5)).is_ok()
        assert proxy.refusals == 0
        await app.close_async()


async def test_permanent_error_is_not_resent(database_url: str) -> None:
    app = make_app(database_url.replace("/test_", "/gone_"), resend_on_transient_err=True)
    async with asyncio.timeout(1):
        error = (await app.tasks["double"].send_async(5)).unwrap_err()
    assert not error.retryable
    await app.close_async()


async def test_retry_after_a_lost_answer_stores_one_task(
    database_url: str, connection: asyncpg.Connection[Any]
) -> None:
    async with Proxy(database_url).running() as proxy:
        app = make_app(proxy.url)
        task = app.tasks["double"]
        proxy.lose_answer_to = b"answered late"
        error = (await task.send_async(5, note="answered late")).unwrap_err()
        assert (error.code, error.retryable, proxy.lost) == (TaskSendErrorCode.ENQUEUE_FAILED, True, 1)
        assert await connection.fetchval("SELECT id::text FROM horsies_tasks") == error.task_id
        assert (await task.retry_send_async(error)).unwrap().task_id == error.task_id
        assert await connection.fetchval("SELECT count(*) FROM horsies_tasks") == 1
        await app.close_async()


async def test_resend_after_a_lost_answer_stores_one_task(
    database_url: str, connection: asyncpg.Connection[Any]
) -> None:
    async with Proxy(database_url).running() as proxy:
        app = make_app(proxy.url, resend_on_transient_err=True)
        proxy.lose_answer_to = b"answered late"
        handle = (await app.tasks["double"].send_async(5, note="answered late")).unwrap()
        assert await connection.fetchval("SELECT array_agg(id::text) FROM horsies_tasks") == [handle.task_id]
        assert proxy.lost == 1
        await app.close_async()


async def test_bulk_send_with_a_lost_answer_names_its_first_task(
    database_url: str, connection: asyncpg.Connection[Any]
) -> None:
    async with Proxy(database_url).running() as proxy:
        app = make_app(proxy.url)
        proxy.lose_answer_to = b"COMMIT"
        error = (await app.tasks["double"].send_many_async([(5,), (6,)])).unwrap_err()
        assert (error.code, error.retryable, proxy.lost) == (TaskSendErrorCode.ENQUEUE_FAILED, False, 1)
        assert f"check whether task {error.task_id}" in error.message
        rejected = (await app.tasks["double"].retry_send_async(error)).unwrap_err()
        hint = f"check whether task {error.task_id}, the first of them, exists"
        assert rejected.message == f"double: retry_send does not accept errors of send_many; {hint}"
        assert await connection.fetchval("SELECT min(id::text) FROM horsies_tasks") == error.task_id
        await app.close_async()


async def test_bulk_resend_after_a_lost_answer_stores_it_once(
    database_url: str, connection: asyncpg.Connection[Any]
) -> None:
    async with Proxy(database_url).running() as proxy:
        app = make_app(proxy.url, resend_on_transient_err=True)
        proxy.lose_answer_to = b"COMMIT"
        handles = (await app.tasks["double"].send_many_async([(5,), (6,)])).unwrap()
        stored = await connection.fetchval("SELECT array_agg(id::text ORDER BY id) FROM horsies_tasks")
        assert (stored, proxy.lost) == ([handle.task_id for handle in handles], 1)
        await app.close_async()


async def test_bulk_send_may_be_stored_despite_a_later_error(
    database_rejecting_a_second_bulk: str,
) -> None:
    async with Proxy(database_rejecting_a_second_bulk).running() as proxy:
        app = make_app(proxy.url, resend_on_transient_err=True)
        proxy.lose_answer_to = b"COMMIT"
        error = (await app.tasks["double"].send_many_async([(5,), (6,)])).unwrap_err()
        assert "no second bulk" in error.message
        assert f"check whether task {error.task_id}" in error.message
        await app.close_async()


async def test_bulk_send_that_was_not_sent_is_retryable(database_url: str) -> None:
    async with Proxy(database_url).running() as proxy:
        app = make_app(proxy.url)
        proxy.refusals = 1
        error = (await app.tasks["double"].send_many_async([(5,), (6,)])).unwrap_err()
        assert error.retryable
        assert error.message.endswith("; nothing was stored, call send_many again")
        rejected = (await app.tasks["double"].retry_send_async(error)).unwrap_err()
        assert (
            rejected.message
            == "double: retry_send does not accept errors of send_many; nothing was stored, call send_many again"
        )
        await app.close_async()
