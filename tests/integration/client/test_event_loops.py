"""Several event loops that share an app."""

from __future__ import annotations

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from horsies.embedded import EmbeddedServer
from tests.support.databases import temporary_cluster_folder
from tests.support.store import count_tasks, fetch_rows, make_app

_OUR_CONNECTIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'horsies %'"
)


def test_concurrent_loops_that_send_and_close_store_everything(database_url: str) -> None:
    app = make_app(database_url)

    async def send_and_close() -> None:
        for number in range(30):
            (await app.tasks["double"].send_async(number)).unwrap()
            await app.close_async()

    with ThreadPoolExecutor(6) as threads:
        for loop in [threads.submit(lambda: asyncio.run(send_and_close())) for _ in range(6)]:
            loop.result()
    assert count_tasks(database_url) == 6 * 30


def test_close_in_one_loop_keeps_the_embedded_server() -> None:
    with temporary_cluster_folder() as folder:
        app, server = make_app(f"embedded://{folder}"), EmbeddedServer(Path(folder))
        with asyncio.Runner() as runner:
            assert runner.run(app.tasks["double"].send_async(1)).is_ok()
            assert app.tasks["double"].send(2).is_ok()
            app.close()
            assert server.status().running
            assert runner.run(app.tasks["double"].send_async(3)).is_ok()
        assert not server.status().running


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # from the loops closed without shutdown
def test_abruptly_closed_loop_leaks_no_connection(database_url: str) -> None:
    app = make_app(database_url)
    for number in range(5):
        loop = asyncio.new_event_loop()
        assert loop.run_until_complete(app.tasks["double"].send_async(number)).is_ok()
        loop.close()
        del loop
    assert asyncio.run(app.tasks["double"].send_async(5)).is_ok()
    gc.collect()
    assert fetch_rows(database_url, _OUR_CONNECTIONS)[0][0] == 0
