"""Nobody works on without a worker: a child whose worker is gone, or has stopped answering, ends at once."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import FrameType

_PR_SET_PDEATHSIG: Final = 1
_LONGEST_NAP_S: Final = 1.0


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
        self._answered_at: float | None = None

    def start(self) -> None:
        threading.Thread(target=self._watch, name="horsies-guard", daemon=True).start()

    def answered(self) -> None:
        """The worker has been heard; the first time counts as the beginning."""
        self._answered_at = time.monotonic()

    def _watch(self) -> None:
        life = select.poll()
        life.register(self._life_fd, select.POLLIN)
        while not life.poll(1000 * min(_LONGEST_NAP_S, self._limit_s / 4)):
            if self._answered_at is not None and time.monotonic() - self._answered_at > self._limit_s:
                os.write(2, b"the worker has not answered for %d s: leaving\n" % self._limit_s)
                break
        end_group()


def _ignored(number: int, frame: FrameType | None) -> None:
    pass


def _obey_signals() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
