"""A process without user code that forks the children of a worker, so that they share the memory of what it imported.

The children are processes of the worker, not of the fork server: an intermediate process forks each of them and exits,
and the kernel gives the orphan to the worker, the nearest subreaper. The worker therefore supervises them as if it had
started them itself, also while the fork server is stopped and after it has died.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NoReturn

from horsies.config import load_settings
from horsies.engine.child.lifetime import PR_SET_NAME, PR_SET_PDEATHSIG, die_with_parent, prctl, stop_signals
from horsies.errors import HorsiesError

_PRELOADED: Final = ("horsies.engine.child.__main__", "horsies.engine.child.coroutines", "horsies.discover")
READY_TIMEOUT_S: Final = 20.0
ANSWER_TIMEOUT_S: Final = 5.0
"""The worker replaces a fork server that takes longer to fork a child, for example because it is stopped."""

_PR_SET_CHILD_SUBREAPER: Final = 36
_ADOPTION_POLL_S: Final = 0.0002
_FIRST_DESCRIPTOR: Final = 3
"""After stdin, stdout and stderr."""
_PID: Final = struct.Struct("!i")
_READY: Final = b"!"
_HAS_THREADS: Final = b"-"


class ForkServer:
    """The worker's side of the process.

    Start it from a thread that lives as long as the worker: the kernel kills the process when that thread ends.
    """

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid = pid
        self._control = control
        control.setblocking(False)  # noqa: FBT003
        self._loop: asyncio.AbstractEventLoop | None = None
        self.ready_at: float | None = None
        """When it became ready, on the event loop's clock; None before."""
        self.can_fork = False
        """Whether it can serve, once it is ready."""
        self._ready_or_closed = asyncio.Event()
        self.is_closed = False

    @staticmethod
    def is_supported() -> bool:
        """Whether the kernel can give the children to the worker, as only Linux does."""
        with adopt_orphans() as is_adopting:
            return is_adopting

    @classmethod
    def can_fork_this_process(cls) -> bool:
        """Whether a fork would be a fork server; some monitoring tools start threads before the program."""
        return cls.is_supported() and _has_one_thread()

    @classmethod
    def fork(cls) -> ForkServer:
        """Fork this process, to share its memory too. It must have one thread, no user code and no connection."""
        _preload()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # otherwise each child would write what is buffered
        control, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        worker_pid = os.getpid()
        # A signal must not run the worker's handlers in the copy.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals())
        if (pid := os.fork()) == 0:
            control.close()
            _serve(server_end, worker_pid)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        server_end.close()
        return cls(pid, control)

    @classmethod
    def spawn(cls) -> ForkServer:
        """Start a new interpreter; raises OSError if there are no processes or file descriptors left."""
        control, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with server_end:
            descriptor = server_end.fileno()
            try:
                popen = subprocess.Popen(
                    # -P keeps user modules in the working directory from shadowing the standard library.
                    [sys.executable, "-P", "-m", __name__, str(descriptor), str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[descriptor],
                    start_new_session=True,
                )
            except OSError:
                control.close()
                raise
        popen.returncode = 0  # `close` reaps the process
        return cls(popen.pid, control)

    def watch(self, on_exit: Callable[[], object]) -> None:
        """Call `on_exit` on the running loop when the process exits, but not after `close`."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._control, self._on_readable, on_exit)

    async def wait_until_ready(self) -> None:
        """Wait until it has imported everything; raises OSError if it cannot."""
        async with asyncio.timeout(READY_TIMEOUT_S):
            await self._ready_or_closed.wait()
        if self.is_closed:
            raise BrokenPipeError("the fork server died")

    def request_child(self, descriptors: Sequence[int]) -> None:
        """Ask for a child with these descriptors: its channel, its watchdog socket, stdout and stderr."""
        socket.send_fds(self._control, [b"\0"], descriptors)

    async def wait_for_child(self, channel: socket.socket) -> int:
        """Return the pid of the requested child from the worker's end of its channel.

        The child is then a process of this one, in its own session. Raises OSError if there is none.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            answer = await loop.sock_recv(channel, _PID.size)
            if len(answer) < _PID.size:
                raise BrokenPipeError("the fork server died")
            (pid,) = _PID.unpack(answer)
            if pid < 0:
                raise OSError(-pid, os.strerror(-pid))
            if not await loop.sock_recv(channel, len(_READY)):
                # It was killed, so this does not block. Raises if it never became a process of this one.
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222
        return pid

    def close(self) -> None:
        """Kill and reap the process; its children live on."""
        if self.is_closed:
            return
        self.is_closed = True
        self._ready_or_closed.set()
        if self._loop is not None:
            self._loop.remove_reader(self._control)
        self._control.close()
        with suppress(ChildProcessError):  # other code of this process has reaped it
            if os.waitpid(self.pid, os.WNOHANG) == (0, 0):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)

    def _on_readable(self, on_exit: Callable[[], object]) -> None:
        with suppress(ConnectionResetError):
            if answer := self._control.recv(1):
                self.ready_at, self.can_fork = asyncio.get_running_loop().time(), answer == _READY
                self._ready_or_closed.set()
                return
        self.close()
        on_exit()


_subreaper_lock = threading.Lock()
_subreaper_uses = 0


@contextmanager
def adopt_orphans() -> Generator[bool]:
    """Give this process the orphans of its descendants; yields whether the system can.

    Only while a child is forked: otherwise it would also have to reap the programs that tasks leave behind.
    """
    global _subreaper_uses  # noqa: PLW0603  # an attribute of the process
    with _subreaper_lock:
        _subreaper_uses += 1
        is_adopting = prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield is_adopting
    finally:
        with _subreaper_lock:
            _subreaper_uses -= 1
            if not _subreaper_uses:
                prctl(_PR_SET_CHILD_SUBREAPER, 0)


# The process


def _preload() -> None:
    for module in _PRELOADED:
        importlib.import_module(module)
    # Builds the validators of the settings, which take 4 MB.
    with suppress(HorsiesError):
        load_settings(environ={}, cwd=Path("/"))
    gc.collect()
    gc.freeze()  # a collection writes to the objects it visits, which would copy their pages


def _has_one_thread() -> bool:
    return len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208  # threads of Python and of libraries


def _serve(control: socket.socket, worker_pid: int) -> NoReturn:
    """Fork a child for each request until the worker is gone. In a child, raises SystemExit at its end."""
    try:
        _leave_the_worker(control, worker_pid)
        control.send(_READY if _has_one_thread() else _HAS_THREADS)
        while True:
            request, descriptors, _, _ = socket.recv_fds(control, 1, 4)
            if not request:
                os._exit(0)
            if (intermediate_pid := _fork_twice(descriptors[0])) is not None:
                break
            for descriptor in descriptors:
                os.close(descriptor)
    except ConnectionError:  # the worker ended before it read what was sent
        os._exit(0)
    except BaseException:  # noqa: BLE001  # the frames below belong to the command that was forked
        traceback.print_exc()
        os._exit(1)
    control.close()
    _run_child(*descriptors, worker_pid=worker_pid, intermediate_pid=intermediate_pid)


def _leave_the_worker(control: socket.socket, worker_pid: int) -> None:
    with suppress(PermissionError):  # a new interpreter has its own session already
        os.setsid()
    prctl(PR_SET_NAME, b"horsies-fork")
    # The worker decides when the process ends. The handlers stay while a child starts, which then sets its own.
    for number in (handled := stop_signals()):
        signal.signal(number, lambda _number, _frame: None)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would hide the exits of intermediate processes
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
    die_with_parent(worker_pid)
    # By list: the limit may be lower than a descriptor, or so high that closing all up to it takes minutes.
    for descriptor in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
        if descriptor >= _FIRST_DESCRIPTOR and descriptor != control.fileno():
            with suppress(OSError):  # the descriptor of the list itself
                os.close(descriptor)
    null = os.open(os.devnull, os.O_RDWR)
    while null < _FIRST_DESCRIPTOR:  # a standard stream was closed
        null = os.dup(null)
    os.dup2(null, 0)
    os.close(null)


def _fork_twice(channel: int) -> int | None:
    """Fork a child that becomes a process of the worker; return its first parent's pid in the child, else None."""
    try:
        intermediate_pid = os.fork()
    except OSError as error:
        _answer(channel, -(error.errno or 1))
        return None
    if intermediate_pid:
        os.waitpid(intermediate_pid, 0)
        return None
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # even if stopped, it does not outlive the fork server
    intermediate_pid, child_pid = os.getpid(), -1
    try:
        child_pid = os.fork()
    except OSError as error:
        child_pid = -(error.errno or 1)
    if child_pid == 0:
        return intermediate_pid
    _answer(channel, child_pid)
    os._exit(0)


def _answer(channel: int, pid: int) -> None:
    with suppress(OSError):  # the worker waits no longer
        os.write(channel, _PID.pack(pid))


def _run_child(
    channel: int, watchdog: int, stdout: int, stderr: int, *, worker_pid: int, intermediate_pid: int
) -> NoReturn:
    """Become what a new interpreter would be, and run the program of a child."""
    while os.getppid() == intermediate_pid:
        time.sleep(_ADOPTION_POLL_S)
    os.setsid()
    die_with_parent(worker_pid)
    for descriptor, number in ((stdout, 1), (stderr, 2)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    with suppress(OSError):  # the worker waits no longer; the channel is closed
        os.write(channel, _READY)
    program = importlib.import_module("horsies.engine.child.__main__")
    sys.modules["__main__"] = program
    sys.excepthook = sys.__excepthook__  # the command line's prints tracebacks in its own form
    sys.argv = [str(program.__file__), *map(str, (channel, watchdog, worker_pid))]
    if not sys.flags.safe_path:
        del sys.path[0]
    try:
        program.main(channel, watchdog, parent_pid=worker_pid)
    except SystemExit:
        raise
    except BaseException:  # noqa: BLE001  # the frames below belong to the command that was forked
        traceback.print_exc()
        raise SystemExit(1) from None
    raise SystemExit(0)


if __name__ == "__main__":
    _preload()
    _serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
