"""The embedded server stays for some seconds after its last user, and never longer."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from horsies.embedded import EmbeddedServer, watchdog
from horsies.embedded.layout import ClusterPaths, ExclusiveLock, SharedLock, exclusive_lock
from horsies.embedded.watchdog import LINGER_VARIABLE
from horsies.errors import ConfigurationError
from tests.support.databases import (
    ServerUser,
    run_script,
    server_log,
    server_process,
    temporary_cluster_folder,
    wait_until,
)

LONG_S, SHORT_S = 10.0, 0.3


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Shared, because initdb takes most of a test's time; every test starts with the server stopped."""
    with temporary_cluster_folder() as folder:
        yield folder


@pytest.fixture
def lingering(folder: Path) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(folder, durable=False, linger_s=LONG_S)
    yield server
    server.stop(force=True)


def _watchdogs(folder: Path) -> list[int]:
    processes = psutil.process_iter(["cmdline"])
    return [process.pid for process in processes if str(folder) in (process.info["cmdline"] or ())]


def _pending_signals(pid: int) -> set[int]:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    pending = int(status["ShdPnd"], 16)
    return {number for number in range(1, 65) if pending >> (number - 1) & 1}


def test_commands_in_a_row_share_one_server(folder: Path, lingering: EmbeddedServer) -> None:
    pids: set[int | None] = set()
    for _ in range(3):
        with lingering.use():
            pids.add(lingering.status().pid)
    assert len(pids) == 1
    assert len(_watchdogs(folder)) == 1
    assert lingering.status().running


def test_lingering_server_is_not_in_use(lingering: EmbeddedServer) -> None:
    with lingering.use():
        assert lingering.status().users_present
    assert not lingering.status().users_present
    assert lingering.stop().was_running
    assert not lingering.status().running


def test_stop_is_not_busy_while_the_watchdog_looks(folder: Path, lingering: EmbeddedServer) -> None:
    lingering.use().release()
    with exclusive_lock(folder / "users.lock"):  # as the watchdog, which may be preempted there
        assert lingering.stop().was_running


def test_server_stops_after_its_last_user(folder: Path) -> None:
    server = EmbeddedServer(folder, durable=False, linger_s=SHORT_S)
    server.use().release()
    assert server.status().running
    wait_until(lambda: not server.status().running)
    wait_until(lambda: not _watchdogs(folder))
    with server.use() as handle:
        assert handle.started
    wait_until(lambda: not server.status().running)


def test_server_stops_after_its_last_user_was_killed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LINGER_VARIABLE, str(SHORT_S))
    user = ServerUser(folder)
    assert user.joined()["started"]
    user.kill()
    wait_until(lambda: not EmbeddedServer(folder).status().running)


def test_server_without_a_watchdog_gets_a_new_one(folder: Path, lingering: EmbeddedServer) -> None:
    with lingering.use():
        (watchdog,) = map(psutil.Process, _watchdogs(folder))
        watchdog.kill()
        wait_until(lambda: not watchdog.is_running())
    assert len(_watchdogs(folder)) == 1
    assert lingering.status().running


def test_user_that_does_not_linger_stops_the_server(folder: Path, lingering: EmbeddedServer) -> None:
    lingering.use().release()
    assert run_script("server.use().release(); say(running=server.status().running)", folder) == [{"running": False}]


def test_kept_server_stays_without_a_watchdog(folder: Path) -> None:
    server = EmbeddedServer(folder, durable=False, linger_s=SHORT_S)
    server.use().release()
    server.keep()
    wait_until(lambda: not _watchdogs(folder))
    server.use().release()
    assert (server.status().running, _watchdogs(folder)) == (True, [])
    server.stop()


def test_deleting_the_folder_ends_a_lingering_server() -> None:
    with temporary_cluster_folder() as parent:
        server = EmbeddedServer(parent / "cluster", durable=False, linger_s=LONG_S)
        server.use().release()
        process = server_process(server)
        shutil.rmtree(server.folder, ignore_errors=True)
        wait_until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)
        wait_until(lambda: not _watchdogs(server.folder))


def test_deletion_while_the_watchdog_looks_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the pid file it cannot find the server again. Suspended, because a server mostly ends by itself then."""
    last_use = watchdog._last_use

    def delete_after(paths: ClusterPaths, folder_id: int) -> int:
        used_at = last_use(paths, folder_id)
        shutil.rmtree(paths.folder, ignore_errors=True)
        return used_at

    with temporary_cluster_folder() as parent:
        server = EmbeddedServer(parent / "cluster", durable=False)
        server.keep()
        process = server_process(server)
        monkeypatch.setattr(watchdog, "_last_use", delete_after)
        cluster = server._cluster
        process.suspend()
        SharedLock(cluster.paths.users_lock).close()
        watchdog._watch(cluster, ExclusiveLock(cluster.paths.linger_lock), LONG_S)
        assert signal.SIGQUIT in _pending_signals(process.pid)
        process.resume()
        wait_until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


def test_six_users_in_turn_start_one_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LINGER_VARIABLE, "5")
    with temporary_cluster_folder() as folder:
        for _ in range(6):
            user = ServerUser(folder)
            user.joined()
            user.leave()
        assert server_log(folder).count("ready to accept connections") == 1


@pytest.mark.parametrize("text", ["11", "-1", "soon", "nan"])
def test_invalid_time_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(LINGER_VARIABLE, text)
    with pytest.raises(ConfigurationError, match=f"from 0 to 10, got '{text}'"):
        EmbeddedServer(folder)


def test_watchdog_survives_the_terminal_of_its_user(folder: Path, lingering: EmbeddedServer) -> None:
    with lingering.use():
        (watchdog,) = _watchdogs(folder)
        assert os.getsid(watchdog) != os.getsid(0)
