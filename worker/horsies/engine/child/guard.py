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
