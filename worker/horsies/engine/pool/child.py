"""One child under supervision: what it has in hand, whether it lives, and how it died."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final, Protocol, assert_never

from msgspec import MsgspecError

from horsies.engine.pool.process import ChildProcess, ChildSpec, PipeReader, call_on_exit
from horsies.engine.pool.protocol import (
    MAX_REPORT_BYTES,
    READ_BYTES,
    AppLoaded,
    Assignment,
    AttemptKey,
    CancelTask,
    ChildHeartbeat,
    Command,
    EncodedOutcome,
    ExitStatus,
    FrameReader,
    FrameWriter,
    HeartbeatAck,
    OutputLine,
    ProtocolError,
    Quit,
    Ready,
    Recall,
    Recalled,
    Report,
    RunTasks,
    StartFailed,
    Stream,
    TaskBegan,
    TaskEnded,
    decode_report,
    encode,
)
from horsies.model.crash import ExitCause

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
        self._was_heard = False

    @property
    def is_silent_but_busy(self) -> bool:
        return self.silence_s > self.idle_s

    def mark_heard(self) -> None:
        self._was_heard = True

    def tick(self, *, elapsed_s: float, expected_s: float, cpu_s: float) -> None:
        """Look again, `elapsed_s` after the last time; it should have been `due_s`."""
        counted_s = min(elapsed_s, 2 * expected_s)
        self.silence_s = 0.0 if self._was_heard else self.silence_s + counted_s
        self.idle_s = 0.0 if self._was_heard or cpu_s > self._cpu_s else self.idle_s + counted_s
        self._cpu_s = cpu_s
        self._was_heard = False


# How children die, told from what the kernel says.


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitReason:
    """Why a child is being killed; passed before the signal is sent, so that the death is known for what it is."""

    cause: ExitCause
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildExit:
    """A child that is gone, with everything it had in hand. Its process group is gone too."""

    pid: int
    cause: ExitCause
    why: str
    signal: int | None
    exit_status: int | None
    max_rss_bytes: int
    begun: tuple[AttemptKey, ...]
    """What its code may have worked on."""
    unbegun: tuple[AttemptKey, ...]
    """What was handed over and never touched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitStatus:
    """What the kernel tells about an ended process."""

    signal: int | None
    exit_status: int | None
    max_rss_bytes: int
    announced_status: int | None = None
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
            announced_status=last_word,
        )

    def cause_of_exit(self, exit_reason: ExitReason | None, *, quit_sent: bool) -> ExitReason:
        """The cause of the death. A sentence counts only where it was carried out: a child that ended by itself in
        the same instant died of its own cause."""
        if exit_reason is not None and self.signal == signal.SIGKILL:
            return exit_reason
        if self.signal is not None:
            return ExitReason(cause=ExitCause.CHILD_SIGNAL, why=f"killed by {_signal_name(self.signal)}")
        match self.exit_status:
            case ExitStatus.OUT_OF_MEMORY if self._was_announced:
                return ExitReason(cause=ExitCause.CHILD_MEMORY, why="ran out of memory")
            case ExitStatus.CHANNEL_LOST if self._was_announced:
                return ExitReason(cause=ExitCause.CHILD_PROTOCOL, why="its line to the worker was closed from inside")
            case ExitStatus.DONE if quit_sent:
                return ExitReason(cause=ExitCause.RETIRED, why="left when asked")
            case status:
                return ExitReason(cause=ExitCause.CHILD_EXIT, why=f"left with exit status {status}")

    @property
    def _was_announced(self) -> bool:
        return self.announced_status == self.exit_status


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# What one child has been handed and not given back.


class Outstanding:
    """Keys in the order they were handed over. A child that speaks of any other is out of its mind: `ProtocolFault`."""

    def __init__(self) -> None:
        self._has_begun: dict[AttemptKey, bool] = {}

    def __len__(self) -> int:
        return len(self._has_begun)

    def has_several(self) -> bool:
        return len(self._has_begun) > 1

    @property
    def begun(self) -> tuple[AttemptKey, ...]:
        return tuple(key for key, has_begun in self._has_begun.items() if has_begun)

    @property
    def unbegun(self) -> tuple[AttemptKey, ...]:
        return tuple(key for key, has_begun in self._has_begun.items() if not has_begun)

    def add(self, assignments: Iterable[Assignment]) -> None:
        """The only task of an idle child counts as begun: one that kills by being read must not go round for ever."""
        keys = [each.key for each in assignments]
        is_only_one = not self._has_begun and len(keys) == 1
        self._has_begun |= dict.fromkeys(keys, is_only_one)

    def mark_begun(self, key: AttemptKey) -> None:
        self._require_assigned(key)
        self._has_begun[key] = True

    def remove(self, *keys: AttemptKey) -> None:
        for key in keys:
            self._require_assigned(key)
            del self._has_begun[key]

    def _require_assigned(self, key: AttemptKey) -> None:
        if key not in self._has_begun:
            raise ProtocolError(f"it speaks of task {key.task_id}, which it was not given")


# The worker's end of the line to a child: orders out, reports in, without ever waiting.

READ_INTERVAL_S: Final = 0.001


class ChildChannel:
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
        on_report: Callable[[Report], None],
        on_protocol_error: Callable[[str], None],
        on_closed: Callable[[], None],
        expects_more: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._take = on_report
        self._broken = on_protocol_error
        self._closed = on_closed
        self._is_flowing = expects_more
        self._next_read: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._reader = FrameReader(max_bytes=MAX_REPORT_BYTES)
        self._writer = FrameWriter(loop, sock)
        loop.add_reader(sock, self._on_readable)

    def send(self, *orders: Command) -> None:
        self._writer.write([encode(order) for order in orders])

    def drain(self) -> None:
        """Take everything that has been sent and not read yet."""
        while self._read():
            pass

    def close(self) -> None:
        self._stop_reading()
        self._writer.close()

    def _on_readable(self) -> None:
        if self._read() and self._is_flowing():
            self._loop.remove_reader(self._sock)
            self._read_soon()

    def _read_soon(self) -> None:
        self._next_read = self._loop.call_later(READ_INTERVAL_S, self._read_again)

    def _read_again(self) -> None:
        """Take what has come meanwhile; where nothing has, or nothing is about to, wait to be woken again."""
        is_flowing = False
        try:
            is_flowing = self._read() and self._is_flowing()
        finally:  # whatever became of one report, the next ones are read
            if is_flowing:
                self._read_soon()
            elif not self._is_closed:
                self._loop.add_reader(self._sock, self._on_readable)

    def _stop_reading(self) -> None:
        self._is_closed = True
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
        return self._dispatch_frames(data)

    def _dispatch_frames(self, data: bytes) -> bool:
        try:
            for frame in self._reader.feed(data):
                self._take(decode_report(frame))
        except (ProtocolError, MsgspecError) as fault:
            # Nothing after the first wrong byte can be trusted.
            self._stop_reading()
            self._broken(str(fault))
            return False
        return True


CLOSE_GRACE_S: Final = 0.2
"""A dying process closes its line a moment before it can be waited for."""

MB: Final = 1024 * 1024
SPLIT_ABOVE_BYTES: Final = MB


class ChildState(Enum):
    """How far a child has come."""

    STARTING = "coming up"
    READY = "ready"
    RETIRING = "leaving"
    """It gets no more work."""
    QUIT_SENT = "dismissed"
    """It has been asked to quit."""


class ChildOwner(Protocol):
    """Whoever keeps the child; told before the listener is."""

    def on_task_ended(self, child: Child) -> None:
        """One more of its tasks has ended."""
        ...

    def on_child_exit(self, child: Child) -> None:
        """It is gone, and so is its group."""
        ...


class Child:
    """A supervised process. Its death is known from the kernel and never from its line, which others may hold.

    OSError where there is no room for another one; then nothing is left of it.
    """

    def __init__(self, spec: ChildSpec, listener: PoolListener, owner: ChildOwner) -> None:
        self._loop = asyncio.get_running_loop()
        self._spec = spec
        self._listener = listener
        self._owner = owner
        self._outstanding = Outstanding()
        self._stage = ChildState.STARTING
        self._exit_reason: ExitReason | None = None
        self.liveness = Liveness()
        self.tasks_ended = 0
        self.is_over_memory = False
        self.start_error: str | None = None
        """Why it has not come up."""
        self.start_finished = asyncio.Event()
        """Set when it is ready, or has died on the way."""
        self.exited = asyncio.Event()
        self._process = ChildProcess.start(spec)
        self._channel = ChildChannel(
            self._loop,
            self._process.channel,
            on_report=self._on_report,
            on_protocol_error=self._on_protocol_error,
            on_closed=self._on_channel_closed,
            expects_more=self._outstanding.has_several,
        )
        stdout_fd, stderr_fd = self._process.output_fds
        self._pipes = [
            PipeReader(self._loop, stdout_fd, partial(listener.on_output, self, None, "stdout")),
            PipeReader(self._loop, stderr_fd, partial(listener.on_output, self, None, "stderr")),
        ]
        self._deadline = self._loop.call_later(spec.start_limit_s, self._on_start_timeout, spec.start_limit_s)
        call_on_exit(self._process, self._loop, self._on_exit)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def begun(self) -> tuple[AttemptKey, ...]:
        return self._outstanding.begun

    @property
    def unbegun(self) -> tuple[AttemptKey, ...]:
        return self._outstanding.unbegun

    @property
    def is_idle(self) -> bool:
        return not self._outstanding

    @property
    def accepts_work(self) -> bool:
        return self._stage is ChildState.READY and self._exit_reason is None and not self.exited.is_set()

    @property
    def should_recycle(self) -> bool:
        """Whether it should be replaced, by the count of its tasks or by its size."""
        most = self._spec.max_tasks_per_child
        return self.is_over_memory or (most > 0 and self.tasks_ended >= most)

    def run(self, assignments: Sequence[Assignment]) -> None:
        """Hand these over, to be run after what it already holds; only while it accepts work."""
        assert self.accepts_work  # noqa: S101
        self._outstanding.add(assignments)
        self._channel.send(*(RunTasks(parcel) for parcel in _split_by_size(assignments)))

    def recall(self) -> None:
        """Ask for what has not begun; the listener hears `recalled`."""
        self._channel.send(Recall())

    def cancel(self, key: AttemptKey) -> None:
        """Cancel a coroutine, or take one back that has not begun; a function can only be killed with its child."""
        self._channel.send(CancelTask(key))

    def kill(self, why: str, *, cause: ExitCause = ExitCause.KILLED) -> None:
        """SIGKILL to its group, at once. The first reason given is the one that is remembered."""
        if self._exit_reason is None and not self.exited.is_set():
            self._exit_reason = ExitReason(cause=cause, why=why)
            self._process.kill_group()

    def retire(self) -> None:
        """Take no more work, and leave when the last task in hand has ended; one that is only coming up is killed."""
        if self._stage is ChildState.STARTING:
            self.kill("not needed any more")
        elif self._stage is ChildState.READY:
            self._stage = ChildState.RETIRING
            self._quit_when_idle()

    def check_health(self, *, elapsed_s: float) -> None:
        """See whether it lives and how large it has grown; `elapsed_s` since the last look."""
        if self._stage is ChildState.STARTING or self.exited.is_set():
            return
        self.liveness.tick(elapsed_s=elapsed_s, expected_s=self._spec.heartbeat_interval_s, cpu_s=self._process.cpu_s())
        if self.liveness.idle_s >= self._spec.silent_limit_s:
            self.kill(f"silent and idle for {self.liveness.idle_s:.1f} s", cause=ExitCause.HEARTBEAT_LOST)
        if self._spec.max_memory_per_child_mb is not None:
            self.is_over_memory = self._is_too_large(self._process.rss_bytes())

    def _on_report(self, report: Report) -> None:
        self.liveness.mark_heard()
        # The two that come with each task first, and by their type: a pattern asks each class in turn, which is dear.
        if type(report) is TaskEnded:
            self._on_ended(report.key, report.outcome)
        elif type(report) is TaskBegan:
            self._on_began(report.key)
        else:
            self._on_rare_report(report)

    def _on_rare_report(self, report: Report) -> None:
        match report:
            case ChildHeartbeat(keys):
                self._channel.send(HeartbeatAck())
                self._listener.on_heartbeat(self, keys)
            case OutputLine(key, stream, line):
                self._listener.on_output(self, key, stream, line)
            case Recalled(keys):
                self._outstanding.remove(*keys)
                self._listener.on_recalled(self, keys)
                self._quit_when_idle()
            case AppLoaded(hooks):
                self._extend_start(hooks)
            case Ready(rss_bytes):
                self._on_ready(rss_bytes)
            case StartFailed(message):
                self.start_error = message
            case TaskBegan() | TaskEnded():
                raise AssertionError("taken before")
            case _:
                assert_never(report)

    def _on_began(self, key: AttemptKey) -> None:
        self._outstanding.mark_begun(key)
        self._listener.on_began(self, key)

    def _on_ended(self, key: AttemptKey, ending: EncodedOutcome) -> None:
        self._outstanding.remove(key)
        self.tasks_ended += 1
        self._owner.on_task_ended(self)
        self._listener.on_ended(self, key, ending)
        self._quit_when_idle()

    def _on_ready(self, rss_bytes: int) -> None:
        if self._is_too_large(rss_bytes):
            self.is_over_memory = True
            self.kill(f"takes {rss_bytes // MB} MB before its first task")
            return
        self._deadline.cancel()
        self._stage = ChildState.READY
        self.start_finished.set()
        self._listener.on_ready(self)

    def _is_too_large(self, rss_bytes: int) -> bool:
        limit_mb = self._spec.max_memory_per_child_mb
        return limit_mb is not None and rss_bytes > limit_mb * MB

    def _extend_start(self, hooks: int) -> None:
        # Each hook has its own limit in the child; this one is for a child that cannot keep it.
        self._deadline.cancel()
        limit_s = self._spec.start_limit_s + hooks * self._spec.hook_limit_s
        self._deadline = self._loop.call_later(limit_s, self._on_start_timeout, limit_s)

    def _on_start_timeout(self, limit_s: float) -> None:
        self.kill(f"did not come up within {limit_s:g} s")

    def _quit_when_idle(self) -> None:
        if self._stage is ChildState.RETIRING and self.is_idle:
            self._stage = ChildState.QUIT_SENT
            self._channel.send(Quit())
            self._deadline = self._loop.call_later(self._spec.quit_limit_s, self.kill, "did not leave when asked")

    def _on_protocol_error(self, fault: str) -> None:
        self.kill(f"broke the protocol: {fault}", cause=ExitCause.CHILD_PROTOCOL)

    def _on_channel_closed(self) -> None:
        self._loop.call_later(CLOSE_GRACE_S, self._on_protocol_error, "it closed its line")

    def _on_exit(self) -> None:
        """It has ended: end its group, hear its last words, and tell what it had in hand."""
        self.exited.set()
        self._process.kill_group()
        self._channel.drain()
        for pipe in self._pipes:
            pipe.drain()
        self._channel.close()
        self._deadline.cancel()
        self._owner.on_child_exit(self)
        death = self._describe_exit(WaitStatus.reap(self.pid, last_word=self._process.announced_status()))
        self._process.close()
        if self._stage is not ChildState.STARTING:
            self._listener.on_died(self, death)
        else:
            self.start_error = self.start_error or death.why
            self.start_finished.set()

    def _describe_exit(self, status: WaitStatus) -> ChildExit:
        verdict = status.cause_of_exit(self._exit_reason, quit_sent=self._stage is ChildState.QUIT_SENT)
        return ChildExit(
            pid=self.pid,
            cause=verdict.cause,
            why=verdict.why,
            signal=status.signal,
            exit_status=status.exit_status,
            max_rss_bytes=status.max_rss_bytes,
            begun=self.begun,
            unbegun=self.unbegun,
        )


def _split_by_size(assignments: Sequence[Assignment]) -> Iterator[tuple[Assignment, ...]]:
    """All in one message, or each in its own where together they are large."""
    if sum(each.size_bytes for each in assignments) <= SPLIT_ABOVE_BYTES:
        yield tuple(assignments)
    else:
        yield from ((each,) for each in assignments)


# What the owner of a pool is told.


class PoolListener(Protocol):
    """Called on the event loop, as things happen, never twice for the same thing; must not block.

    Every key that was handed over comes back exactly once: by `ended`, by `recalled`, or in a death.
    """

    def on_ready(self, child: Child) -> None:
        """The child has come up and takes work."""
        ...

    def on_began(self, child: Child, key: AttemptKey) -> None: ...

    def on_ended(self, child: Child, key: AttemptKey, ending: EncodedOutcome) -> None: ...

    def on_recalled(self, child: Child, keys: Sequence[AttemptKey]) -> None: ...

    def on_heartbeat(self, child: Child, keys: Sequence[AttemptKey]) -> None:
        """The child's own thread says what it is at work on."""
        ...

    def on_output(self, child: Child, key: AttemptKey | None, stream: Stream, line: str) -> None:
        """Code in the child has written a line; without a key where nobody knows which task it was."""
        ...

    def on_died(self, child: Child, death: ChildExit) -> None:
        """A child that had been ready is gone; its slot is being refilled."""
        ...
