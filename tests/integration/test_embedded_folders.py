from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from horsies.embedded import EmbeddedServer, find_binaries
from horsies.errors import ConfigurationError, ErrorCode
from tests.support.databases import NOBODY, run_script, server_process, temporary_cluster_folder

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
_EXPECT_ERROR = """
from horsies.errors import HorsiesError
try:
    server.{method}()
except HorsiesError as error:
    say(code=error.code, text=str(error))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with temporary_cluster_folder() as folder:
        yield folder


async def test_server_is_private_with_our_database_and_role(folder: Path) -> None:
    server = EmbeddedServer(folder, settings={"max_connections": "33"})
    with server.use() as handle:
        connection = await asyncpg.connect(handle.url)
        shown = {
            name: await connection.fetchval("SELECT current_setting($1)", name)
            for name in (
                "max_connections",
                "fsync",
                "data_checksums",
                "server_encoding",
                "wal_level",
                "listen_addresses",
            )
        }
        assert await connection.fetchval("SELECT current_user || '@' || current_database()") == "horsies@horsies"
        await connection.close()
        assert server_process(server).net_connections(kind="inet") == []
        assert os.getsid(server_process(server).pid) != os.getsid(0)
    assert shown == {
        "max_connections": "33",
        "fsync": "on",
        "data_checksums": "on",
        "server_encoding": "UTF8",
        "wal_level": "minimal",
        "listen_addresses": "",
    }
    assert {_mode(folder / name) for name in ("data", "socket", "log")} == {0o700}


@pytest.mark.parametrize("name", ["x" * 120, "a, b", 'it\'s "odd" \\ here'])
async def test_folder_with_special_characters_works(folder: Path, name: str) -> None:
    server = EmbeddedServer(folder / name, durable=False)
    with server.use() as handle:
        connection = await asyncpg.connect(handle.url)
        await connection.close()
        assert _mode(_socket_folder(server)) == 0o700


@pytest.mark.parametrize("name", ["x" * 120, "a, b"])
def test_external_socket_folder_is_removed_on_stop(folder: Path, name: str) -> None:
    server = EmbeddedServer(folder / name, durable=False)
    with server.use():
        assert not _socket_folder(server).is_relative_to(folder)
    assert not _socket_folder(server).exists()
    with server.use() as handle:
        assert handle.started


def test_file_instead_of_a_folder_gives_a_hint(folder: Path) -> None:
    (folder / "file").touch()
    with pytest.raises(ConfigurationError) as raised:
        EmbeddedServer(folder / "file" / "cluster").use()
    assert raised.value.code == ErrorCode.EMBEDDED_UNAVAILABLE
    assert str(folder / "file") in raised.value.message
    assert {"broker.database_url", "embedded:///dir"} <= set(str(raised.value.help_text).replace(",", "").split())


def test_data_of_another_major_version_is_not_touched(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "PG_VERSION").write_text("13\n")
    server = EmbeddedServer(folder)
    with pytest.raises(ConfigurationError, match=rf"PostgreSQL 13.*found: .*{find_binaries().major}") as raised:
        server.use()
    assert "pg_upgrade" in str(raised.value)
    assert f"move {folder} away" in str(raised.value)
    assert (server.status().server_version, server.status().binaries) == ("13", None)


def test_folder_without_a_cluster_is_not_overwritten(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "diary.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="not overwritten"):
        EmbeddedServer(folder).use()
    assert (folder / "data" / "diary.txt").read_text() == "mine"


def test_failed_start_shows_log_lines_and_paths(folder: Path) -> None:
    server = EmbeddedServer(folder, durable=False, settings={"no_such_setting": "1"})
    with pytest.raises(ConfigurationError) as raised:
        server.use()
    assert "no_such_setting" in str(raised.value)
    assert str(folder / "command.log") in str(raised.value)
    assert not server.status().users_present


@pytest.mark.parametrize("start", [EmbeddedServer.use, EmbeddedServer.keep])
def test_missing_binaries_leave_no_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, start: Callable[[EmbeddedServer], object]
) -> None:
    monkeypatch.setenv("HORSIES_PG_BINDIR", "/nowhere")
    for path in (folder, folder / "new"):
        with pytest.raises(ConfigurationError, match="HORSIES_PG_BINDIR=/nowhere"):
            start(EmbeddedServer(path))
    assert list(folder.iterdir()) == []


@as_root
def test_root_runs_the_server_under_another_account(folder: Path) -> None:
    server = EmbeddedServer(folder, durable=False)
    with server.use():
        assert server_process(server).username() in {"horsies", "postgres", "nobody"}
    assert (_mode(folder), folder.stat().st_uid) == (0o711, 0)


@as_root
def test_inaccessible_parent_is_named_and_not_changed(folder: Path) -> None:
    home = folder / "home"
    home.mkdir(mode=0o700)
    with pytest.raises(ConfigurationError, match=f"may not enter {home}"):
        EmbeddedServer(home / "cluster").use()
    assert _mode(home) == 0o700


@as_root
def test_inaccessible_binaries_are_copied(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = folder / "closed"
    bindir = _copy_binaries(closed)
    closed.chmod(0o700)
    monkeypatch.setenv("HORSIES_PG_BINDIR", str(bindir))
    server = EmbeddedServer(folder / "cluster", durable=False)
    with server.use():
        assert Path(server_process(server).exe()).is_relative_to(folder / "cluster" / "pg")
    assert _mode(closed) == 0o700


@as_root
def test_ordinary_user_runs_the_server(folder: Path) -> None:
    script = "with server.use(): say(uid=psutil.Process(server.status().pid).uids().real)"
    own = folder / "own"
    own.mkdir()
    os.chown(own, NOBODY, NOBODY)
    assert run_script(script, own / "cluster", uid=NOBODY) == [{"uid": NOBODY}]
    assert _mode(own / "cluster") == 0o700


@as_root
def test_unwritable_folder_is_named(folder: Path) -> None:
    [output] = run_script(_EXPECT_ERROR.format(method="use"), folder / "cluster", uid=NOBODY)
    assert output["code"] == "HRS-220"
    assert str(folder / "cluster") in output["text"]
    assert "broker.database_url" in output["text"]


@as_root
def test_server_of_another_user_is_not_touched(folder: Path) -> None:
    with EmbeddedServer(folder, durable=False).use():
        [output] = run_script(_EXPECT_ERROR.format(method="use"), folder, uid=NOBODY)
    assert output["code"] == "HRS-220"


@as_root
def test_status_of_another_users_cluster_raises(folder: Path) -> None:
    (folder / "data").mkdir(mode=0o700)
    (folder / "start.lock").touch(mode=0o600)
    [output] = run_script(_EXPECT_ERROR.format(method="status"), folder, uid=NOBODY)
    assert output["code"] == "HRS-220"
    assert str(folder) in output["text"]


@as_root
def test_uid_without_a_name_gives_a_hint(folder: Path) -> None:
    [output] = run_script(_EXPECT_ERROR.format(method="use"), folder, uid=54321)
    assert "uid 54321 has no user name" in output["text"]
    assert "broker.database_url" in output["text"]


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _socket_folder(server: EmbeddedServer) -> Path:
    return Path(parse_qs(urlsplit(server.url).query)["host"][0])


def _copy_binaries(target: Path) -> Path:
    installation = find_binaries().bindir.parent
    package = installation.parent
    shutil.copytree(installation, target / package.name / installation.name, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name)
    return target / package.name / installation.name / "bin"
