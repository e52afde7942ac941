"""Paths, folders, configuration and locks of an embedded cluster."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from horsies.embedded import EmbeddedServer
from horsies.embedded.binaries import ServerAccount, first_inaccessible
from horsies.embedded.layout import (
    ClusterPaths,
    SharedLock,
    exclusive_lock,
    include_conf,
    is_either_locked,
    is_locked,
    is_used,
    make_folder,
    make_private_folder,
    other_clusters,
    server_settings,
    start_lock,
    write_conf,
)
from horsies.errors import Busy, ConfigurationError, ErrorCode
from horsies.trusted_files import UntrustedFile


def test_url_has_role_database_and_socket_folder() -> None:
    assert ClusterPaths(Path("/srv/a b")).url == "postgresql://horsies@/horsies?host=/srv/a%20b/socket"


@pytest.mark.parametrize("folder", [Path("/srv") / ("x" * 100), Path("/srv") / ("ü" * 50), Path("/srv/a,b")])
def test_unusable_socket_path_is_replaced_by_a_short_one(folder: Path) -> None:
    short = ClusterPaths(folder).socket_folder
    assert short.parent == Path("/tmp")
    assert short == ClusterPaths(folder).socket_folder
    assert short != ClusterPaths(folder / "other").socket_folder


def test_longest_usable_socket_path_is_kept() -> None:
    longest = Path("/" + "x" * (103 - len("//socket/.s.PGSQL.5432")))
    assert ClusterPaths(longest).socket_folder == longest / "socket"


def test_former_shared_cluster_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert other_clusters(tmp_path / "project") == []
    (tmp_path / "horsies" / "embedded" / "data").mkdir(parents=True)
    assert other_clusters(tmp_path / "project") == [tmp_path / "horsies" / "embedded"]


def test_root_finds_the_cluster_of_the_projects_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (tmp_path / ".horsies" / "data").mkdir(parents=True)
    assert tmp_path / ".horsies" in other_clusters(tmp_path)


@pytest.mark.parametrize("name", ["two\nlines", "tab\t", "nul\0", "del\x7f", os.fsdecode(b"latin \xfc")])
def test_folder_with_control_characters_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="control character") as raised:
        EmbeddedServer(tmp_path / name)
    assert raised.value.code == ErrorCode.EMBEDDED_UNAVAILABLE
    assert raised.value.message.isprintable()
    assert list(tmp_path.iterdir()) == []


def test_symlink_to_a_folder_with_control_characters_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "two\nlines")
    with pytest.raises(ConfigurationError, match="control character"):
        EmbeddedServer(tmp_path / "link")


@pytest.mark.parametrize("name", ["x" * 300, "/".join(["y" * 200] * 30), "file/cluster", "loop"])
def test_status_of_an_invalid_path_names_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ConfigurationError, match="cannot use the folder") as raised:
        EmbeddedServer(tmp_path / name).status()
    assert raised.value.code == ErrorCode.EMBEDDED_UNAVAILABLE
    assert str(tmp_path / name) in raised.value.message


def test_invalid_path_is_no_other_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / ("x" * 300)))
    assert not [path for path in other_clusters(tmp_path) if path.is_relative_to(tmp_path)]


_CURRENT_USER = ServerAccount(name="current-user", uid=os.geteuid(), gid=os.getegid())
_OTHER_USER = ServerAccount(name="other-user", uid=54321, gid=54321)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_missing_parents_are_created_and_existing_ones_unchanged(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    make_folder(tmp_path / "a" / "b", _CURRENT_USER)
    assert [_mode(path) for path in (tmp_path, tmp_path / "a", tmp_path / "a" / "b")] == [0o750, 0o700, 0o700]


def test_git_ignores_only_the_folder_of_a_project(tmp_path: Path) -> None:
    """A folder that a URL names may hold code."""
    for name in ("code", ".horsies"):
        make_folder(tmp_path / name, _CURRENT_USER)
    assert [path.parent.name for path in tmp_path.glob("*/.gitignore")] == [".horsies"]


def test_private_folder_may_already_exist(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "private", _CURRENT_USER)
    make_private_folder(tmp_path / "private", _CURRENT_USER)
    assert _mode(tmp_path / "private") == 0o700


def test_accessible_folder_is_not_private(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    with pytest.raises(ConfigurationError, match="0700"):
        make_private_folder(tmp_path / "open", _CURRENT_USER)


def test_symlink_is_not_a_private_folder(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(ConfigurationError, match="0700"):
        make_private_folder(tmp_path / "link", _CURRENT_USER)


def test_outermost_inaccessible_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "closed" / "inner").mkdir(parents=True)
    (tmp_path / "closed").chmod(0o700)
    assert first_inaccessible(tmp_path / "closed" / "inner", _CURRENT_USER) is None
    assert first_inaccessible(tmp_path / "closed" / "inner", _OTHER_USER) in {
        tmp_path / "closed",
        *tmp_path.parents,
        tmp_path,
    }


def test_durability_can_be_switched_off() -> None:
    names = ("fsync", "synchronous_commit", "full_page_writes")
    durable = server_settings(Path("/s"), durable=True, extra={})
    fast = server_settings(Path("/s"), durable=False, extra={})
    assert ({durable[name] for name in names}, {fast[name] for name in names}) == ({"on"}, {"off"})


def test_extra_settings_override_ours() -> None:
    assert server_settings(Path("/s"), durable=True, extra={"max_connections": "7"})["max_connections"] == "7"


def test_conf_values_are_escaped(tmp_path: Path) -> None:
    write_conf(tmp_path / "horsies.conf", {"cluster_name": "it's a \\ test"})
    assert (tmp_path / "horsies.conf").read_text().splitlines()[1:] == ["cluster_name = 'it''s a \\\\ test'"]


def test_planted_hard_link_is_not_appended_to(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "postgresql.conf").hardlink_to(tmp_path / "victim")
    with pytest.raises(UntrustedFile, match="hard link"):
        include_conf(tmp_path, tmp_path / "horsies.conf")
    assert (tmp_path / "victim").read_text() == "mine"


def test_conf_is_readable_for_the_server_account(tmp_path: Path) -> None:
    write_conf(tmp_path / "horsies.conf", {})
    assert stat.S_IMODE((tmp_path / "horsies.conf").stat().st_mode) == 0o644
    assert [path.name for path in tmp_path.iterdir()] == ["horsies.conf"]


def test_lock_is_held_until_the_last_share_is_closed(tmp_path: Path) -> None:
    lock = tmp_path / "users.lock"
    first, second = SharedLock(lock), SharedLock(lock)
    first.close()
    assert is_locked(lock)
    second.close()
    assert not is_locked(lock)


def test_closing_twice_does_not_close_a_reused_descriptor(tmp_path: Path) -> None:
    lock = tmp_path / "users.lock"
    first = SharedLock(lock)
    first.close()
    second = SharedLock(lock)
    first.close()
    assert is_locked(lock)
    second.close()


def test_checking_a_lock_creates_no_file(tmp_path: Path) -> None:
    assert not is_either_locked(tmp_path / "start.lock", tmp_path / "users.lock")
    assert list(tmp_path.iterdir()) == []


def test_held_start_lock_counts_as_locked(tmp_path: Path) -> None:
    with exclusive_lock(tmp_path / "start.lock"):
        assert is_either_locked(tmp_path / "start.lock", tmp_path / "users.lock")
    assert not is_either_locked(tmp_path / "start.lock", tmp_path / "users.lock")


def test_exclusive_lock_is_released_despite_inherited_descriptors(tmp_path: Path) -> None:
    with exclusive_lock(tmp_path / "users.lock") as lock:
        copy = os.dup(lock)
    assert not is_locked(tmp_path / "users.lock")
    os.close(copy)


def test_watchdog_that_looks_is_no_user(tmp_path: Path) -> None:
    users_lock = tmp_path / "users.lock"
    with exclusive_lock(users_lock):
        assert not is_used(users_lock)
    user = SharedLock(users_lock)
    assert is_used(users_lock)
    user.close()
    assert not is_used(users_lock)


def test_holder_of_the_start_lock_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "start.lock"
    with start_lock(path), pytest.raises(Busy, match=f"process {os.getpid()} is starting or stopping"):
        start_lock(path, report_after_s=0.0, timeout_s=0.05).__enter__()
    holder = f"process {os.getpid()} is starting or stopping the embedded server in {tmp_path}"
    assert caplog.messages == [f"waiting: {holder}"]
    with start_lock(path, timeout_s=0.0):
        pass
