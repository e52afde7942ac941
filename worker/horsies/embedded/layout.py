"""Where the parts of one cluster lie.

<folder>/                 ours; as root others may pass through it, not list it (0711)
    data/                 the cluster (0700, owned by the server's account)
    data.new/             a cluster being made; never used, removed when found
    socket/               the server's socket, unless its path would be too long
    log/                  the server's log, a file a weekday
    horsies.conf          our settings, included by the cluster's postgresql.conf
    command.log           what the last PostgreSQL program said
    pg/                   a copy of the binaries, where the account cannot reach the originals
    start.lock users.lock kept
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
import re
import stat
import sys
import tempfile
import unicodedata
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import platformdirs

from horsies.embedded.binaries import OTHER_FOLDER_HINT, first_inaccessible, unavailable

if TYPE_CHECKING:
    from horsies.embedded.binaries import ServerAccount


DATABASE = "horsies"
ROLE = "horsies"
PORT = 5432
_SOCKET = f".s.PGSQL.{PORT}"
_SOCKET_PATH_LIMIT = 107 if sys.platform == "linux" else 103


@dataclass(frozen=True, slots=True)
class ClusterPaths:
    """The paths of the cluster in `folder`; looks at no file."""

    folder: Path

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def new_data(self) -> Path:
        return self.folder / "data.new"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def conf(self) -> Path:
        return self.folder / "horsies.conf"

    @property
    def command_log(self) -> Path:
        return self.folder / "command.log"

    @property
    def copied_binaries(self) -> Path:
        return self.folder / "pg"

    @property
    def start_lock(self) -> Path:
        return self.folder / "start.lock"

    @property
    def users_lock(self) -> Path:
        return self.folder / "users.lock"

    @property
    def keep_marker(self) -> Path:
        return self.folder / "kept"

    @property
    def socket_folder(self) -> Path:
        """`socket` in the folder, or a short path of its own where the kernel or a URL could not carry that one."""
        beside = self.folder / "socket"
        return beside if _is_usable(beside) else _short_folder(self.folder)

    @property
    def socket(self) -> Path:
        return self.socket_folder / _SOCKET

    @property
    def pid_file(self) -> Path:
        return self.data / "postmaster.pid"

    @property
    def socket_pid_file(self) -> Path:
        return self.socket_folder / f"{_SOCKET}.lock"

    @property
    def url(self) -> str:
        return f"postgresql://{ROLE}@/{DATABASE}?host={quote(str(self.socket_folder), safe='/')}"


_ADDRESS = re.compile(rf"postgresql://{ROLE}@/{DATABASE}\?host=/.*/(socket|horsies-[0-9a-f]{{16}})")


def is_address_of_embedded(url: str) -> bool:
    """Whether this is how a `Layout` writes an address; a server of somebody's own hardly has one like it."""
    return _ADDRESS.fullmatch(url) is not None


def _is_usable(folder: Path) -> bool:
    # A comma separates hosts in a URL, so a path with one would be read as two.
    return "," not in str(folder) and len(os.fsencode(folder / _SOCKET)) <= _SOCKET_PATH_LIMIT


def _short_folder(folder: Path) -> Path:
    name = f"horsies-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]}"
    # TMPDIR differs between processes that have to meet here, so it comes second.
    for parent in (Path("/tmp"), Path(tempfile.gettempdir())):  # noqa: S108 - the folder is made private and checked
        if parent.is_dir() and _is_usable(parent / name):
            return parent / name
    raise unavailable(
        f"no folder for the server's socket: {folder} is too long a path for one, and so is {tempfile.gettempdir()}",
        hint="name a shorter folder with embedded:///dir, or set broker.database_url",
    )


# Making a cluster's folders, with nobody's permissions changed but our own.

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
    "kept",
}


def make_folder(folder: Path, account: ServerAccount) -> None:
    """Make the cluster's folder with its missing parents, such that the account can pass through them."""
    _make_with_parents(folder, mode=0o700 if account.is_current_user else 0o711)
    if account.is_current_user:
        return
    if first_inaccessible(folder, account) == folder and _holds_only_ours(folder):
        folder.chmod(0o711)
    if closed := first_inaccessible(folder, account):
        raise unavailable(
            f"the embedded server cannot live in {folder}: it runs as {account.name}, who may not enter {closed}",
            hint=OTHER_FOLDER_HINT,
        )


def make_private_folder(folder: Path, account: ServerAccount) -> None:
    """Make a folder of the account alone; one that exists must be exactly that, whoever made it."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not account.is_current_user and folder.lstat().st_uid == os.geteuid():
        os.chown(folder, account.uid, account.gid, follow_symlinks=False)
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != account.uid or facts.st_mode & 0o077:
        raise unavailable(f"{folder} must be a folder of {account.name} alone (mode 0700)", hint=OTHER_FOLDER_HINT)


@contextmanager
def translate_os_errors(folder: Path) -> Generator[None]:
    """Turn the system's refusal into an error that names the folder and the ways round it."""
    try:
        yield
    except OSError as error:
        raise unavailable(
            f"the embedded server cannot use the folder {folder}: {error}", hint=OTHER_FOLDER_HINT
        ) from error


def _make_with_parents(folder: Path, *, mode: int) -> None:
    if folder.is_dir():
        return
    _make_with_parents(folder.parent, mode=mode)
    try:
        folder.mkdir(mode=mode)
    except FileExistsError:
        if not folder.is_dir():
            raise
    else:
        folder.chmod(mode)  # the umask had its say in mkdir


def _holds_only_ours(folder: Path) -> bool:
    return {path.name for path in folder.iterdir()} <= _KNOWN_ENTRIES


# Where clusters live on this machine: ours by default, and those of others that can be seen from here.

_ROOT_USER_FOLDER = Path("/var/lib/horsies/embedded")
_UNUSABLE = {"Cc", "Cs"}  # control characters, and what bytes that are no UTF-8 are read as


def default_folder() -> Path:
    """The folder of the cluster that is used when no other is named."""
    # The account that root lends to the server cannot enter root's home.
    return _ROOT_USER_FOLDER if os.geteuid() == 0 else _users_folder()


def resolve_folder(folder: Path | None) -> Path:
    """The one absolute path by which all users of a folder know it."""
    named = _validate_folder(_expanded(folder or default_folder()))
    # Path.resolve raises in a circle of links; this leaves it to be refused by the system, by name, on first use.
    return _validate_folder(Path(os.path.realpath(named)))


def other_clusters(folder: Path) -> list[Path]:
    """Clusters in the default places of root and of all users but the one in `folder`; closed homes stay unseen."""
    places = {_ROOT_USER_FOLDER, _users_folder(), *_folders_in_homes()} - {resolve_folder(folder)}
    return sorted(place for place in places if _is_cluster(place))


def _expanded(folder: Path) -> Path:
    try:
        return folder.expanduser()
    except RuntimeError:
        raise unavailable(f"uid {os.geteuid()} has no home to keep an embedded server in") from None


def _validate_folder(folder: Path) -> Path:
    """The folder, unless its name is one that PostgreSQL's own files or a URL could not carry."""
    if any(unicodedata.category(character) in _UNUSABLE for character in str(folder)):
        raise unavailable(
            f"the embedded server cannot use the folder {str(folder)!r}: it holds a control character or is not UTF-8",
            hint=OTHER_FOLDER_HINT,
        )
    return folder


def _users_folder() -> Path:
    return platformdirs.user_data_path("horsies") / "embedded"


def _folders_in_homes() -> set[Path]:
    try:
        below_home = _users_folder().relative_to(Path.home())
    except (ValueError, RuntimeError):  # XDG_DATA_HOME points elsewhere, or we have no home: no clue about others
        return set()
    return {Path(user.pw_dir) / below_home for user in pwd.getpwall()}


def _is_cluster(folder: Path) -> bool:
    try:
        return (folder / "data").is_dir()
    except OSError:
        return False


# The settings that the server runs with, written afresh at every start.

_ALWAYS = {
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
_HEADING = "# Written by horsies at every start; settings of your own go below the include in postgresql.conf.\n"
_DURABILITY = ("fsync", "synchronous_commit", "full_page_writes")


def settings_of(socket_folder: Path, *, durable: bool, extra: Mapping[str, str]) -> dict[str, str]:
    """Ours, then the caller's on top."""
    durability = dict.fromkeys(_DURABILITY, "on" if durable else "off")
    return {**_ALWAYS, "unix_socket_directories": _as_list_item(str(socket_folder)), **durability, **extra}


def write_conf(path: Path, settings: Mapping[str, str]) -> None:
    """Replace the file in one step; the server's account can read it."""
    lines = [f"{name} = '{_escaped(value)}'\n" for name, value in settings.items()]
    written = path.with_name(f"{path.name}.new")
    written.unlink(missing_ok=True)
    written.write_text(_HEADING + "".join(lines))
    written.chmod(0o644)
    written.replace(path)


def include_conf(data: Path, conf: Path) -> None:
    """Make a new cluster read `conf`, which lies beside it, wherever both are moved."""
    descriptor = os.open(data / "postgresql.conf", os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"\ninclude '../{conf.name}'\n")


def _as_list_item(path: str) -> str:
    doubled = path.replace('"', '""')
    return f'"{doubled}"'


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "''")


# File locks that the kernel drops with their process, so that no count can go stale.


@contextmanager
def exclusive_lock(path: Path) -> Generator[int]:
    """Wait for the lock and hold it; a program that is given the descriptor holds it with us, and after us."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        # Said aloud because a process forked meanwhile has the descriptor too and would hold the lock for its life.
        fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


class SharedLock:
    """A share of the lock; it lasts until it is closed here and in every process that was forked meanwhile."""

    def __init__(self, path: Path) -> None:
        self._lock: int | None = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_SH)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give it up. Again is harmless: the number of a closed descriptor may be another file's by then."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def is_locked(path: Path) -> bool:
    """Whether anyone holds the lock or a share of it. Never creates the file."""
    with _try_lock_file(path) as obtained:
        return not obtained


def is_either_locked(gate: Path, path: Path) -> bool:
    """As `is_held`, holding `gate` meanwhile so that our look is not taken for a user; a closed gate counts as held."""
    with _try_lock_file(gate) as obtained:
        return not obtained or is_locked(path)


@contextmanager
def _try_lock_file(path: Path) -> Generator[bool]:
    try:
        lock = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        yield True
        return
    try:
        yield _try_acquire(lock)
    finally:
        os.close(lock)


def _try_acquire(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
