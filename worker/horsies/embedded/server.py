"""The embedded server as its users see it: use it, keep it, stop it, look at it."""

from __future__ import annotations

import atexit
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

from horsies.embedded.binaries import (
    BINDIR_VARIABLE,
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
    exclusive_lock,
    include_conf,
    is_either_locked,
    is_locked,
    make_folder,
    make_private_folder,
    resolve_folder,
    settings_of,
    translate_os_errors,
    write_conf,
)
from horsies.errors import Busy, ConfigurationError

if TYPE_CHECKING:
    from horsies.embedded.binaries import ServerAccount


# Binaries that the server's account can run, copied when the originals lie behind a closed folder.

_NOT_NEEDED_TO_RUN = shutil.ignore_patterns("include", "pgxs", "pkgconfig", "*.a")


def ensure_accessible(binaries: Binaries, account: ServerAccount, copy: Path) -> Binaries:
    """The same binaries, or their copy in the folder `copy`; nobody else's permissions are changed for it."""
    if account.is_current_user or first_inaccessible(binaries.bindir, account) is None:
        return binaries
    installation = binaries.bindir.parent
    copied = copy / installation.parent.name / installation.name
    stamp = f"{binaries.version} from {installation}\n"
    if not _is_stamped(copy, stamp):
        _copy(installation, copy, stamp)
    return replace(binaries, bindir=copied / binaries.bindir.name, origin=f"copy of {installation}")


def _is_stamped(copy: Path, stamp: str) -> bool:
    try:
        return (copy / "origin").read_text() == stamp
    except FileNotFoundError:
        return False


def _copy(installation: Path, copy: Path, stamp: str) -> None:
    shutil.rmtree(copy, ignore_errors=True)
    package = installation.parent
    # The wheel's programs look for their libraries in this sibling, by a path relative to themselves.
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(installation, copy / package.name / installation.name, symlinks=True, ignore=_NOT_NEEDED_TO_RUN)
    if libraries.is_dir():
        shutil.copytree(libraries, copy / libraries.name, symlinks=True)
    _open_to_all(copy)
    (copy / "origin").write_text(stamp)


def _open_to_all(folder: Path) -> None:
    """Let everybody read and run what the owner may."""
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        if not path.is_symlink():
            owners = path.stat().st_mode & 0o700
            path.chmod(owners | (owners & 0o500) >> 3 | (owners & 0o500) >> 6)


# Whether a server is there: asked on its socket, because a pid can be a zombie's or somebody else's.

_PROBE_TIMEOUT_S = 5.0
_PROTOCOL_3 = 196608
_READY_FOR_QUERY = b"Z\0\0\0\x05I"
_TERMINATE = b"X\0\0\0\x04"
_CANNOT_CONNECT_NOW = b"C57P03"


class ServerState(Enum):
    """What a server said to a client that wants in."""

    READY = "ready"
    NOT_READY = "not yet"
    """It starts, recovers or shuts down; or something holds the socket and is silent."""
    NO_RESPONSE = "none"


def probe_server(path: Path) -> ServerState:
    """Knock at the socket as a client would, and leave politely so that the server logs nothing."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_PROBE_TIMEOUT_S)
            connection.connect(str(path))
            connection.sendall(_startup_message())
            return _parse_reply(_reply(connection))
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        return ServerState.NO_RESPONSE
    except (TimeoutError, BlockingIOError, ConnectionError):
        return ServerState.NOT_READY
    except PermissionError:
        raise unavailable(f"the embedded server at {path.parent} belongs to another user") from None


def _startup_message() -> bytes:
    parameters = f"user\0{ROLE}\0database\0postgres\0application_name\0horsies knock\0\0".encode()
    return struct.pack("!ii", len(parameters) + 8, _PROTOCOL_3) + parameters


def _reply(connection: socket.socket) -> bytes:
    reply = b""
    while chunk := connection.recv(8192):
        reply += chunk
        if reply.endswith(_READY_FOR_QUERY):
            connection.sendall(_TERMINATE)
            break
    return reply


def _parse_reply(reply: bytes) -> ServerState:
    # Any other refusal, such as "too many clients", comes from a server that is up.
    if not reply or _CANNOT_CONNECT_NOW in reply.split(b"\0"):
        return ServerState.NOT_READY
    return ServerState.READY


# Making a new cluster, all or nothing.

_INITDB = (
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
    """Make the data folder with our database in it; it gets its name when it is complete and on disk.

    The programs hold the start lock, so that none of them can outlive a killed starter and write under the next one.
    """
    layout = programs.layout
    fresh = layout.new_data
    shutil.rmtree(fresh, ignore_errors=True)
    make_private_folder(fresh, programs.account)
    programs.run("initdb", *_INITDB, data=fresh, lock_fd=lock)
    _create_database(programs, fresh, lock)
    include_conf(fresh, layout.conf)
    if durable:
        programs.run("initdb", "--sync-only", data=fresh, lock_fd=lock)
    fresh.rename(layout.data)
    if durable:
        _sync(layout.folder)


def _create_database(programs: PostgresPrograms, data: Path, lock: int) -> None:
    # A stand-alone backend needs no client and no listening server.
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


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# What a killed server leaves behind, and what must be gone before a new one starts on the same data.


def server_processes(data: Path) -> list[int]:
    """Pids of the processes of a server on the data: each works in its folder, where a person's shell may stand too."""
    import psutil

    ours = {"name": "postgres", "cwd": str(data)}
    return [process.pid for process in psutil.process_iter(list(ours)) if process.info == ours]


def read_pid_file(record: Path) -> int | None:
    """The pid that a server wrote into a lock file of its own; it may be anybody's by now."""
    try:
        return int(record.read_text().split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return None


def remove_stale_pid_file(record: Path) -> None:
    """Remove a lock file whose pid has become a zombie or another program, which PostgreSQL takes for its server.

    Call only when no server answers and no process of one is left. A record of a pid that is gone stays:
    PostgreSQL clears it after a check of its own, which needs the record.
    """
    import psutil

    pid = read_pid_file(record)
    # Elsewhere a process may hide where it works, so that the caller could not have known.
    if sys.platform == "linux" and pid is not None and psutil.pid_exists(pid):
        record.unlink()


# One cluster and the server on it. Whoever starts or stops it holds the start lock.

# Recovery takes as long as it takes; this only bounds the wait for a server that hangs.
_START_LIMIT_S = 3600
_STOP_LIMIT_S = 600
_ORPHANS_LIMIT_S = 10
_POLL_INTERVAL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The cluster of one layout, with the settings that its next start will use."""

    layout: ClusterPaths
    durable: bool
    settings: Mapping[str, str]

    @property
    def server_state(self) -> ServerState:
        return probe_server(self.layout.socket)

    @property
    def pid(self) -> int | None:
        return read_pid_file(self.layout.pid_file)

    def ensure_running(self, lock: int) -> bool:
        """Return when the server takes clients: False when it was up already, True when we started it."""
        if self._wait_for_existing_server():
            return False
        self._start(lock)
        return True

    def stop(self) -> None:
        """End all sessions and the server, and return when it is gone."""
        deadline = time.monotonic() + (_STOP_LIMIT_S if self._signal_stop() else _ORPHANS_LIMIT_S)
        while server_processes(self.layout.data) or self.server_state is not ServerState.NO_RESPONSE:
            if time.monotonic() > deadline:
                raise unavailable(f"the server in {self.layout.folder} (pid {self.pid}) does not stop")
            time.sleep(_POLL_INTERVAL_S)
        self._remove_short_socket_folder()

    @property
    def data_version(self) -> str | None:
        """The major version that made the data, as PostgreSQL wrote it down."""
        try:
            return (self.layout.data / "PG_VERSION").read_text().strip()
        except FileNotFoundError:
            return None

    def binaries(self) -> Binaries:
        """The programs that fit the data; any when there is none yet."""
        if not self.layout.data.exists():
            return find_binaries()
        major = self.data_version
        if major is None or not major.isdigit():
            raise unavailable(
                f"{self.layout.data} is there but holds no PostgreSQL cluster, and is not overwritten",
                hint=f"move {self.layout.data} away, or set broker.database_url",
            )
        try:
            return find_binaries(int(major))
        except ConfigurationError as error:
            raise unavailable(
                f"the data in {self.layout.data} is of PostgreSQL {major}: {error.message}",
                hint=f"install PostgreSQL {major} ({BINDIR_VARIABLE} names its folder) to run it or to pg_upgrade it; "
                f"or move {self.layout.folder} away and start empty; or set broker.database_url",
                notes=error.notes,
            ) from None

    def _wait_for_existing_server(self) -> bool:
        """Whether a server that is up, starting or recovering takes clients; False once nothing is left of it."""
        began = time.monotonic()
        while (answer := self.server_state) is not ServerState.READY:
            orphans = server_processes(self.layout.data) if answer is ServerState.NO_RESPONSE else []
            if answer is ServerState.NO_RESPONSE and not orphans:
                return False
            waited_s = time.monotonic() - began
            if orphans and waited_s > _ORPHANS_LIMIT_S:
                raise unavailable(f"processes {orphans} of a server that is gone still use {self.layout.data}")
            if waited_s > _START_LIMIT_S:
                raise unavailable(f"the server in {self.layout.folder} (pid {self.pid}) lets no client in")
            time.sleep(_POLL_INTERVAL_S)
        return True

    def _signal_stop(self) -> bool:
        """Whether there was a server to ask; one in another container is out of reach."""
        # Not by pg_ctl: it needs binaries that may be gone by now, trusts any pid, and waits for zombies.
        pid = self.pid
        if pid is None or pid not in server_processes(self.layout.data):
            return False
        os.kill(pid, signal.SIGINT)
        return True

    def _start(self, lock: int) -> None:
        programs = self._programs()
        layout = self.layout
        make_private_folder(layout.log, programs.account)
        make_private_folder(layout.socket_folder, programs.account)
        write_conf(layout.conf, settings_of(layout.socket_folder, durable=self.durable, extra=self.settings))
        if not layout.data.exists():
            create_data(programs, durable=self.durable, lock=lock)
        remove_stale_pid_file(layout.pid_file)
        remove_stale_pid_file(layout.socket_pid_file)
        # pg_ctl puts the server into a session of its own; it must not inherit the lock, which it would hold for life.
        try:
            programs.run("pg_ctl", "start", "-s", "-w", "-t", str(_START_LIMIT_S), data=layout.data)
        except (KeyboardInterrupt, SystemExit):
            self.stop()  # pg_ctl ended with the interruption, the server that it started did not
            raise

    def _remove_short_socket_folder(self) -> None:
        """Leave no folder outside our own that nobody could attribute; one that is not empty stays."""
        if self.layout.socket_folder.parent != self.layout.folder:
            with suppress(OSError):
                self.layout.socket_folder.rmdir()

    def _programs(self) -> PostgresPrograms:
        account = server_account(self.layout.data)
        binaries = ensure_accessible(self.binaries(), account, self.layout.copied_binaries)
        return PostgresPrograms(binaries=binaries, account=account, layout=self.layout)


# One process's claim on a running server.

_OPEN_HANDLES: set[ServerHandle] = set()


class ServerHandle:
    """The server runs as long as this is held; released at the latest when the interpreter exits.

    A forked child shares its parent's lease and cannot give it up: there, `release` does nothing.
    """

    def __init__(self, *, url: str, folder: Path, started: bool, on_release: Callable[[], None]) -> None:
        self.url = url
        self.folder = folder
        self.started = started
        self._leave = on_release
        self._owner = os.getpid()
        _OPEN_HANDLES.add(self)

    @property
    def is_held(self) -> bool:
        return self in _OPEN_HANDLES

    def release(self) -> None:
        """Leave the server; the last one out stops it unless it is kept. Again is harmless.

        A signal handler may call this or raise to exit, even while it runs: what was cut short is completed at exit.
        """
        if not self.is_held or os.getpid() != self._owner:
            return
        _OPEN_HANDLES.discard(self)
        try:
            self._leave()
        except (KeyboardInterrupt, SystemExit):
            _OPEN_HANDLES.add(self)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


# Known to the interpreter since this was imported, it runs after every handler that a program adds later: those may
# still use the server.
@atexit.register
def _release_all() -> None:
    with ExitStack() as releases:
        for lease in list(_OPEN_HANDLES):
            releases.callback(lease.release)


# What an operator is told about a cluster.


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedStatus:
    """A cluster as it was found, without touching it."""

    folder: Path
    data_exists: bool
    running: bool
    kept: bool
    users_present: bool
    pid: int | None
    server_version: str | None
    """The version of the binaries that would run it, else the major version of its data."""
    binaries: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReport:
    """What `stop` found and therefore did; a server that was down is a fact, not a fault."""

    folder: Path
    was_running: bool
    was_kept: bool
    had_users: bool


_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


class EmbeddedServer:
    """One cluster in one folder; making this object touches nothing.

    Two locks order everything. `start.lock` is held by whoever starts, stops, joins or leaves; `users.lock` is shared
    by all who use the server, so whoever finds it free on leaving was the last.
    """

    def __init__(
        self, folder: Path | None = None, *, durable: bool = True, settings: Mapping[str, str] = _NO_SETTINGS
    ) -> None:
        self.folder = resolve_folder(folder)
        self._layout = ClusterPaths(self.folder)
        self._cluster = Cluster(layout=self._layout, durable=durable, settings=settings)

    @property
    def url(self) -> str:
        """Where clients connect; valid while someone uses or keeps the server."""
        return self._layout.url

    def use(self) -> ServerHandle:
        """Start the server or join it; it stays up at least until the lease is released."""
        self._make_folder()
        with self._hold_start_lock() as lock:
            share = SharedLock(self._layout.users_lock)
            try:
                started = self._cluster.ensure_running(lock)
            except BaseException:
                share.close()
                raise
            return ServerHandle(
                url=self.url, folder=self.folder, started=started, on_release=lambda: self._release(share)
            )

    def keep(self) -> bool:
        """Start the server or join it, and let it run until `stop`; True when it was started now."""
        self._make_folder()
        with self._hold_start_lock() as lock:
            started = self._cluster.ensure_running(lock)
            self._layout.keep_marker.touch(mode=0o600)
        return started

    def stop(self, *, force: bool = False) -> StopReport:
        """Stop the server and no longer keep it; refused while it is in use, unless `force`."""
        if not self._exists():
            return StopReport(folder=self.folder, was_running=False, was_kept=False, had_users=False)
        with self._hold_start_lock():
            report = StopReport(
                folder=self.folder,
                was_running=self._cluster.server_state is not ServerState.NO_RESPONSE,
                was_kept=self._layout.keep_marker.exists(),
                had_users=is_locked(self._layout.users_lock),
            )
            if report.was_running and report.had_users and not force:
                raise Busy(f"the embedded server in {self.folder} is in use by others", hint="--force stops it anyway")
            self._layout.keep_marker.unlink(missing_ok=True)
            if report.was_running:
                self._cluster.stop()
        return report

    def status(self) -> EmbeddedStatus:
        """Look at the cluster; starts, creates and changes nothing."""
        with translate_os_errors(self.folder):
            running = self._cluster.server_state is not ServerState.NO_RESPONSE
            binaries = self._fitting_binaries()
            return EmbeddedStatus(
                folder=self.folder,
                data_exists=self._layout.data.exists(),
                running=running,
                kept=self._layout.keep_marker.exists(),
                users_present=is_either_locked(self._layout.start_lock, self._layout.users_lock),
                pid=self._cluster.pid if running else None,
                server_version=binaries.version if binaries else self._cluster.data_version,
                binaries=binaries.bindir if binaries else None,
            )

    @contextmanager
    def _hold_start_lock(self) -> Generator[int]:
        """Hold the start lock; what the system refuses meanwhile is told as a fault of the folder."""
        with translate_os_errors(self.folder), exclusive_lock(self._layout.start_lock) as lock:
            yield lock

    def _exists(self) -> bool:
        with translate_os_errors(self.folder):
            return self.folder.is_dir()

    def _make_folder(self) -> None:
        with translate_os_errors(self.folder):
            if not self._layout.data.exists():
                find_binaries()  # where there are none, nothing is left behind
            make_folder(self.folder, server_account(self._layout.data))

    def _release(self, share: SharedLock) -> None:
        try:
            if self._exists():
                self._release_under_lock(share)
        finally:
            share.close()

    def _release_under_lock(self, share: SharedLock) -> None:
        with self._hold_start_lock():
            share.close()
            is_wanted = self._layout.keep_marker.exists() or is_locked(self._layout.users_lock)
            if not is_wanted and self._cluster.server_state is not ServerState.NO_RESPONSE:
                self._cluster.stop()

    def _fitting_binaries(self) -> Binaries | None:
        try:
            return self._cluster.binaries()
        except ConfigurationError:
            return None
