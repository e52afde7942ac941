"""Ends child processes: with their worker, with an announced exit status, or when a copy forked by a task returns."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

from horsies.engine.pool.protocol import EXIT_STATUS_BYTES, ExitStatus

if TYPE_CHECKING:
    import asyncio

PR_SET_PDEATHSIG: Final = 1
PR_SET_NAME: Final = 15
_MAX_POLL_S: Final = 1.0
_POLLS_AFTER_PAUSE: Final = 3


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies, even if C code holds the GIL.

    The kernel tracks the parent *thread*, so children must be started by a thread that lives as long as the worker.
    """
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the call
        kill_own_group()


def prctl(option: int, value: int | bytes) -> bool:
    """Set an attribute of this process; False if the system does not have it."""
    call = getattr(ctypes.CDLL(None), "prctl", None)
    return call is not None and call(option, value, 0, 0, 0) == 0


def ignore_signals() -> None:
    """Ignore the signals that stop a worker; the worker decides when a child stops."""
    for number in stop_signals():
        signal.signal(
            number, lambda _number, _frame: None
        )  # not SIG_IGN, which programs started by tasks would inherit
    os.register_at_fork(after_in_child=_restore_signals)


def stop_signals() -> list[signal.Signals]:
    """The signals that stop a worker: SIGHUP too, unless this process was started to ignore it, as by `nohup`."""
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGTERM, signal.SIGINT, *hangup]


def _restore_signals() -> None:
    for number in stop_signals():
        signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)


def kill_own_group() -> None:
    """Kill this process and everything its tasks have started in its process group."""
    os.killpg(0, signal.SIGKILL)


class ParentWatchdog:
    """A thread that kills the group when the watchdog socket closes or heartbeats go unacknowledged for too long."""

    def __init__(self, watchdog_fd: int, *, ack_timeout_s: float) -> None:
        self._watchdog_fd = watchdog_fd
        self._timeout_s = ack_timeout_s
        self._poll_s = min(_MAX_POLL_S, ack_timeout_s / 4)
        self._acked_at: float | None = None

    def start(self) -> None:
        threading.Thread(target=self._watch, name="horsies-watchdog", daemon=True).start()

    def record_ack(self) -> None:
        """The worker has answered; the timeout starts with the first call."""
        self._acked_at = time.monotonic()

    def is_ack_overdue(self, now: float) -> bool:
        return self._acked_at is not None and now - self._acked_at > self._timeout_s

    def extend_after_pause(self, now: float) -> None:
        """Allow a few more polls: this process itself was paused, for example in C code, and sent no heartbeats."""
        if self._acked_at is not None:
            self._acked_at = max(self._acked_at, now - self._timeout_s + _POLLS_AFTER_PAUSE * self._poll_s)

    def _watch(self) -> None:
        socket_closed = select.poll()
        socket_closed.register(self._watchdog_fd, select.POLLIN)
        polled_at = time.monotonic()
        while not socket_closed.poll(1000 * self._poll_s):
            now = time.monotonic()
            if now - polled_at > 2 * self._poll_s:
                self.extend_after_pause(now)
            if self.is_ack_overdue(now):
                os.write(2, b"the worker has not answered for %d s, exiting\n" % self._timeout_s)
                break
            polled_at = now
        kill_own_group()


# Announced exits. User code can exit with any status, so the status alone proves nothing: our own exits are announced
# on the watchdog socket first.

_watchdog_fd: int | None = None


def announce_exit_on(watchdog_fd: int) -> None:
    """Use this socket for `exit_with`; processes forked by tasks close it and announce nothing."""
    global _watchdog_fd  # noqa: PLW0603  # one per process
    _watchdog_fd = watchdog_fd
    os.register_at_fork(after_in_child=_close_watchdog_after_fork)


def exit_with(status: ExitStatus) -> NoReturn:
    """Announce the status and exit immediately; allocates no memory."""
    if _watchdog_fd is not None:
        with suppress(OSError):
            os.write(_watchdog_fd, EXIT_STATUS_BYTES[status])
    os._exit(status)


def _close_watchdog_after_fork() -> None:
    global _watchdog_fd  # noqa: PLW0603  # one per process
    if _watchdog_fd is not None:
        with suppress(OSError):  # already closed by the task
            os.close(_watchdog_fd)
    _watchdog_fd = None


# Processes forked by a task are copies of the child, with its inbox and event loop. When the task's code returns in
# such a copy, the copy must exit instead of continuing as a child.

is_forked = False
"""Whether this process was forked by a task; always false outside of children."""


def mark_forks() -> None:
    """Mark processes forked from this one."""
    os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    global is_forked  # noqa: PLW0603  # one per process
    is_forked = True


def exit_forks_on(loop: asyncio.AbstractEventLoop) -> None:
    """Make processes forked from this one exit if they return to the event loop."""
    os.register_at_fork(after_in_child=lambda: _leave_loop(loop))


def _leave_loop(loop: asyncio.AbstractEventLoop) -> None:
    if loop.is_running():
        # Pending steps of other coroutines belong to the child. There is no public way to remove them from the loop.
        ready: Any = getattr(loop, "_ready", None)
        if ready is not None:
            ready.clear()
        loop.call_soon(exit_fork, RuntimeError("a forked process cannot wait on the event loop of the child"))


def exit_fork(error: object = None) -> NoReturn:
    """Exit a forked process with the status and message of a Python program that ended with `error`."""
    try:
        _print_exception(error)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(_exit_code(error))


def _print_exception(error: object) -> None:
    if isinstance(error, SystemExit):
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)  # noqa: T201  # as the interpreter does
    elif isinstance(error, BaseException):
        with suppress(Exception):  # its methods are user code
            traceback.print_exception(error)


def _exit_code(error: object) -> int:
    match error:
        case None | SystemExit(code=None):
            return 0
        case SystemExit(code=int(status)):
            return status
        case _:
            return 1
