"""One child under supervision: what it has in hand, whether it lives, and how it died."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, assert_never

from msgspec import MsgspecError

from horsies.engine.pool.process import PipeLines, Process, call_at_end
from horsies.engine.pool.protocol import (
    MAX_REPORT_BYTES,
    READ_BYTES,
    Answer,
    Beat,
    Began,
    Cancel,
    Ended,
    ExitStatus,
    FrameReader,
    FrameWriter,
    Loaded,
    ProtocolFault,
    Quit,
    Ready,
    Recall,
    Recalled,
    Run,
    Said,
    StartFailed,
    decode_report,
    encode,
)
from horsies.model.crash import Cause

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from horsies.engine.pool.process import ChildSpec
    from horsies.engine.pool.protocol import Assignment, Ending, Key, Order, Report, Stream


# Whether a child lives: it is heard, or at least its CPU time grows.


class Liveness:
    """Two clocks that only run while their owner looks.

    `silence_s` counts since the child was last heard, `idle_s` since it was last heard or seen to use its CPU. A child
    that is silent and not idle is held up in C code, say, and vouched for. Time in which the owner itself stood still
    is not held against the child.
    """

    def __init__(self) -> None:
        self.silence_s = 0.0
        self.idle_s = 0.0
        self._cpu_s = 0.0
        self._has_spoken = False

    @property
    def is_vouched_for(self) -> bool:
        return self.silence_s > self.idle_s

    def heard(self) -> None:
        self._has_spoken = True

    def tick(self, *, elapsed_s: float, due_s: float, cpu_s: float) -> None:
        """Look again, `elapsed_s` after the last time; it should have been `due_s`."""
        counted_s = min(elapsed_s, 2 * due_s)
        self.silence_s = 0.0 if self._has_spoken else self.silence_s + counted_s
        self.idle_s = 0.0 if self._has_spoken or cpu_s > self._cpu_s else self.idle_s + counted_s
        self._cpu_s = cpu_s
        self._has_spoken = False


# How children die, told from what the kernel says.


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


# What one child has been handed and not given back.


class Hand:
    """Keys in the order they were handed over. A child that speaks of any other is out of its mind: `ProtocolFault`."""

    def __init__(self) -> None:
        self._has_begun: dict[Key, bool] = {}

    def __len__(self) -> int:
        return len(self._has_begun)

    def has_several(self) -> bool:
        return len(self._has_begun) > 1

    @property
    def begun(self) -> tuple[Key, ...]:
        return tuple(key for key, has_begun in self._has_begun.items() if has_begun)

    @property
    def unbegun(self) -> tuple[Key, ...]:
        return tuple(key for key, has_begun in self._has_begun.items() if not has_begun)

    def give(self, assignments: Iterable[Assignment]) -> None:
        """The only task of an idle child counts as begun: one that kills by being read must not go round for ever."""
        keys = [each.key for each in assignments]
        is_only_one = not self._has_begun and len(keys) == 1
        self._has_begun |= dict.fromkeys(keys, is_only_one)

    def begin(self, key: Key) -> None:
        self._check(key)
        self._has_begun[key] = True

    def take_back(self, *keys: Key) -> None:
        for key in keys:
            self._check(key)
            del self._has_begun[key]

    def _check(self, key: Key) -> None:
        if key not in self._has_begun:
            raise ProtocolFault(f"it speaks of task {key.task_id}, which it was not given")


# The worker's end of the line to a child: orders out, reports in, without ever waiting.

PACE_S: Final = 0.001


class Line:
    """Hands every report to `take`; a `ProtocolFault` out of it, or rubbish on the line, is told to `broken`.

    A line that closes is told by `closed` and means nothing by itself. While more reports are about to follow, as
    `is_flowing` says, they are read together every millisecond: to be woken for each costs both sides more than very
    short tasks do. A report that follows nothing is read at once.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        *,
        take: Callable[[Report], None],
        broken: Callable[[str], None],
        closed: Callable[[], None],
        is_flowing: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._take = take
        self._broken = broken
        self._closed = closed
        self._is_flowing = is_flowing
        self._next_read: asyncio.TimerHandle | None = None
        self._is_over = False
        self._reader = FrameReader(max_bytes=MAX_REPORT_BYTES)
        self._writer = FrameWriter(loop, sock)
        loop.add_reader(sock, self._woken)

    def send(self, *orders: Order) -> None:
        self._writer.write([encode(order) for order in orders])

    def drain(self) -> None:
        """Take everything that has been sent and not read yet."""
        while self._read():
            pass

    def close(self) -> None:
        self._stop_reading()
        self._writer.close()

    def _woken(self) -> None:
        if self._read() and self._is_flowing():
            self._loop.remove_reader(self._sock)
            self._read_soon()

    def _read_soon(self) -> None:
        self._next_read = self._loop.call_later(PACE_S, self._read_on)

    def _read_on(self) -> None:
        """Take what has come meanwhile; where nothing has, or nothing is about to, wait to be woken again."""
        is_flowing = False
        try:
            is_flowing = self._read() and self._is_flowing()
        finally:  # whatever became of one report, the next ones are read
            if is_flowing:
                self._read_soon()
            elif not self._is_over:
                self._loop.add_reader(self._sock, self._woken)

    def _stop_reading(self) -> None:
        self._is_over = True
        self._loop.remove_reader(self._sock)
        if self._next_read is not None:
            self._next_read.cancel()

    def _read(self) -> bool:
        """Take what is there; False when there is no more for now, or for good."""
        try:
            data = self._sock.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._stop_reading()
            self._closed()
            return False
        return self._has_understood(data)

    def _has_understood(self, data: bytes) -> bool:
        try:
            for frame in self._reader.feed(data):
                self._take(decode_report(frame))
        except (ProtocolFault, MsgspecError) as fault:
            # Nothing after the first wrong byte can be trusted.
            self._stop_reading()
            self._broken(str(fault))
            return False
        return True


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


# What the owner of a pool is told.


class PoolListener(Protocol):
    """Called on the event loop, as things happen, never twice for the same thing; must not block.

    Every key that was handed over comes back exactly once: by `ended`, by `recalled`, or in a death.
    """

    def ready(self, child: Child) -> None:
        """The child has come up and takes work."""
        ...

    def began(self, child: Child, key: Key) -> None: ...

    def ended(self, child: Child, key: Key, ending: Ending) -> None: ...

    def recalled(self, child: Child, keys: Sequence[Key]) -> None: ...

    def beat(self, child: Child, keys: Sequence[Key]) -> None:
        """The child's own thread says what it is at work on."""
        ...

    def said(self, child: Child, key: Key | None, stream: Stream, line: str) -> None:
        """Code in the child has written a line; without a key where nobody knows which task it was."""
        ...

    def died(self, child: Child, death: ChildDied) -> None:
        """A child that had been ready is gone; its slot is being refilled."""
        ...
