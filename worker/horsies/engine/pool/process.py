"""The operating system side of a child: start its process, kill its group, detect its exit, read its output pipes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

import psutil

from horsies.engine.pool.fork_server import ForkServer, adopt_orphans

logger = logging.getLogger("horsies.engine.pool")

FIRST_REPLACEMENT_DELAY_S = 0.5
"""Delay before the next try, if a replacement could not start or was lost before it started a child.

Doubled each time.
"""
MAX_REPLACEMENT_DELAY_S: Final = 30.0
"""The longest delay. A fork server that has been ready for longer than this is replaced at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildProcess:
    """A started child process with the worker's ends of its sockets and pipes."""

    pid: int
    channel: socket.socket
    watchdog: socket.socket
    """The child exits when this socket closes, and announces its exit status on it."""
    output_fds: tuple[int, int]
    """The pipes of stdout and stderr."""
    stats: psutil.Process

    def kill_group(self) -> None:
        """Send SIGKILL to the child's process group; safe until the child is reaped, which frees its pid."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def announced_status(self) -> int | None:
        """The exit status that the child announced, if any."""
        try:
            status = self.watchdog.recv(1)
        except OSError:
            return None
        return status[0] if status else None

    def cpu_s(self) -> float:
        """CPU time used so far."""
        try:
            times = self.stats.cpu_times()
        except psutil.Error:
            return 0.0
        return times.user + times.system

    def rss_bytes(self) -> int:
        try:
            return self.stats.memory_info().rss
        except psutil.Error:
            return 0

    def close(self) -> None:
        """Close all descriptors of a child that has been reaped."""
        for descriptor in self.output_fds:
            os.close(descriptor)
        self.channel.close()
        self.watchdog.close()


class ForkServerListener(Protocol):
    """Receives fork server events. Each loss is followed by one restoration, unless the pool is closed first."""

    def on_fork_server_lost(self, pid: int, why: str) -> None:
        """No child can be started until another fork server is ready; the starter replaces it."""
        ...

    def on_fork_server_restored(self) -> None:
        """Children can be started again."""
        ...


class ChildStarter:
    """Starts child processes: with a fork server, or as new interpreters where none is possible.

    When a ready fork server is lost, others are started until one is ready; starts of children wait for that. Children
    that have started do not need it. Use the starter in a thread that lives as long as the worker: the kernel kills the
    processes when that thread ends.
    """

    def __init__(self, listener: ForkServerListener, fork_server: ForkServer | None = None) -> None:
        self._listener = listener
        self._fork_server = fork_server
        self._has_fork_server = ForkServer.is_supported()
        self._is_closed = False
        self.fork_server_lost = asyncio.Event()
        """Set from the loss of a fork server until another one is ready; never set where none is possible."""
        self._replacement_tried: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
        """The end of the next try to replace a lost fork server, with its error."""
        self._replacement_delay_s = 0.0
        if fork_server is not None:
            fork_server.watch(self._on_fork_server_died)

    async def start(self) -> ChildProcess:
        """Start a process, once a lost fork server has been replaced.

        Raises OSError if the system or the fork server fails, or if a try to replace a lost one fails meanwhile.
        """
        await self._wait_for_replacement()
        try:
            return await self._start_once()
        except OSError:
            if not self.fork_server_lost.is_set():
                raise
        # Lost during the start. Tried only once more: fork servers that die with each request are failed starts.
        await self._wait_for_replacement()
        return await self._start_once()

    async def _wait_for_replacement(self) -> None:
        """Wait while the fork server is lost; raises OSError if the next try to replace it fails."""
        # In a loop: the replacement may be lost before this start continues.
        while self.fork_server_lost.is_set() and not self._is_closed:
            # Shielded: a start that is cancelled must not cancel what the others wait for.
            if error := await asyncio.shield(self._replacement_tried):
                raise error
        if self._is_closed:
            raise BrokenPipeError("the pool is closed")

    async def _start_once(self) -> ChildProcess:
        server = await self._ready_fork_server()
        try:
            process = await self._start_with(server)
        except (ChildProcessError, BrokenPipeError) as error:
            if server is not None and isinstance(error, ChildProcessError):
                # Some sandboxes accept the request for orphans, but do not give them to this process.
                self._has_fork_server = False
                server.close()
            if server is None or self._has_fork_server:
                raise
            process = await self._start_with(None)
        self._replacement_delay_s = 0.0
        return process

    async def _start_with(self, server: ForkServer | None) -> ChildProcess:
        with contextlib.ExitStack() as on_error, contextlib.ExitStack() as child_ends:
            (channel, channel_fd), (watchdog, watchdog_fd) = (_socket_pair(on_error, child_ends) for _ in range(2))
            (stdout, stdout_fd), (stderr, stderr_fd) = (_pipe(on_error, child_ends) for _ in range(2))
            child_fds = channel_fd, watchdog_fd, stdout_fd, stderr_fd
            if server is None:
                pid = _spawn(*child_fds)
                child_ends.close()
            else:
                with adopt_orphans(), self._noticing_loss(server):
                    server.request_child(child_fds)
                    child_ends.close()  # so that the channel closes if no child is forked
                    pid = await server.wait_for_child(channel)
            on_error.callback(_kill_and_reap, pid)
            process = ChildProcess(
                pid=pid, channel=channel, watchdog=watchdog, output_fds=(stdout, stderr), stats=psutil.Process(pid)
            )
            on_error.pop_all()
        return process

    def close(self) -> None:
        """End the fork server, and with it the starts that are under way."""
        self._is_closed = True
        self._end_try(None)
        if self._fork_server is not None:
            self._fork_server.close()

    async def _ready_fork_server(self) -> ForkServer | None:
        """The fork server, once it is ready; None if there can be none."""
        if not self._has_fork_server:
            return None
        server = self._living_fork_server()
        try:
            with self._noticing_loss(server):
                await server.wait_until_ready()
        except BrokenPipeError:
            if self._has_fork_server:
                raise
            return None  # another start has found that it cannot fork
        if server.can_fork:
            return server
        self._has_fork_server = False  # a thread that a copy lacks may hold a lock
        server.close()
        return None

    def _living_fork_server(self) -> ForkServer:
        if self._fork_server is None or self._fork_server.is_closed:
            self._fork_server = ForkServer.spawn()
            self._fork_server.watch(self._on_fork_server_died)
        return self._fork_server

    @contextlib.contextmanager
    def _noticing_loss(self, server: ForkServer) -> Generator[None]:
        """Close and replace a fork server that dies or does not answer."""
        try:
            yield
        except ConnectionError:  # the channel of a child may close before the control socket
            self._close_lost(server, "died or dropped a request")
            raise
        except TimeoutError:
            self._close_lost(server, "killed: no answer in time")
            raise TimeoutError("the fork server did not answer in time") from None

    def _close_lost(self, server: ForkServer, why: str) -> None:
        if not server.is_closed:  # several starts may have waited for it
            server.close()
            self._on_fork_server_lost(server, why)

    def _on_fork_server_died(self) -> None:
        assert self._fork_server is not None  # noqa: S101
        self._on_fork_server_lost(self._fork_server, "died")

    def _on_fork_server_lost(self, server: ForkServer, why: str) -> None:
        if server.ready_at is None or self.fork_server_lost.is_set():
            return  # the start or the replacement that waits for it gets an error, and tries again after a delay
        if asyncio.get_running_loop().time() - server.ready_at > MAX_REPLACEMENT_DELAY_S:
            self._replacement_delay_s = 0.0
        self.fork_server_lost.set()
        self._listener.on_fork_server_lost(server.pid, why)

    async def replace_lost_fork_servers(self) -> None:
        """Start another fork server whenever one is lost; runs until it is cancelled."""
        while True:
            await self.fork_server_lost.wait()
            await asyncio.sleep(self._replacement_delay_s)
            self._replacement_delay_s = min(
                max(2 * self._replacement_delay_s, FIRST_REPLACEMENT_DELAY_S), MAX_REPLACEMENT_DELAY_S
            )
            try:
                await self._ready_fork_server()
            except OSError as error:
                fields = {"error": error.strerror or str(error), "retry_in_s": self._replacement_delay_s}
                logger.warning("new fork server failed to start", extra=fields)
                self._end_try(error)
            else:
                self.fork_server_lost.clear()
                self._end_try(None)
                self._listener.on_fork_server_restored()

    def _end_try(self, error: OSError | None) -> None:
        """Continue the starts that wait for the replacement."""
        self._replacement_tried.set_result(error)
        self._replacement_tried = asyncio.get_running_loop().create_future()


def _socket_pair(on_error: contextlib.ExitStack, child_ends: contextlib.ExitStack) -> tuple[socket.socket, int]:
    ours, theirs = socket.socketpair()
    on_error.callback(ours.close)
    child_ends.callback(theirs.close)
    ours.setblocking(False)  # noqa: FBT003
    return ours, theirs.fileno()


def _pipe(on_error: contextlib.ExitStack, child_ends: contextlib.ExitStack) -> tuple[int, int]:
    ours, theirs = os.pipe()
    on_error.callback(os.close, ours)
    child_ends.callback(os.close, theirs)
    return ours, theirs


def _spawn(channel: int, watchdog: int, stdout: int, stderr: int) -> int:
    """Start a child as a new interpreter."""
    popen = subprocess.Popen(
        # -P keeps user modules in the working directory from shadowing the standard library.
        [sys.executable, "-P", "-m", "horsies.engine.child", str(channel), str(watchdog), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        pass_fds=(channel, watchdog),
        start_new_session=True,
    )
    popen.returncode = 0  # reaped by its owner; otherwise Popen would wait for it as well
    return popen.pid


def call_on_exit(process: ChildProcess, loop: asyncio.AbstractEventLoop, on_exit: Callable[[], None]) -> None:
    """Call `on_exit` on the loop when the process has exited, before it is reaped."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # no pidfd support, or no descriptors left
        call_on_exit_by_thread(process.pid, loop, on_exit)
        return

    def on_readable() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        on_exit()

    loop.add_reader(descriptor, on_readable)


def call_on_exit_by_thread(pid: int, loop: asyncio.AbstractEventLoop, on_exit: Callable[[], None]) -> None:
    """Like `call_on_exit`, with one waiting thread per process instead of a pidfd."""

    def wait() -> None:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        loop.call_soon_threadsafe(on_exit)

    threading.Thread(target=wait, name=f"horsies-wait-{pid}", daemon=True).start()


def _kill_and_reap(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


# Output that does not go through Python's streams: C code, subprocesses of tasks, fatal tracebacks.

BYTES_PER_READ: Final = 2 * 1024
"""Read per loop iteration; up to a thousand lines, so that one noisy child does not block the event loop."""
PIPE_CAPACITY_BYTES: Final = 64 * 1024
MAX_FINAL_LINES: Final = 1_000
MAX_LINE_BYTES: Final = 16 * 1024


class PipeReader:
    """Calls `on_line` for each line in a pipe; never blocks."""

    def __init__(self, loop: asyncio.AbstractEventLoop, descriptor: int, on_line: Callable[[str], None]) -> None:
        self._loop = loop
        self._descriptor = descriptor
        self._on_line = on_line
        self._partial_line = b""
        os.set_blocking(descriptor, False)
        loop.add_reader(descriptor, self._on_readable)

    def drain(self) -> None:
        """Deliver the remaining output of an exited process, at most one pipe capacity.

        The limit is needed because a program started by a task in its own session outlives the child and may keep
        writing to the same pipe.
        """
        lines = self._read(PIPE_CAPACITY_BYTES)
        self._loop.remove_reader(self._descriptor)
        if self._partial_line:
            lines.append(self._partial_line)
        if len(lines) > MAX_FINAL_LINES:
            self._on_line(f"({len(lines) - MAX_FINAL_LINES} lines omitted)")
        self._deliver(lines[-MAX_FINAL_LINES:])

    def _on_readable(self) -> None:
        self._deliver(self._read(BYTES_PER_READ))

    def _read(self, max_bytes: int) -> list[bytes]:
        """Read the complete lines available now."""
        try:
            data = os.read(self._descriptor, max_bytes)
        except BlockingIOError:
            return []
        if not data:
            self._loop.remove_reader(self._descriptor)
            return []
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        if len(self._partial_line) > MAX_LINE_BYTES:
            lines.append(self._partial_line)
            self._partial_line = b""
        return lines

    def _deliver(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self._on_line(line[:MAX_LINE_BYTES].decode(errors="replace"))
