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
from typing import TYPE_CHECKING, Any, Final, NoReturn

from horsies.engine.pool.protocol import LAST_WORDS

if TYPE_CHECKING:
    import asyncio
    from types import FrameType

    from horsies.engine.pool.protocol import ExitStatus


_PR_SET_PDEATHSIG: Final = 1
_LONGEST_NAP_S: Final = 1.0
_NAPS_TO_BE_ANSWERED: Final = 3


def die_with(parent_pid: int) -> None:
    """Have the kernel kill this process with its parent, whatever C code may then hold the interpreter.

    The kernel counts the parent's *thread* as the parent, so children must be started by one that stays.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        end_group()


def leave_signals_to_the_parent() -> None:
    """SIGINT and SIGTERM do nothing here. Not `SIG_IGN`, which programs started by tasks would inherit."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _ignored)
    os.register_at_fork(after_in_child=_obey_signals)


def end_group() -> None:
    """Kill this process and everything that tasks have started in its group."""
    os.killpg(0, signal.SIGKILL)


class Guard:
    """A thread that ends the group when the life pipe closes, or when beats have gone unanswered for too long."""

    def __init__(self, life_fd: int, *, unanswered_limit_s: float) -> None:
        self._life_fd = life_fd
        self._limit_s = unanswered_limit_s
        self._nap_s = min(_LONGEST_NAP_S, unanswered_limit_s / 4)
        self._answered_at: float | None = None

    def start(self) -> None:
        threading.Thread(target=self._watch, name="horsies-guard", daemon=True).start()

    def answered(self) -> None:
        """The worker has been heard; the first time counts as the beginning."""
        self._answered_at = time.monotonic()

    def _watch(self) -> None:
        life = select.poll()
        life.register(self._life_fd, select.POLLIN)
        looked_at = time.monotonic()
        while not life.poll(1000 * self._nap_s):
            now = time.monotonic()
            if now - looked_at > 2 * self._nap_s:
                self._excuse(now)
            if self._is_forsaken(now):
                os.write(2, b"the worker has not answered for %d s: leaving\n" % self._limit_s)
                break
            looked_at = now
        end_group()

    def _is_forsaken(self, now: float) -> bool:
        return self._answered_at is not None and now - self._answered_at > self._limit_s

    def _excuse(self, now: float) -> None:
        """This process itself stood still, held up in C code say, and has not asked: it has a few naps to hear."""
        if self._answered_at is not None:
            self._answered_at = max(self._answered_at, now - self._limit_s + _NAPS_TO_BE_ANSWERED * self._nap_s)


def _ignored(number: int, frame: FrameType | None) -> None:
    pass


def _obey_signals() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


# How a child leaves when it knows why: it says so first, on the line of its life, which is nobody else's.
#
# Any code in it can leave with any exit status, so that the status alone proves nothing.

_life_fd: int | None = None


def speak_on(life_fd: int) -> None:
    """Have the last word of this process go there; a copy that a task forks has none, nor holds the line open."""
    global _life_fd  # noqa: PLW0603  # a process leaves once
    _life_fd = life_fd
    os.register_at_fork(after_in_child=_fall_silent)


def leave_with(status: ExitStatus) -> NoReturn:
    """End at once, as the worker will be told; asks for no memory."""
    if _life_fd is not None:
        with suppress(OSError):
            os.write(_life_fd, LAST_WORDS[status])
    os._exit(status)


def _fall_silent() -> None:
    global _life_fd  # noqa: PLW0603  # the same
    if _life_fd is not None:
        with suppress(OSError):  # closed by the task itself
            os.close(_life_fd)
    _life_fd = None


# A process that a task has forked: a copy of the child, which must never go on as one.
#
# It has the child's inbox and event loop in its memory. Where its code comes back from the task, it leaves, as a
# program does that has come to its end.

_is_copy = False


def is_copy() -> bool:
    """Whether this process was forked by a task; always false outside of children."""
    return _is_copy


def tell_copies(loop: asyncio.AbstractEventLoop) -> None:
    """Have every process forked from this one know that it is a copy, and leave if it comes back to the loop."""
    os.register_at_fork(after_in_child=lambda: _become_copy(loop))


def leave(raised: object = None) -> NoReturn:
    """End at once, with the status and the last words of a program that ended like this."""
    try:
        _speak(raised)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(_status(raised))


def _become_copy(loop: asyncio.AbstractEventLoop) -> None:
    global _is_copy  # noqa: PLW0603  # a fact of this process
    _is_copy = True
    if loop.is_running():
        # The next steps of other coroutines are the child's. There is no public way to take them off the loop.
        waiting: Any = getattr(loop, "_ready", None)
        if waiting is not None:
            waiting.clear()
        loop.call_soon(leave, RuntimeError("a forked process cannot wait on the event loop of the child"))


def _speak(raised: object) -> None:
    if isinstance(raised, SystemExit):
        if isinstance(raised.code, str):
            print(raised.code, file=sys.stderr)  # noqa: T201  # as the interpreter does
    elif isinstance(raised, BaseException):
        with suppress(Exception):  # its own methods are user code
            traceback.print_exception(raised)


def _status(raised: object) -> int:
    match raised:
        case None | SystemExit(code=None):
            return 0
        case SystemExit(code=int(status)):
            return status
        case _:
            return 1
