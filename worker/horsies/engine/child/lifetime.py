"""Nobody works on without a worker: a child whose worker is gone, or has stopped answering, ends at once."""

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
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from horsies.engine.pool.protocol import EXIT_STATUS_BYTES, ExitStatus

if TYPE_CHECKING:
    import asyncio


_PR_SET_PDEATHSIG: Final = 1
_MAX_POLL_S: Final = 1.0
_POLLS_AFTER_PAUSE: Final = 3


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process with its parent, whatever C code may then hold the interpreter.

    The kernel counts the parent's *thread* as the parent, so children must be started by one that stays.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        kill_own_group()


def ignore_signals() -> None:
    """SIGINT and SIGTERM do nothing here. Not `SIG_IGN`, which programs started by tasks would inherit."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _ignore)
    os.register_at_fork(after_in_child=_restore_signals)


def kill_own_group() -> None:
    """Kill this process and everything that tasks have started in its group."""
    os.killpg(0, signal.SIGKILL)


class ParentWatchdog:
    """A thread that ends the group when the life pipe closes, or when beats have gone unanswered for too long."""

    def __init__(self, life_fd: int, *, unanswered_limit_s: float) -> None:
        self._watchdog_fd = life_fd
        self._limit_s = unanswered_limit_s
        self._poll_s = min(_MAX_POLL_S, unanswered_limit_s / 4)
        self._answered_at: float | None = None

    def start(self) -> None:
        threading.Thread(target=self._watch, name="horsies-guard", daemon=True).start()

    def mark_answered(self) -> None:
        """The worker has been heard; the first time counts as the beginning."""
        self._answered_at = time.monotonic()

    def _watch(self) -> None:
        life = select.poll()
        life.register(self._watchdog_fd, select.POLLIN)
        looked_at = time.monotonic()
        while not life.poll(1000 * self._poll_s):
            now = time.monotonic()
            if now - looked_at > 2 * self._poll_s:
                self._extend_after_pause(now)
            if self._is_unanswered(now):
                os.write(2, b"the worker has not answered for %d s: leaving\n" % self._limit_s)
                break
            looked_at = now
        kill_own_group()

    def _is_unanswered(self, now: float) -> bool:
        return self._answered_at is not None and now - self._answered_at > self._limit_s

    def _extend_after_pause(self, now: float) -> None:
        """This process itself stood still, held up in C code say, and has not asked: it has a few naps to hear."""
        if self._answered_at is not None:
            self._answered_at = max(self._answered_at, now - self._limit_s + _POLLS_AFTER_PAUSE * self._poll_s)


def _ignore(number: int, frame: FrameType | None) -> None:
    pass


def _restore_signals() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


# How a child leaves when it knows why: it says so first, on the line of its life, which is nobody else's.
#
# Any code in it can leave with any exit status, so that the status alone proves nothing.

_watchdog_fd: int | None = None


def announce_exit_on(life_fd: int) -> None:
    """Have the last word of this process go there; a copy that a task forks has none, nor holds the line open."""
    global _watchdog_fd  # noqa: PLW0603  # a process leaves once
    _watchdog_fd = life_fd
    os.register_at_fork(after_in_child=_close_watchdog_after_fork)


def exit_with(status: ExitStatus) -> NoReturn:
    """End at once, as the worker will be told; asks for no memory."""
    if _watchdog_fd is not None:
        with suppress(OSError):
            os.write(_watchdog_fd, EXIT_STATUS_BYTES[status])
    os._exit(status)


def _close_watchdog_after_fork() -> None:
    global _watchdog_fd  # noqa: PLW0603  # the same
    if _watchdog_fd is not None:
        with suppress(OSError):  # closed by the task itself
            os.close(_watchdog_fd)
    _watchdog_fd = None


# A process that a task has forked: a copy of the child, which must never go on as one.
#
# It has the child's inbox and event loop in its memory. Where its code comes back from the task, it leaves, as a
# program does that has come to its end.

_is_forked = False


def is_forked() -> bool:
    """Whether this process was forked by a task; always false outside of children."""
    return _is_forked


def register_fork_handler(loop: asyncio.AbstractEventLoop) -> None:
    """Have every process forked from this one know that it is a copy, and leave if it comes back to the loop."""
    os.register_at_fork(after_in_child=lambda: _after_fork(loop))


def exit_fork(raised: object = None) -> NoReturn:
    """End at once, with the status and the last words of a program that ended like this."""
    try:
        _print_exception(raised)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(_exit_code(raised))


def _after_fork(loop: asyncio.AbstractEventLoop) -> None:
    global _is_forked  # noqa: PLW0603  # a fact of this process
    _is_forked = True
    if loop.is_running():
        # The next steps of other coroutines are the child's. There is no public way to take them off the loop.
        waiting: Any = getattr(loop, "_ready", None)
        if waiting is not None:
            waiting.clear()
        loop.call_soon(exit_fork, RuntimeError("a forked process cannot wait on the event loop of the child"))


def _print_exception(raised: object) -> None:
    if isinstance(raised, SystemExit):
        if isinstance(raised.code, str):
            print(raised.code, file=sys.stderr)  # noqa: T201  # as the interpreter does
    elif isinstance(raised, BaseException):
        with suppress(Exception):  # its own methods are user code
            traceback.print_exception(raised)


def _exit_code(raised: object) -> int:
    match raised:
        case None | SystemExit(code=None):
            return 0
        case SystemExit(code=int(status)):
            return status
        case _:
            return 1
