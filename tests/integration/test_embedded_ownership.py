"""Another local user cannot make the embedded server write elsewhere, or put a server of their own in its place."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from horsies.embedded import EmbeddedServer
from horsies.embedded.binaries import ServerAccount
from horsies.embedded.layout import ClusterPaths, write_conf
from horsies.embedded.server import probe_server
from horsies.errors import ConfigurationError
from tests.support.databases import temporary_cluster_folder

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
OTHER_UID = 54321

# Answers like a PostgreSQL server that is ready, and says what it was sent.
_FAKE_SERVER = """
import os, pathlib, socket, sys
folder, uid = pathlib.Path(sys.argv[1]), int(sys.argv[2])
os.setgroups([]); os.setgid(uid); os.setuid(uid)
folder.mkdir(mode=0o700, exist_ok=True)
listener = socket.socket(socket.AF_UNIX)
listener.bind(str(folder / ".s.PGSQL.5432"))
os.chmod(folder / ".s.PGSQL.5432", 0o777)
listener.listen()
print("ready", flush=True)
while True:
    connection, _ = listener.accept()
    if connection.recv(1024):
        print("got a message", flush=True)
        connection.sendall(b"R\\0\\0\\0\\x08\\0\\0\\0\\0Z\\0\\0\\0\\x05I")
    connection.close()
"""

_START = """
import pathlib, sys
import psutil
from horsies.embedded import EmbeddedServer
server = EmbeddedServer(pathlib.Path(sys.argv[1]), durable=False)
with server.use() as handle:
    pid = int((handle.folder / "data" / "postmaster.pid").read_text().split()[0])
    print(psutil.Process(pid).username())
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with temporary_cluster_folder() as folder:
        yield folder


@contextmanager
def _server_of_another_user(socket_folder: Path) -> Generator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", _FAKE_SERVER, str(socket_folder), str(OTHER_UID)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        output, _ = process.communicate()
        assert "got" not in output, "something was sent to the server of another user"


def _make_folder_of_another_user(folder: Path, mode: int = 0o755) -> Path:
    folder.mkdir(mode=mode)
    folder.chmod(mode)
    os.chown(folder, OTHER_UID, OTHER_UID)
    return folder


@pytest.mark.parametrize("call", [EmbeddedServer.use, EmbeddedServer.keep, EmbeddedServer.status, EmbeddedServer.stop])
@pytest.mark.parametrize("depth", ["cluster", "cluster/below/it"])
def test_folder_of_another_user_is_refused(folder: Path, call: object, depth: str) -> None:
    theirs = _make_folder_of_another_user(folder / "cluster")
    (folder / depth).mkdir(parents=True, exist_ok=True)
    with pytest.raises(ConfigurationError, match=rf"{theirs} is owned by another user \(uid {OTHER_UID}, mode 0755\)"):
        call(EmbeddedServer(folder / depth))  # type: ignore[operator]
    assert list(theirs.iterdir()) == ([] if depth == "cluster" else [theirs / "below"])


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_folder_that_others_may_write_is_refused(folder: Path, mode: int) -> None:
    (folder / "cluster").mkdir()
    (folder / "cluster").chmod(mode)
    with pytest.raises(ConfigurationError, match=f"writable by other users .*mode {mode:04o}"):
        EmbeddedServer(folder / "cluster").keep()


def test_parent_that_others_may_write_must_be_sticky(folder: Path) -> None:
    parent = folder / "parent"
    parent.mkdir()
    parent.chmod(0o777)
    with pytest.raises(ConfigurationError, match="writable by other users"):
        EmbeddedServer(parent / "cluster").use()
    parent.chmod(0o1777)
    with EmbeddedServer(parent / "cluster", durable=False).use() as handle:
        assert handle.started


def test_server_of_another_user_in_the_temp_folder_is_refused(folder: Path) -> None:
    server = EmbeddedServer(folder / ("x" * 120), durable=False)
    socket_folder = ClusterPaths(server.folder).socket_folder
    assert socket_folder.parent == Path("/tmp")
    with _server_of_another_user(socket_folder):
        for call in (server.keep, server.status):
            with pytest.raises(ConfigurationError, match=f"{socket_folder} must be a folder owned by"):
                call()
    for path in (socket_folder / ".s.PGSQL.5432", socket_folder):
        path.unlink() if path.is_socket() else path.rmdir()


def test_socket_of_another_user_is_sent_nothing() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o711)
        theirs = _make_folder_of_another_user(folder / "theirs")
        with (
            _server_of_another_user(theirs),
            pytest.raises(ConfigurationError, match=f"runs as uid {OTHER_UID}, not as root"),
        ):
            probe_server(theirs / ".s.PGSQL.5432", server_uid=0)


def test_planted_lock_symlink_creates_no_file(folder: Path) -> None:
    target = folder / "target"
    for lock in ("start.lock", "users.lock"):
        cluster = folder / f"cluster-{lock}"
        cluster.mkdir(mode=0o711)
        (cluster / lock).symlink_to(target)
        with pytest.raises(ConfigurationError, match="symbolic link"):
            EmbeddedServer(cluster).keep() if lock == "start.lock" else EmbeddedServer(cluster).use()
        assert not target.exists()


def test_lock_of_another_user_is_refused(folder: Path) -> None:
    (folder / "start.lock").touch(mode=0o600)
    os.chown(folder / "start.lock", OTHER_UID, OTHER_UID)
    with pytest.raises(ConfigurationError, match=r"start\.lock is owned by another user"):
        EmbeddedServer(folder).keep()
    (folder / "start.lock").unlink()


def test_planted_conf_symlink_is_replaced_not_followed(folder: Path) -> None:
    secret = folder / "secret"
    secret.write_text("keep me")
    secret.chmod(0o600)
    for name in ("horsies.conf", "horsies.conf.new"):
        (folder / name).symlink_to(secret)
    write_conf(folder / "horsies.conf", {"port": "1"})
    assert (secret.read_text(), secret.stat().st_mode & 0o777) == ("keep me", 0o600)
    assert not (folder / "horsies.conf").is_symlink()


def test_symlink_of_another_user_is_refused(folder: Path) -> None:
    (folder / "ours").mkdir(mode=0o711)
    link = folder / "link"
    link.symlink_to(folder / "ours")
    os.lchown(link, OTHER_UID, OTHER_UID)
    with pytest.raises(ConfigurationError, match=f"link is a symlink of another user .*{OTHER_UID}"):
        EmbeddedServer(link)
    assert list((folder / "ours").iterdir()) == []


def test_private_group_may_write(folder: Path) -> None:
    (folder / "cluster").mkdir()
    (folder / "cluster").chmod(0o775)  # of group root, which has no other members
    with EmbeddedServer(folder / "cluster", durable=False).use() as handle:
        assert handle.started


def test_pid_file_that_is_a_pipe_does_not_hang(folder: Path) -> None:
    (folder / "data").mkdir(mode=0o700)
    os.mkfifo(folder / "data" / "PG_VERSION")
    with pytest.raises(ConfigurationError, match="not a regular file"):
        EmbeddedServer(folder).status()


def test_running_as_nobody_warns_of_its_risk(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    ServerAccount(name="nobody", uid=65534, gid=65534).warn_if_shared(folder)
    assert "any other program of that user can read and change" in caplog.text
    ServerAccount(name="postgres", uid=101, gid=101).warn_if_shared(folder)
    assert len(caplog.records) == 1


def test_server_runs_as_nobody_without_another_account(folder: Path, tmp_path: Path) -> None:
    """As in an image that has only `nobody`: in a mount namespace with an /etc/passwd of its own."""
    users = Path("/etc/passwd").read_text().splitlines(keepends=True)
    (tmp_path / "passwd").write_text("".join(user for user in users if user.split(":")[0] in {"root", "nobody"}))
    mount = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/passwd && exec "$@"', str(tmp_path / "passwd")]
    if subprocess.run([*mount, "true"], capture_output=True).returncode:
        pytest.skip("this system allows no mount namespace")
    done = subprocess.run([*mount, sys.executable, "-c", _START, str(folder)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "nobody\n"), done.stderr
    assert "the embedded server runs as nobody: any other program of that user can read and change" in done.stderr
