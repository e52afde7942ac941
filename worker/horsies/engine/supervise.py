"""One child under supervision: what it has in hand, whether it lives, and how it died."""

from __future__ import annotations

import asyncio
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, assert_never

from horsies.engine.deaths import ChildDied, Sentence, WaitStatus
from horsies.engine.hand import Hand
from horsies.engine.line import Line
from horsies.engine.liveness import Liveness
from horsies.engine.messages import (
    Answer,
    Beat,
    Began,
    Cancel,
    Ended,
    Loaded,
    Quit,
    Ready,
    Recall,
    Recalled,
    Run,
    Said,
    StartFailed,
)
from horsies.engine.pipes import PipeLines
from horsies.engine.process import Process, call_at_end
from horsies.model.crashes import Cause

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from horsies.engine.listener import PoolListener
    from horsies.engine.messages import Assignment, Ending, Key, Report
    from horsies.engine.spec import ChildSpec

CLOSING_S: Final = 0.2
"""A dying process closes its line a moment before it can be waited for."""

MB: Final = 1024 * 1024
PARCEL_BYTES: Final = MB


class Stage(Enum):
    """How far a child has come."""

    COMING_UP = "coming up"
    READY = "ready"
    LEAVING = "leaving"
    """It gets no more work."""
    DISMISSED = "dismissed"
    """It has been asked to quit."""


class Owner(Protocol):
    """Whoever keeps the child; told before the listener is."""

    def counted(self, child: Child) -> None:
        """One more of its tasks has ended."""
        ...

    def buried(self, child: Child) -> None:
        """It is gone, and so is its group."""
        ...


class Child:
    """A supervised process. Its death is known from the kernel and never from its line, which others may hold.

    OSError where there is no room for another one; then nothing is left of it.
    """

    def __init__(self, spec: ChildSpec, listener: PoolListener, owner: Owner) -> None:
        self._loop = asyncio.get_running_loop()
        self._spec = spec
        self._listener = listener
        self._owner = owner
        self._hand = Hand()
        self._stage = Stage.COMING_UP
        self._sentence: Sentence | None = None
        self.liveness = Liveness()
        self.tasks_ended = 0
        self.is_overgrown = False
        self.start_fault: str | None = None
        """Why it has not come up."""
        self.settled = asyncio.Event()
        """Set when it is ready, or has died on the way."""
        self.gone = asyncio.Event()
        self._process = Process.start(spec)
        self._line = Line(
            self._loop,
            self._process.line,
            take=self._take,
            broken=self._sent_rubbish,
            closed=self._line_closed,
            is_flowing=self._hand.has_several,
        )
        stdout_fd, stderr_fd = self._process.output_fds
        self._pipes = [
            PipeLines(self._loop, stdout_fd, partial(listener.said, self, None, "stdout")),
            PipeLines(self._loop, stderr_fd, partial(listener.said, self, None, "stderr")),
        ]
        self._deadline = self._loop.call_later(spec.start_limit_s, self._overdue, spec.start_limit_s)
        call_at_end(self._process, self._loop, self._bury)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def begun(self) -> tuple[Key, ...]:
        return self._hand.begun

    @property
    def unbegun(self) -> tuple[Key, ...]:
        return self._hand.unbegun

    @property
    def is_idle(self) -> bool:
        return not self._hand

    @property
    def accepts_work(self) -> bool:
        return self._stage is Stage.READY and self._sentence is None and not self.gone.is_set()

    @property
    def has_served_its_time(self) -> bool:
        """Whether it should be replaced, by the count of its tasks or by its size."""
        most = self._spec.max_tasks_per_child
        return self.is_overgrown or (most > 0 and self.tasks_ended >= most)

    def run(self, assignments: Sequence[Assignment]) -> None:
        """Hand these over, to be run after what it already holds; only while it accepts work."""
        assert self.accepts_work  # noqa: S101
        self._hand.give(assignments)
        self._line.send(*(Run(parcel) for parcel in _parcels(assignments)))

    def recall(self) -> None:
        """Ask for what has not begun; the listener hears `recalled`."""
        self._line.send(Recall())

    def cancel(self, key: Key) -> None:
        """Cancel a coroutine, or take one back that has not begun; a function can only be killed with its child."""
        self._line.send(Cancel(key))

    def kill(self, why: str, *, cause: Cause = Cause.KILLED) -> None:
        """SIGKILL to its group, at once. The first reason given is the one that is remembered."""
        if self._sentence is None and not self.gone.is_set():
            self._sentence = Sentence(cause=cause, why=why)
            self._process.kill_group()

    def retire(self) -> None:
        """Take no more work, and leave when the last task in hand has ended; one that is only coming up is killed."""
        if self._stage is Stage.COMING_UP:
            self.kill("not needed any more")
        elif self._stage is Stage.READY:
            self._stage = Stage.LEAVING
            self._dismiss_when_idle()

    def look(self, *, elapsed_s: float) -> None:
        """See whether it lives and how large it has grown; `elapsed_s` since the last look."""
        if self._stage is Stage.COMING_UP or self.gone.is_set():
            return
        self.liveness.tick(elapsed_s=elapsed_s, due_s=self._spec.beat_s, cpu_s=self._process.cpu_s())
        if self.liveness.idle_s >= self._spec.silent_limit_s:
            self.kill(f"silent and idle for {self.liveness.idle_s:.1f} s", cause=Cause.HEARTBEAT_LOST)
        if self._spec.max_memory_per_child_mb is not None:
            self.is_overgrown = self._is_too_large(self._process.rss_bytes())

    def _take(self, report: Report) -> None:
        self.liveness.heard()
        # The two that come with each task first, and by their type: a pattern asks each class in turn, which is dear.
        if type(report) is Ended:
            self._end(report.key, report.ending)
        elif type(report) is Began:
            self._begin(report.key)
        else:
            self._take_rare(report)

    def _take_rare(self, report: Report) -> None:
        match report:
            case Beat(keys):
                self._line.send(Answer())
                self._listener.beat(self, keys)
            case Said(key, stream, line):
                self._listener.said(self, key, stream, line)
            case Recalled(keys):
                self._hand.take_back(*keys)
                self._listener.recalled(self, keys)
                self._dismiss_when_idle()
            case Loaded(hooks):
                self._extend_start(hooks)
            case Ready(rss_bytes):
                self._come_up(rss_bytes)
            case StartFailed(message):
                self.start_fault = message
            case Began() | Ended():
                raise AssertionError("taken before")
            case _:
                assert_never(report)

    def _begin(self, key: Key) -> None:
        self._hand.begin(key)
        self._listener.began(self, key)

    def _end(self, key: Key, ending: Ending) -> None:
        self._hand.take_back(key)
        self.tasks_ended += 1
        self._owner.counted(self)
        self._listener.ended(self, key, ending)
        self._dismiss_when_idle()

    def _come_up(self, rss_bytes: int) -> None:
        if self._is_too_large(rss_bytes):
            self.is_overgrown = True
            self.kill(f"takes {rss_bytes // MB} MB before its first task")
            return
        self._deadline.cancel()
        self._stage = Stage.READY
        self.settled.set()
        self._listener.ready(self)

    def _is_too_large(self, rss_bytes: int) -> bool:
        limit_mb = self._spec.max_memory_per_child_mb
        return limit_mb is not None and rss_bytes > limit_mb * MB

    def _extend_start(self, hooks: int) -> None:
        # Each hook has its own limit in the child; this one is for a child that cannot keep it.
        self._deadline.cancel()
        limit_s = self._spec.start_limit_s + hooks * self._spec.hook_limit_s
        self._deadline = self._loop.call_later(limit_s, self._overdue, limit_s)

    def _overdue(self, limit_s: float) -> None:
        self.kill(f"did not come up within {limit_s:g} s")

    def _dismiss_when_idle(self) -> None:
        if self._stage is Stage.LEAVING and self.is_idle:
            self._stage = Stage.DISMISSED
            self._line.send(Quit())
            self._deadline = self._loop.call_later(self._spec.quit_limit_s, self.kill, "did not leave when asked")

    def _sent_rubbish(self, fault: str) -> None:
        self.kill(f"broke the protocol: {fault}", cause=Cause.CHILD_PROTOCOL)

    def _line_closed(self) -> None:
        self._loop.call_later(CLOSING_S, self._sent_rubbish, "it closed its line")

    def _bury(self) -> None:
        """It has ended: end its group, hear its last words, and tell what it had in hand."""
        self.gone.set()
        self._process.kill_group()
        self._line.drain()
        for pipe in self._pipes:
            pipe.finish()
        self._line.close()
        self._deadline.cancel()
        self._owner.buried(self)
        death = self._death(WaitStatus.reap(self.pid, last_word=self._process.last_word()))
        self._process.close()
        if self._stage is not Stage.COMING_UP:
            self._listener.died(self, death)
        else:
            self.start_fault = self.start_fault or death.why
            self.settled.set()

    def _death(self, status: WaitStatus) -> ChildDied:
        verdict = status.judged(self._sentence, was_asked_to_leave=self._stage is Stage.DISMISSED)
        return ChildDied(
            pid=self.pid,
            cause=verdict.cause,
            why=verdict.why,
            signal=status.signal,
            exit_status=status.exit_status,
            max_rss_bytes=status.max_rss_bytes,
            begun=self.begun,
            unbegun=self.unbegun,
        )


def _parcels(assignments: Sequence[Assignment]) -> Iterator[tuple[Assignment, ...]]:
    """All in one message, or each in its own where together they are large."""
    if sum(each.size_bytes for each in assignments) <= PARCEL_BYTES:
        yield tuple(assignments)
    else:
        yield from ((each,) for each in assignments)
