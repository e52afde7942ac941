"""One supervised child: sends it commands, handles its reports, checks its health and classifies its exit."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final, Protocol, assert_never, cast

from horsies.engine.in_flight import Chunk, ChunkTask, CompletedTask
from horsies.engine.pool.process import ChildProcess, ForkServerListener, PipeReader, call_on_exit
from horsies.engine.pool.protocol import (
    MAX_REPORT_BYTES,
    OUTPUT_LEVELS,
    OUTPUT_LOGGER,
    READ_BYTES,
    AppLoaded,
    Assignment,
    CancelTask,
    ChildHeartbeat,
    ChildSpec,
    Command,
    EncodedOutcome,
    ExitStatus,
    FrameReader,
    FrameWriter,
    HeartbeatAck,
    LogLine,
    ProtocolError,
    Quit,
    Ready,
    Recall,
    Recalled,
    Report,
    RunTasks,
    StartChild,
    StartFailed,
    TaskBegan,
    TaskCompleted,
    TaskFailed,
    TaskRef,
    decode_reports,
    encode,
)
from horsies.model.retry import ExitCause

CLOSE_GRACE_S: Final = 0.2
"""Wait before treating a closed channel as a protocol error: a dying process closes it before its exit is visible."""

READ_INTERVAL_S: Final = 0.001
MB: Final = 1024 * 1024
SPLIT_ABOVE_BYTES: Final = MB
"""The tasks of a larger chunk are sent in separate messages."""


class ChildState(Enum):
    STARTING = "starting"
    READY = "ready"
    RETIRING = "retiring"
    """Accepts no more tasks; finishes those it has."""
    QUIT_SENT = "quit sent"


class PoolListener(ForkServerListener, Protocol):
    """Receives the events of a pool: those of all its children, and of its fork server.

    Called on the event loop; must not block. Every task of an assigned chunk comes back exactly once: by
    `on_completed`, `on_failed` or `on_recalled`, or in the `ChildExit` of its child.
    """

    def on_ready(self, child: Child) -> None:
        """The child has started and accepts tasks."""
        ...

    def on_degraded_changed(self) -> None:
        """A child is missing because it failed to start, or a missing one has started; the pool retries.

        A lost fork server is reported by `on_fork_server_lost` instead.
        """
        ...

    def on_began(self, began: Sequence[tuple[Chunk, int]]) -> None:
        """These tasks, each a chunk and a position, have begun; some may have ended meanwhile."""
        ...

    def on_completed(self, completed: Sequence[CompletedTask]) -> None: ...

    def on_failed(self, chunk: Chunk, position: int, outcome: EncodedOutcome, run_ms: float) -> None: ...

    def on_recalled(self, child: Child, tasks: Sequence[ChunkTask]) -> None: ...

    def on_output(self, child: Child, line: LogLine) -> None:
        """Code in the child logged a record or printed a line."""
        ...

    def on_exit(self, child: Child, child_exit: ChildExit) -> None:
        """A child that had been ready has exited; the pool is already starting its replacement."""
        ...


class ChildOwner(Protocol):
    """The pool as its children see it; called before the listener."""

    def on_recycle_due(self, child: Child) -> None:
        """A task ended, and the child has reached its task count or memory limit."""
        ...

    def on_child_exit(self, child: Child) -> None:
        """The child and its process group are gone."""
        ...


class Child:
    """A supervised process.

    Its exit is detected by pid, not by the channel, which processes forked by tasks may hold open.
    """

    def __init__(self, process: ChildProcess, spec: ChildSpec, listener: PoolListener, owner: ChildOwner) -> None:
        self._loop = asyncio.get_running_loop()
        self._spec = spec
        self._listener = listener
        self._owner = owner
        self._chunks: dict[int, Chunk] = {}
        """By number: the chunks that have tasks in the child."""
        self.tasks_in_child = 0
        self._unhandled: list[tuple[ChunkTask, bool]] = []
        """Tasks whose end or recall could not be handled, and whether each had begun."""
        self._state = ChildState.STARTING
        self._exit_reason: ExitReason | None = None
        self.liveness = Liveness()
        self.tasks_ended = 0
        self.is_over_memory = False
        self.start_error: str | None = None
        """Why the start failed."""
        self.is_start_error_permanent = False
        """Whether the start failed in the child's own code, such as an import; another try would fail too."""
        self.start_finished = asyncio.Event()
        """Set when the child is ready or has exited during its start."""
        self.exited = asyncio.Event()
        self._process = process
        self._channel = ChildChannel(
            self._loop,
            self._process.channel,
            on_reports=self._on_reports,
            on_data=self.liveness.mark_heard,
            on_protocol_error=self._on_protocol_error,
            on_closed=lambda: self._loop.call_later(CLOSE_GRACE_S, self._on_protocol_error, "channel closed"),
            expects_more=lambda: self.tasks_in_child > 1,
        )
        environment = {**os.environb, **_encoded(spec.environment), b"HORSIES_CHILD_PROCESS": b"1"}
        self._channel.send(StartChild(spec, environment))
        stdout_fd, stderr_fd = self._process.output_fds
        self._pipes = [
            PipeReader(self._loop, fd, partial(self._on_pipe_line, OUTPUT_LEVELS[stream]))
            for stream, fd in (("stdout", stdout_fd), ("stderr", stderr_fd))
        ]
        self._deadline = self._loop.call_later(spec.start_timeout_s, self._on_start_timeout, spec.start_timeout_s)
        """Kills a child that does not start or quit in time."""
        call_on_exit(self._process, self._loop, self._on_exit)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """The chunks that have tasks in the child, in the order sent."""
        return tuple(self._chunks.values())

    @property
    def begun(self) -> tuple[ChunkTask, ...]:
        """Tasks in the child whose code may have run."""
        return tuple(task for task in self._tasks() if task.chunk.has_begun(task.position))

    @property
    def unbegun(self) -> tuple[ChunkTask, ...]:
        """Tasks in the child whose code has not run."""
        return tuple(task for task in self._tasks() if not task.chunk.has_begun(task.position))

    @property
    def is_idle(self) -> bool:
        return not self.tasks_in_child

    @property
    def has_started(self) -> bool:
        return self._state is not ChildState.STARTING

    @property
    def accepts_work(self) -> bool:
        return self._state is ChildState.READY and self._exit_reason is None and not self.exited.is_set()

    @property
    def should_recycle(self) -> bool:
        """Whether the child has reached its task count or memory limit and should be replaced."""
        max_tasks = self._spec.max_tasks_per_child
        return self.is_over_memory or (max_tasks > 0 and self.tasks_ended >= max_tasks)

    def run(self, chunk: Chunk) -> None:
        """Append the tasks of a new chunk to the child's queue; only while it accepts work."""
        assert self.accepts_work  # noqa: S101
        rows = cast("Sequence[Assignment]", chunk.rows)  # encoded, a row is an assignment
        self._chunks[chunk.number] = chunk
        self.tasks_in_child += len(rows)
        worker_id = str(chunk.worker_id)
        message = encode(RunTasks(chunk.number, 0, worker_id, rows))
        if len(message) <= SPLIT_ABOVE_BYTES:
            self._channel.send_encoded([message])
        else:  # keep single messages small
            singles = (RunTasks(chunk.number, position, worker_id, (row,)) for position, row in enumerate(rows))
            self._channel.send_encoded(map(encode, singles))

    def recall(self) -> None:
        """Ask for all tasks that have not begun; the listener gets `on_recalled`."""
        self._channel.send(Recall())

    def cancel(self, chunk: Chunk, position: int) -> None:
        """Cancel a coroutine or recall a task that has not begun; a running function stops only with its child."""
        self._channel.send(CancelTask(TaskRef(chunk.number, position)))

    def kill(self, why: str, *, cause: ExitCause = ExitCause.KILLED) -> None:
        """Send SIGKILL to the process group; the first reason given is the one recorded."""
        if self._exit_reason is None and not self.exited.is_set():
            self._exit_reason = ExitReason(cause=cause, why=why)
            self._process.kill_group()

    def retire(self) -> None:
        """Accept no more tasks and quit after the last one; a child that is still starting is killed."""
        if self._state is ChildState.STARTING:
            self.kill("no longer needed")
        elif self._state is ChildState.READY:
            self._state = ChildState.RETIRING
            self._quit_when_idle()

    def check_health(self, *, elapsed_s: float) -> None:
        """Check liveness and memory; `elapsed_s` is the time since the last check."""
        if self._state is ChildState.STARTING or self.exited.is_set():
            return
        self.liveness.tick(elapsed_s=elapsed_s, expected_s=self._spec.heartbeat_interval_s, cpu_s=self._process.cpu_s())
        if self.liveness.idle_s >= self._spec.silence_timeout_s:
            self.kill(f"no heartbeat and no CPU use for {self.liveness.idle_s:.1f} s", cause=ExitCause.HEARTBEAT_LOST)
        if self._spec.max_memory_per_child_mb is not None:
            self.is_over_memory = self._is_too_large(self._process.rss_bytes())

    def _on_reports(self, reports: Iterable[Report]) -> None:
        """Handle the reports of one read; starts and completions between other reports are passed on together."""
        began: list[tuple[Chunk, int]] = []
        completed: list[CompletedTask] = []
        try:
            # The two frequent reports are compared by type first: a class pattern costs an isinstance check per case.
            for report in reports:
                if type(report) is TaskCompleted:
                    chunk, position = self._chunk(report.chunk), report.position
                    self._end(chunk, position)
                    completed.append(CompletedTask(chunk, position, report.document, report.run_ms))
                elif type(report) is TaskBegan:
                    chunk, position = self._chunk(report.chunk), report.position
                    chunk.begin(position)
                    began.append((chunk, position))
                else:
                    # Emptied first: if the listener raises, it must not get them again.
                    passed, (began, completed) = (began, completed), ([], [])
                    self._pass_on(*passed)
                    self._on_rare_report(report)
        finally:  # a report that raises must not lose those before it
            self._pass_on(began, completed)

    def _pass_on(self, began: Sequence[tuple[Chunk, int]], completed: Sequence[CompletedTask]) -> None:
        try:
            if began:
                self._listener.on_began(began)
            if completed:
                self._listener.on_completed(completed)
        except Exception:
            self._unhandled += ((ChunkTask(task.chunk, task.position), True) for task in completed)
            raise
        if completed:
            self._on_tasks_ended()

    def _end(self, chunk: Chunk, position: int) -> None:
        chunk.end(position)
        self._count_out(chunk)
        self.tasks_ended += 1

    def _on_tasks_ended(self) -> None:
        if self.should_recycle:
            self._owner.on_recycle_due(self)
        self._quit_when_idle()

    def _on_recalled(self, refs: Sequence[TaskRef]) -> None:
        tasks: list[ChunkTask] = []
        try:
            for number, position in refs:
                chunk = self._chunk(number)
                chunk.recall(position)
                self._count_out(chunk)
                tasks.append(ChunkTask(chunk, position))
            self._listener.on_recalled(self, tasks)
        except Exception:
            self._unhandled += ((task, False) for task in tasks)
            raise
        self._quit_when_idle()

    def _tasks(self) -> Iterator[ChunkTask]:
        return (ChunkTask(chunk, position) for chunk in self.chunks for position in chunk.remaining())

    def _chunk(self, number: int) -> Chunk:
        chunk = self._chunks.get(number)
        if chunk is None:
            raise ProtocolError(f"report about chunk {number}, which this child does not have")
        return chunk

    def _count_out(self, chunk: Chunk) -> None:
        self.tasks_in_child -= 1
        if not chunk.in_child:
            del self._chunks[chunk.number]

    def _on_rare_report(self, report: Report) -> None:
        match report:
            case ChildHeartbeat():
                self._channel.send(HeartbeatAck())
            case LogLine():
                self._listener.on_output(self, report)
            case Recalled(tasks):
                self._on_recalled(tasks)
            case AppLoaded(hooks):
                # The child enforces the timeout of each hook itself; this deadline is for a child that hangs.
                self._deadline.cancel()
                timeout_s = self._spec.start_timeout_s + hooks * self._spec.hook_timeout_s
                self._deadline = self._loop.call_later(timeout_s, self._on_start_timeout, timeout_s)
            case Ready():
                self._on_ready(self._process.rss_bytes())
            case StartFailed(message):
                self.start_error = message
            case TaskFailed(chunk_number, position, outcome, run_ms):
                chunk = self._chunk(chunk_number)
                self._end(chunk, position)
                try:
                    self._listener.on_failed(chunk, position, outcome, run_ms)
                except Exception:
                    self._unhandled.append((ChunkTask(chunk, position), True))
                    raise
                self._on_tasks_ended()
            case TaskBegan() | TaskCompleted():
                raise AssertionError("handled by _on_reports")
            case _:
                assert_never(report)

    def _on_pipe_line(self, level: int, line: str) -> None:
        self._listener.on_output(self, LogLine(None, level, OUTPUT_LOGGER, line))

    def _on_ready(self, rss_bytes: int) -> None:
        if self._is_too_large(rss_bytes):
            self.is_over_memory = True
            self.kill(f"uses {rss_bytes // MB} MB before its first task")
            return
        self._deadline.cancel()
        self._state = ChildState.READY
        self.start_finished.set()
        self._listener.on_ready(self)

    def _is_too_large(self, rss_bytes: int) -> bool:
        limit_mb = self._spec.max_memory_per_child_mb
        return limit_mb is not None and rss_bytes > limit_mb * MB

    def _on_start_timeout(self, timeout_s: float) -> None:
        self.kill(f"did not start within {timeout_s:g} s")

    def _quit_when_idle(self) -> None:
        if self._state is ChildState.RETIRING and self.is_idle:
            self._state = ChildState.QUIT_SENT
            self._channel.send(Quit())
            self._deadline = self._loop.call_later(self._spec.quit_timeout_s, self.kill, "did not quit in time")

    def _on_protocol_error(self, error: str) -> None:
        self.kill(f"protocol error: {error}", cause=ExitCause.CHILD_PROTOCOL)

    def _on_exit(self) -> None:
        """Kill the rest of the group, read the last reports and output, then publish the exit."""
        self.exited.set()
        self._process.kill_group()
        self._channel.drain()
        for pipe in self._pipes:
            pipe.drain()
        self._channel.close()
        self._deadline.cancel()
        self._owner.on_child_exit(self)
        child_exit = self._describe_exit(WaitStatus.reap(self.pid, announced_status=self._process.announced_status()))
        self._process.close()
        if self._state is not ChildState.STARTING:
            self._listener.on_exit(self, child_exit)
        else:
            self.is_start_error_permanent = self.start_error is not None or child_exit.cause is ExitCause.CHILD_EXIT
            self.start_error = self.start_error or child_exit.why
            self.start_finished.set()

    def _describe_exit(self, status: WaitStatus) -> ChildExit:
        """Classify the exit and take the remaining tasks out of their chunks."""
        reason = status.classify(self._exit_reason, quit_sent=self._state is ChildState.QUIT_SENT)
        # What the listener did not handle comes back here, unless it had taken over the task before it failed.
        unhandled = [item for item in self._unhandled if item[0].chunk.is_out(item[0].position)]
        begun = (*(task for task, has_begun in unhandled if has_begun), *self.begun)
        unbegun = (*(task for task, has_begun in unhandled if not has_begun), *self.unbegun)
        for chunk in self.chunks:
            chunk.lose()
        return ChildExit(
            pid=self.pid,
            cause=reason.cause,
            why=reason.why,
            signal=status.signal,
            exit_status=status.exit_status,
            max_rss_bytes=status.max_rss_bytes,
            begun=begun,
            unbegun=unbegun,
        )


def _encoded(variables: Mapping[str, str]) -> dict[bytes, bytes]:
    return {os.fsencode(name): os.fsencode(value) for name, value in variables.items()}


class Liveness:
    """Time since a child last showed activity.

    `silence_s` counts from the last report, `idle_s` from the last report or CPU use. A child that is silent but not
    idle is busy, for example in C code that holds the GIL. Time in which the worker itself was paused does not count.
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
        """Advance by `elapsed_s`, at most twice `expected_s`: the excess is a pause of the worker itself."""
        counted_s = min(elapsed_s, 2 * expected_s)
        self.silence_s = 0.0 if self._was_heard else self.silence_s + counted_s
        self.idle_s = 0.0 if self._was_heard or cpu_s > self._cpu_s else self.idle_s + counted_s
        self._cpu_s = cpu_s
        self._was_heard = False


# Exit classification


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitReason:
    """Why a child exited or is being killed; recorded before the signal is sent."""

    cause: ExitCause
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildExit:
    """A child that has exited, together with its process group, and the tasks it still had."""

    pid: int
    cause: ExitCause
    why: str
    signal: int | None
    exit_status: int | None
    max_rss_bytes: int
    begun: tuple[ChunkTask, ...]
    """Tasks whose code may have run."""
    unbegun: tuple[ChunkTask, ...]
    """Tasks whose code has not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitStatus:
    """What the kernel reports about an exited process."""

    signal: int | None
    exit_status: int | None
    max_rss_bytes: int
    announced_status: int | None = None
    """The exit status our code in the child announced; user code can exit with any status, but announces none."""

    @classmethod
    def reap(cls, pid: int, *, announced_status: int | None = None) -> WaitStatus:
        _, status, usage = os.wait4(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        return cls(
            signal=-code if code < 0 else None,
            exit_status=code if code >= 0 else None,
            max_rss_bytes=usage.ru_maxrss * 1024,
            announced_status=announced_status,
        )

    def classify(self, exit_reason: ExitReason | None, *, quit_sent: bool) -> ExitReason:
        """Classify the exit.

        `exit_reason`, set by `kill`, counts only if the process died of SIGKILL: it may have exited by itself just
        before the signal.
        """
        if exit_reason is not None and self.signal == signal.SIGKILL:
            return exit_reason
        if self.signal is not None:
            return ExitReason(cause=ExitCause.CHILD_SIGNAL, why=f"killed by {_signal_name(self.signal)}")
        match self.exit_status:
            case ExitStatus.OUT_OF_MEMORY if self._was_announced:
                return ExitReason(cause=ExitCause.CHILD_MEMORY, why="ran out of memory")
            case ExitStatus.CHANNEL_LOST if self._was_announced:
                return ExitReason(cause=ExitCause.CHILD_PROTOCOL, why="lost its channel to the worker")
            case ExitStatus.DONE if quit_sent:
                return ExitReason(cause=ExitCause.RETIRED, why="quit as requested")
            case status:
                return ExitReason(cause=ExitCause.CHILD_EXIT, why=f"exited with status {status}")

    @property
    def _was_announced(self) -> bool:
        return self.announced_status == self.exit_status


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class ChildChannel:
    """The worker's end of the socket to a child: sends commands, delivers reports, never blocks.

    A malformed frame, or any error raised by `on_reports`, goes to `on_protocol_error` and ends the reading. Reports
    are read as they arrive, or in batches every millisecond while `expects_more()` is true, because one wake-up per
    report costs more than a very short task.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        *,
        on_reports: Callable[[Iterable[Report]], None],
        on_data: Callable[[], None],
        on_protocol_error: Callable[[str], None],
        on_closed: Callable[[], object],
        expects_more: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._on_reports = on_reports
        self._on_data = on_data
        self._on_protocol_error = on_protocol_error
        self._on_closed = on_closed
        self._expects_more = expects_more
        self._next_read: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._reader = FrameReader(max_bytes=MAX_REPORT_BYTES)
        self._writer = FrameWriter(loop, sock)
        loop.add_reader(sock, self._on_readable)

    def send(self, command: Command) -> None:
        self.send_encoded([encode(command)])

    def send_encoded(self, messages: Iterable[bytes]) -> None:
        self._writer.write(messages)

    def drain(self) -> None:
        """Read everything that has arrived, unless reading has stopped."""
        while not self._is_closed and self._read():
            pass

    def close(self) -> None:
        self._stop_reading()
        self._writer.close()

    def _on_readable(self) -> None:
        if self._read() and self._expects_more():
            self._loop.remove_reader(self._sock)
            self._schedule_read()

    def _schedule_read(self) -> None:
        self._next_read = self._loop.call_later(READ_INTERVAL_S, self._read_scheduled)

    def _read_scheduled(self) -> None:
        """Read a batch; go back to waiting for readability if it was empty or no more reports are expected."""
        keeps_polling = False
        try:
            keeps_polling = self._read() and self._expects_more()
        finally:  # this read replaced the reader: if a callback raises, the channel must not stay unread
            if keeps_polling:
                self._schedule_read()
            elif not self._is_closed:
                self._loop.add_reader(self._sock, self._on_readable)

    def _stop_reading(self) -> None:
        self._is_closed = True
        self._loop.remove_reader(self._sock)
        if self._next_read is not None:
            self._next_read.cancel()

    def _read(self) -> bool:
        """Read once and deliver the reports; False if there was no data or reading stops."""
        try:
            data = self._sock.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._stop_reading()
            self._on_closed()
            return False
        self._on_data()
        return self._deliver(data)

    def _deliver(self, data: bytes) -> bool:
        try:
            # An iterator: the reports before a malformed frame are handled.
            self._on_reports(report for frame in self._reader.feed(data) for report in decode_reports(frame))
        except Exception as error:  # noqa: BLE001  # a report, even a forged one, must not end the worker
            # Frame boundaries are unreliable after the first error.
            self._stop_reading()
            self._on_protocol_error(str(error) or type(error).__name__)
            return False
        return True
