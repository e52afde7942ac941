"""How children die, told from what the kernel says."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from horsies.engine.messages import ExitStatus
from horsies.model.crashes import Cause

if TYPE_CHECKING:
    from horsies.engine.messages import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """Why a child is being killed; passed before the signal is sent, so that the death is known for what it is."""

    cause: Cause
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildDied:
    """A child that is gone, with everything it had in hand. Its process group is gone too."""

    pid: int
    cause: Cause
    why: str
    signal: int | None
    exit_status: int | None
    max_rss_bytes: int
    begun: tuple[Key, ...]
    """What its code may have worked on."""
    unbegun: tuple[Key, ...]
    """What was handed over and never touched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitStatus:
    """What the kernel tells about an ended process."""

    signal: int | None
    exit_status: int | None
    max_rss_bytes: int
    last_word: int | None = None
    """The exit status with which the child itself, and not just any code in it, said it would leave."""

    @classmethod
    def reap(cls, pid: int, *, last_word: int | None = None) -> WaitStatus:
        """Collect a process that has ended."""
        _, status, usage = os.wait4(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        return cls(
            signal=-code if code < 0 else None,
            exit_status=code if code >= 0 else None,
            max_rss_bytes=usage.ru_maxrss * 1024,
            last_word=last_word,
        )

    def judged(self, sentence: Sentence | None, *, was_asked_to_leave: bool) -> Sentence:
        """The cause of the death. A sentence counts only where it was carried out: a child that ended by itself in
        the same instant died of its own cause."""
        if sentence is not None and self.signal == signal.SIGKILL:
            return sentence
        if self.signal is not None:
            return Sentence(cause=Cause.CHILD_SIGNAL, why=f"killed by {_name_of(self.signal)}")
        match self.exit_status:
            case ExitStatus.OUT_OF_MEMORY if self._was_said:
                return Sentence(cause=Cause.CHILD_MEMORY, why="ran out of memory")
            case ExitStatus.LINE_LOST if self._was_said:
                return Sentence(cause=Cause.CHILD_PROTOCOL, why="its line to the worker was closed from inside")
            case ExitStatus.DONE if was_asked_to_leave:
                return Sentence(cause=Cause.RETIRED, why="left when asked")
            case status:
                return Sentence(cause=Cause.CHILD_EXIT, why=f"left with exit status {status}")

    @property
    def _was_said(self) -> bool:
        return self.last_word == self.exit_status


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
