"""Files of an embedded cluster: paths, folders, configuration and locks.

<folder>/                 0700; for root 0711, so that the server's account can enter
    data/                 the cluster (0700, owned by the server's account)
    data.new/             a cluster being created; if that was interrupted, the next creation removes it
    socket/               the server's socket, unless its path is too long
    log/                  the server's logs, one file per weekday
    horsies.conf          settings, included by the cluster's postgresql.conf
    command.log           output of the last PostgreSQL program
    pg/                   a copy of the binaries, if the account cannot reach the originals
    start.lock            held while starting, stopping, joining or leaving the server; contains its last holder's pid
    users.lock            shared by all processes that use the server
    linger.lock           held by the watchdog, which stops the server when no process uses it any more
    kept                  marker: keep the server running while no process uses it
    project               for root: the project whose database this is
    .gitignore            `*`, because the folder is in a project
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import stat
import sys
import tempfile
import time
import unicodedata
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import platformdirs

from horsies.embedded.binaries import OTHER_FOLDER_HINT, first_inaccessible, unavailable
from horsies.errors import Busy
from horsies.trusted_files import UntrustedFile, check_symlinks, distrust_reason, open_folder, user_name

if TYPE_CHECKING:
    from horsies.embedded.binaries import ServerAccount


logger = logging.getLogger("horsies.embedded")

DATABASE = "horsies"
ROLE = "horsies"
PORT = 5432
_SOCKET = f".s.PGSQL.{PORT}"
_SOCKET_PATH_LIMIT = 107 if sys.platform == "linux" else 103


class ClusterPaths:
    """The paths of the cluster in `folder`; creates nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.new_data = folder / "data.new"
        self.log = folder / "log"
        self.conf = folder / "horsies.conf"
        self.command_log = folder / "command.log"
        self.copied_binaries = folder / "pg"
        self.start_lock = folder / "start.lock"
        self.users_lock = folder / "users.lock"
        self.linger_lock = folder / "linger.lock"
        self.keep_marker = folder / "kept"
        self.pid_file = self.data / "postmaster.pid"

    @property
    def socket_folder(self) -> Path:
        """`socket` in the folder, or a short path elsewhere if the kernel or a URL cannot use that one."""
        default = self.folder / "socket"
        return default if _is_usable_for_socket(default) else _short_socket_folder(self.folder)

    @property
    def socket(self) -> Path:
        return self.socket_folder / _SOCKET

    @property
    def socket_pid_file(self) -> Path:
        return self.socket_folder / f"{_SOCKET}.lock"

    @property
    def url(self) -> str:
        return f"postgresql://{ROLE}@/{DATABASE}?host={quote(str(self.socket_folder), safe='/')}"


_URL = re.compile(rf"postgresql://{ROLE}@/{DATABASE}\?host=/.*/(socket|horsies-[0-9a-f]{{16}})")


def is_embedded_url(url: str) -> bool:
    """Whether the URL has the form of `ClusterPaths.url`, which no other server is likely to have."""
    return _URL.fullmatch(url) is not None


def _is_usable_for_socket(folder: Path) -> bool:
    # A comma separates hosts in a URL, so a path with a comma would be read as two hosts.
    return "," not in str(folder) and len(os.fsencode(folder / _SOCKET)) <= _SOCKET_PATH_LIMIT


def _short_socket_folder(folder: Path) -> Path:
    name = f"horsies-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]}"
    # /tmp first, because TMPDIR may differ between processes that use the same cluster.
    for parent in (Path("/tmp"), Path(tempfile.gettempdir())):  # noqa: S108 - the folder is made private and checked
        if parent.is_dir() and _is_usable_for_socket(parent / name):
            return parent / name
    raise unavailable(
        f"no folder for the server's socket: the paths {folder} and {tempfile.gettempdir()} are too long",
        hint="choose a shorter folder with embedded:///dir, or set broker.database_url",
    )


# Creating folders, without changing permissions of anything we did not create

_KNOWN_ENTRIES = {
    "data",
    "data.new",
    "socket",
    "log",
    "pg",
    "horsies.conf",
    "horsies.conf.new",
    "command.log",
    "start.lock",
    "users.lock",
    "linger.lock",
    "kept",
    "project",
    ".gitignore",
}


def make_folder(folder: Path, account: ServerAccount, project: Path | None = None) -> None:
    """Create the cluster's folder and its missing parents so that the account can enter them."""
    with open_folder(folder, create_mode=0o700 if account.is_current_user else 0o711) as descriptor:
        if folder.name == ".horsies":  # another folder may hold more than the cluster
            _write_new_file(".gitignore", "*\n", descriptor)
        if project is not None and folder.parent != project:
            _write_new_file("project", f"{project}\n", descriptor)
    if account.is_current_user:
        return
    has_only_our_files = first_inaccessible(folder, account) == folder and (
        {path.name for path in folder.iterdir()} <= _KNOWN_ENTRIES
    )
    if has_only_our_files:
        folder.chmod(0o711)
    if closed := first_inaccessible(folder, account):
        raise unavailable(
            f"cannot use {folder} for the embedded server: it runs as {account.name}, who may not enter {closed}",
            hint=OTHER_FOLDER_HINT,
        )


def make_private_folder(folder: Path, account: ServerAccount) -> None:
    """Create a folder that only the account can access; an existing one must already be exactly that."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not account.is_current_user and folder.lstat().st_uid == os.geteuid():
        os.chown(folder, account.uid, account.gid, follow_symlinks=False)
    check_private_folder(folder, account)


def check_private_folder(folder: Path, account: ServerAccount) -> None:
    """Raise unless only the account can access the folder, whose parent must be the cluster's folder or sticky."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != account.uid or status.st_mode & 0o077:
        raise unavailable(
            f"{folder} must be a folder owned by {account.name} with mode 0700; "
            f"it belongs to {user_name(status.st_uid)} and has mode {stat.S_IMODE(status.st_mode):04o}",
            hint=OTHER_FOLDER_HINT,
        )


@contextmanager
def translate_os_errors(folder: Path) -> Generator[None]:
    """Convert OSError to HRS-220 with the folder and a hint."""
    try:
        yield
    except OSError as error:
        raise unavailable(
            f"the embedded server cannot use the folder {folder}: {error}", hint=OTHER_FOLDER_HINT
        ) from error


# The folder of a cluster

_UNUSABLE_CATEGORIES = {"Cc", "Cs"}  # control characters, and surrogates, which stand for bytes that are not UTF-8


def resolve_folder(named: Path) -> Path:
    """Return the canonical absolute path of a folder, so that all its users agree on it."""
    _validate_folder(named)
    with translate_os_errors(named):
        check_symlinks(Path(os.path.abspath(named)))  # noqa: PTH100 - resolve() would follow them
    # realpath, because Path.resolve raises for a symlink loop; the first use reports it with the name of the folder.
    resolved = Path(os.path.realpath(named))
    _validate_folder(resolved)
    return resolved


def other_clusters(project: Path) -> list[Path]:
    """Return clusters that may hold tasks of the project but are not its default.

    Before each project had its own, all projects of an account shared one. Root does not use the project owner's.
    """
    if os.geteuid() == 0:
        folders = [Path("/var/lib/horsies/embedded"), project / ".horsies"]
    else:
        folders = [platformdirs.user_data_path("horsies") / "embedded"]
    return [folder for folder in folders if _is_cluster(folder)]


def _validate_folder(folder: Path) -> None:
    """Raise if PostgreSQL's files or a URL cannot contain the name of the folder."""
    if any(unicodedata.category(character) in _UNUSABLE_CATEGORIES for character in str(folder)):
        raise unavailable(
            f"cannot use the folder {str(folder)!r}: its name contains a control character or is not UTF-8",
            hint=OTHER_FOLDER_HINT,
        )


def _is_cluster(folder: Path) -> bool:
    try:
        return (folder / "data").is_dir()
    except OSError:
        return False


# Configuration of the server, written at every start

_BASE_SETTINGS = {
    "cluster_name": "horsies",
    "listen_addresses": "",
    "port": str(PORT),
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_logical_replication_workers": "0",
    "jit": "off",
    "timezone": "UTC",
    "logging_collector": "on",
    "log_directory": "../log",
    "log_filename": "postgresql-%a.log",
    "log_truncate_on_rotation": "on",
    "log_rotation_age": "1d",
    "log_rotation_size": "0",
    "log_timezone": "UTC",
}
_HEADING = "# Written by horsies at every start. Put your own settings below the include in postgresql.conf.\n"
_DURABILITY = ("fsync", "synchronous_commit", "full_page_writes")


def server_settings(socket_folder: Path, *, durable: bool, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the server; `extra` overrides ours."""
    durability = dict.fromkeys(_DURABILITY, "on" if durable else "off")
    quoted = '"{}"'.format(str(socket_folder).replace('"', '""'))  # the setting is a list of quoted names
    return {**_BASE_SETTINGS, "unix_socket_directories": quoted, **durability, **extra}


def write_conf(path: Path, settings: Mapping[str, str]) -> None:
    """Replace the file atomically, readable for the server's account."""
    escaped = {name: value.replace("\\", "\\\\").replace("'", "''") for name, value in settings.items()}
    draft = f"{path.name}.new"
    with open_folder(path.parent) as folder:
        with suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=folder)
        with os.fdopen(_create_file(draft, folder, mode=0o644), "w") as file:
            file.write(_HEADING + "".join(f"{name} = '{value}'\n" for name, value in escaped.items()))
        os.replace(draft, path.name, src_dir_fd=folder, dst_dir_fd=folder)


def _write_new_file(name: str, text: str, folder: int) -> None:
    """Write a file in an open folder, unless there is one."""
    with (
        suppress(FileExistsError),
        os.fdopen(_create_file(name, folder, mode=0o644), "w", errors="surrogateescape") as file,
    ):
        file.write(text)


def include_conf(data: Path, conf: Path) -> None:
    """Include `conf` in a new cluster's postgresql.conf, by a relative path so that both can be moved."""
    path = data / "postgresql.conf"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "w") as file:
        # The folder belongs to the server's account, which other programs of that user may share.
        if os.fstat(descriptor).st_nlink != 1:
            raise UntrustedFile(path, "a hard link to another file")
        file.write(f"\ninclude '../{conf.name}'\n")


def _create_file(name: str, folder: int, *, mode: int) -> int:
    """Create a file in an open folder; raises FileExistsError for any existing entry, a symlink included."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, mode, dir_fd=folder)
    os.fchmod(descriptor, mode)  # open applied the umask
    return descriptor


_RECHECK_S = 0.01

# File locks: the kernel releases them when a process dies, so a killed process never counts as using the server


@contextmanager
def exclusive_lock(path: Path) -> Generator[int]:
    """Wait for the lock and hold it; a program that inherits the descriptor holds it too, even after we exit."""
    lock = _open_lock_file(path)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        _unlock(lock)


@contextmanager
def start_lock(path: Path, *, report_after_s: float = 5.0, timeout_s: float = 3600.0) -> Generator[int]:
    """Wait for the start lock and hold it, with our pid in its file.

    Logs the pid of the holder after `report_after_s`, and raises Busy after `timeout_s`.
    """
    lock = _open_lock_file(path)
    try:
        report_at, deadline = time.monotonic() + report_after_s, time.monotonic() + timeout_s
        while not _try_lock(lock, fcntl.LOCK_EX):
            pid = os.pread(lock, 20, 0).decode(errors="replace")
            holder = pid if pid.isdigit() else "unknown"
            message = f"process {holder} is starting or stopping the embedded server in {path.parent}"
            if time.monotonic() > deadline:
                raise Busy(message, hint="continue that process if it is stopped, or end it")
            if time.monotonic() > report_at:
                logger.warning("waiting: %s", message)
                report_at = inf
            time.sleep(_RECHECK_S)
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        yield lock
    finally:
        _unlock(lock)


def _unlock(lock: int) -> None:
    # Explicitly: a process forked meanwhile has the descriptor too and would keep the lock.
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


def _try_lock(lock: int, operation: int) -> bool:
    try:
        fcntl.flock(lock, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class _FileLock:
    """A lock that is held until it is closed here and in every process forked meanwhile.

    Taking and releasing it sets the modification time of its file.
    """

    _OPERATION: int

    def __init__(self, path: Path) -> None:
        self._lock: int | None = _open_lock_file(path)
        try:
            fcntl.flock(self._lock, self._OPERATION)
            os.utime(self._lock)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the lock; may be called twice."""
        # Cleared first, because the number of a closed descriptor may be reused for another file.
        lock, self._lock = self._lock, None
        if lock is not None:
            os.utime(lock)
            os.close(lock)


class SharedLock(_FileLock):
    """Waits for processes that hold the lock exclusively."""

    _OPERATION = fcntl.LOCK_SH


class ExclusiveLock(_FileLock):
    """Raises BlockingIOError if another process holds the lock."""

    _OPERATION = fcntl.LOCK_EX | fcntl.LOCK_NB


def is_locked(path: Path) -> bool:
    """Whether any process holds the lock, exclusive or shared; does not create the file."""
    with _existing_lock_file(path) as lock:
        return lock is not None and not _try_lock(lock, fcntl.LOCK_EX)


def is_used(users_lock: Path) -> bool:
    """Whether any process uses the server, that is, shares the lock. The caller holds the start lock.

    Then only the watchdog can hold the lock exclusively: for an instant, after the last process has left.
    """
    with _existing_lock_file(users_lock) as lock:
        if lock is None or _try_lock(lock, fcntl.LOCK_EX) or not _try_lock(lock, fcntl.LOCK_SH):
            return False
        return not _try_lock(lock, fcntl.LOCK_EX)  # not used if the watchdog released it in between


def is_either_locked(start: Path, users: Path) -> bool:
    """Whether a process starts, stops or uses the server."""
    with _existing_lock_file(start) as lock:
        return (lock is not None and not _try_lock(lock, fcntl.LOCK_EX)) or is_used(users)


def _open_lock_file(path: Path, *, create: bool = True) -> int:
    with open_folder(path.parent) as folder:
        if create:
            with suppress(FileExistsError):
                return _create_file(path.name, folder, mode=0o600)
        lock = os.open(path.name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    if reason := distrust_reason(os.fstat(lock)):
        os.close(lock)
        raise UntrustedFile(path, reason)
    return lock


@contextmanager
def _existing_lock_file(path: Path) -> Generator[int | None]:
    """Open the file without creating it; closing it releases what was locked."""
    try:
        lock = _open_lock_file(path, create=False)
    except FileNotFoundError:
        yield None
        return
    try:
        yield lock
    finally:
        os.close(lock)
