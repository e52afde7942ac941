from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import asyncpg
import pytest

from horsies.embedded import EmbeddedServer
from tests.support.databases import (
    ServerUser,
    run_script,
    server_log,
    server_process,
    start_script,
    temporary_cluster_folder,
    wait_until,
)

_ENDS_ON_SIGTERM = """
import signal
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
handle = server.use()
print("in", flush=True)
sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Shared, because initdb takes most of a test's time; every test starts with the server stopped."""
    with temporary_cluster_folder() as folder:
        yield folder


async def test_acknowledged_rows_survive_a_killed_server(folder: Path) -> None:
    server = EmbeddedServer(folder)
    with server.use():
        acknowledged = await _write_until_cut(server.url, rows=200, cut=server_process(server).kill)
        with await asyncio.to_thread(server.use) as again:
            assert again.started
            assert acknowledged <= await _rows(server.url)
    assert not server.status().running


async def test_start_waits_for_orphans_of_a_dead_server(folder: Path) -> None:
    server = EmbeddedServer(folder, durable=False)
    with server.use():
        connection = await asyncpg.connect(server.url)
        orphan = connection.get_server_pid()
        os.kill(orphan, signal.SIGSTOP)
        server_process(server).kill()
        threading.Timer(0.3, os.kill, (orphan, signal.SIGCONT)).start()
        with await asyncio.to_thread(server.use) as again:
            assert again.started
        connection.terminate()


def test_reused_pid_does_not_prevent_a_start(folder: Path) -> None:
    server = EmbeddedServer(folder, durable=False)
    pid_file = folder / "data" / "postmaster.pid"
    with server.use():
        lines = pid_file.read_text().split("\n")
        owner = pid_file.stat().st_uid
    other_program = subprocess.Popen(["sleep", "60"], user=owner if os.geteuid() == 0 else None)
    try:
        pid_file.write_text("\n".join([str(other_program.pid), *lines[1:]]))
        assert not server.status().running
        with server.use() as handle:
            assert handle.started
    finally:
        other_program.kill()
        other_program.wait()


def test_program_in_the_data_folder_prevents_nothing(folder: Path) -> None:
    server = EmbeddedServer(folder, durable=False)
    server.use().release()
    program = subprocess.Popen(["sleep", "60"], cwd=folder / "data")
    try:
        with server.use() as handle:
            assert handle.started
        assert not server.status().running
        assert program.poll() is None
    finally:
        program.kill()
        program.wait()


def test_kill_during_initdb_leaves_no_partial_cluster() -> None:
    with temporary_cluster_folder() as folder:
        user = ServerUser(folder)
        wait_until((folder / "data.new" / "PG_VERSION").exists)
        user.kill()
        assert not (folder / "data").exists()
        with EmbeddedServer(folder, durable=False).use() as handle:
            assert handle.started
            assert not (folder / "data.new").exists()


def test_server_of_a_killed_starter_is_joined(folder: Path) -> None:
    server = EmbeddedServer(folder, durable=False)
    with server.use():
        server_process(server).kill()
    starts = server_log(folder).count("starting PostgreSQL")
    user = ServerUser(folder)
    wait_until(lambda: server_log(folder).count("starting PostgreSQL") > starts)
    user.kill()
    with server.use():
        assert run_script("with server.use() as handle: say(started=handle.started)", folder) == [{"started": False}]
    assert not server.status().running


def test_terminated_user_stops_the_server(folder: Path) -> None:
    user = start_script(_ENDS_ON_SIGTERM, folder)
    assert user.stdout
    assert user.stdout.readline() == "in\n"
    user.terminate()
    user.communicate()
    assert user.returncode == 143
    assert not EmbeddedServer(folder).status().running


def test_terminated_starter_leaves_no_server(folder: Path) -> None:
    server = EmbeddedServer(folder, durable=False)
    with server.use():
        server_process(server).kill()
    starts = server_log(folder).count("starting PostgreSQL")
    starter = start_script(_ENDS_ON_SIGTERM, folder)
    wait_until(lambda: server_log(folder).count("starting PostgreSQL") > starts)
    starter.terminate()
    starter.communicate()
    assert starter.returncode == 143
    assert not server.status().running


async def _write_until_cut(url: str, *, rows: int, cut: Callable[[], None]) -> set[int]:
    """Call `cut` while writing, after `rows` confirmed rows, and return the confirmed numbers."""
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE TABLE numbers (number bigint PRIMARY KEY)")
    await connection.close()
    confirmed: set[int] = set()
    enough = asyncio.Event()
    async with asyncio.TaskGroup() as writers:
        for writer in range(4):
            writers.create_task(_write(url, range(writer, 10**9, 4), confirmed, enough, rows))
        await enough.wait()
        cut()
    return confirmed


async def _write(url: str, numbers: range, confirmed: set[int], enough: asyncio.Event, rows: int) -> None:
    connection = await asyncpg.connect(url)
    with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError):
        for number in numbers:
            await connection.execute("INSERT INTO numbers VALUES ($1)", number)
            confirmed.add(number)
            if len(confirmed) >= rows:
                enough.set()


async def _rows(url: str) -> set[int]:
    connection = await asyncpg.connect(url)
    try:
        return {row["number"] for row in await connection.fetch("SELECT number FROM numbers")}
    finally:
        await connection.close()
