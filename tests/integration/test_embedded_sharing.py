from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from horsies.embedded import EmbeddedServer
from horsies.errors import Busy, ExitCode
from tests.support.databases import ServerUser, run_script, server_log, temporary_cluster_folder


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Shared, because initdb takes most of a test's time; every test starts with the server stopped."""
    with temporary_cluster_folder() as folder:
        yield folder


@pytest.fixture
def server(folder: Path) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(folder, durable=False)
    yield server
    server.stop(force=True)


def test_status_of_a_missing_cluster_creates_nothing(folder: Path) -> None:
    server = EmbeddedServer(folder / "none")
    status = server.status()
    assert (status.running, status.data_exists, status.kept, status.users_present) == (False, False, False, False)
    assert not server.stop().was_running
    assert not (folder / "none").exists()


def test_first_user_starts_and_last_user_stops(server: EmbeddedServer) -> None:
    first, second = server.use(), server.use()
    assert (first.started, second.started) == (True, False)
    assert first.url == second.url == server.url
    first.release()
    first.release()
    assert server.status().running
    second.release()
    assert not server.status().running


def test_kept_server_runs_until_it_is_stopped(server: EmbeddedServer) -> None:
    assert server.keep()
    assert not server.keep()
    with server.use() as handle:
        assert not handle.started
    status = server.status()
    assert (status.running, status.kept, status.users_present) == (True, True, False)
    report = server.stop()
    assert (report.was_running, report.was_kept, report.had_users) == (True, True, False)
    assert not server.status().running
    assert not server.status().kept


def test_stopping_a_used_server_requires_force(server: EmbeddedServer) -> None:
    with server.use():
        with pytest.raises(Busy, match="--force") as raised:
            server.stop()
        assert raised.value.exit_code == ExitCode.BUSY
        assert server.status().running
        assert server.stop(force=True).had_users
        assert not server.status().running


def test_six_concurrent_users_start_and_stop_one_server() -> None:
    with temporary_cluster_folder() as folder:
        clients = [ServerUser(folder) for _ in range(6)]
        joined = [client.joined() for client in clients]
        assert sum(output["started"] for output in joined) == 1
        assert len({output["pid"] for output in joined}) == 1
        for client in clients:
            client.leave()
        assert not EmbeddedServer(folder).status().running
        assert server_log(folder).count("ready to accept connections") == 1
        assert server_log(folder).count("database system is shut down") == 1


def test_server_of_a_killed_user_is_joined_and_stopped(folder: Path, server: EmbeddedServer) -> None:
    user = ServerUser(folder)
    pid = user.joined()["pid"]
    user.kill()
    assert (server.status().pid, server.status().users_present) == (pid, False)
    with server.use() as handle:
        assert not handle.started
    assert not server.status().running


def test_forked_child_cannot_release_the_parents_handle(folder: Path) -> None:
    script = """
handle = server.use()
if os.fork() == 0:
    handle.release()
    sys.exit(0)
os.wait()
say(running=server.status().running, users=server.status().users_present)
"""
    assert run_script(script, folder) == [{"running": True, "users": True}]


def test_unreleased_handle_ends_with_its_process(folder: Path, server: EmbeddedServer) -> None:
    script = "handle = server.use(); say(started=handle.started)"
    assert run_script(script, folder) == [{"started": True}]
    assert not server.status().running
