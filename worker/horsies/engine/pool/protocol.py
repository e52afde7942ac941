"""What the worker (parent) and its children exchange: commands one way and reports back.

Each command, and each list of reports, is a msgpack value in a length-prefixed frame. Arguments and results travel as
the JSON bytes stored in the database; only the child decodes them.
"""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from enum import IntEnum
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

from msgspec import Raw, Struct, ValidationError, json, msgpack

from horsies.model.task import ScheduledSlot, TaskAttemptOutcome, TaskContext  # msgspec reads annotations at run time
from horsies.model.task_result import OperationalErrorCode

if TYPE_CHECKING:
    import asyncio


MAX_REPORT_BYTES: Final = 64 * 1024 * 1024
"""Largest report the worker accepts from a child."""

MAX_COMMAND_BYTES: Final = 2**31
"""Larger than any database row, so commands are effectively unlimited: a child trusts its worker."""


HEARTBEAT_INTERVAL_S: Final = 1.0
MAX_TIMEOUT_MS: Final = 2**53
"""A longer timeout of a task counts as none."""


class ChildSpec(Struct, frozen=True, kw_only=True):
    """Configuration shared by all children of a pool."""

    app_locator: str | None = None
    """Where to find the app; None = use the settings."""
    modules: tuple[str, ...] | None = None
    """Task modules to import instead of those the app names."""
    environment: dict[str, str] = {}
    """Variables added to the worker's own environment."""
    log_level: int = logging.INFO
    """The level of the root logger in a child, unless the user's code sets one."""
    async_concurrency: int = 10
    start_timeout_s: float = 20.0
    hook_timeout_s: float = 10.0
    heartbeat_interval_s: float = HEARTBEAT_INTERVAL_S
    silence_timeout_s: float = 285.0
    """The worker kills a child that sends nothing and uses no CPU for this long."""
    ack_timeout_s: float = 300.0
    """A child exits when its heartbeats are not acknowledged for this long."""
    max_tasks_per_child: int = 0
    """Replace a child after this many tasks; 0 = never."""
    max_memory_per_child_mb: int | None = None
    quit_timeout_s: float = 5.0
    """The worker kills a child that has not exited this long after `Quit`."""


class AttemptKey(NamedTuple):
    """Identifies one attempt of one task."""

    task_id: str
    claim_token: int


class TaskRef(NamedTuple):
    """A task in a child: the number of its chunk and its position in it."""

    chunk: int
    position: int


class Message(Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of all messages; tagged with the class name."""


class ScheduledContext(Struct, frozen=True):
    """The stored context of a task that a schedule sent; that of a workflow task has no `schedule`."""

    schedule: ScheduledSlot | None = None


class TaskDetails(Struct, frozen=True, kw_only=True):
    """What a claim returns about a task beside its name and arguments; the defaults are those of most tasks."""

    context: Raw = Raw(b"null")
    """Results and metadata that a workflow passes to the task, or the slot of a schedule."""
    task_options: dict[str, Any] = {}
    flags: Any = {}
    retry_count: int = 0
    attempts: int = 0
    """Number of earlier attempts."""
    crash_count: int = 0
    lost_starts: int = 0
    """How often a child died with the task before the task began."""
    good_until: datetime | None = None
    overlap_possible: bool = False
    is_workflow_task: bool = False

    @property
    def timeout_ms(self) -> int | None:
        """None too if another program stored something else than a number of milliseconds."""
        limit_ms = self.task_options.get("timeout_ms")
        return limit_ms if type(limit_ms) is int and 0 < limit_ms <= MAX_TIMEOUT_MS else None

    @property
    def workflow_context(self) -> bytes | None:
        return None if bytes(self.context) == b"null" else bytes(self.context)

    @property
    def schedule(self) -> ScheduledSlot | None:
        return None if self.workflow_context is None else _decode_schedule(self.context).schedule


_decode_schedule = json.Decoder(ScheduledContext).decode


def scheduled_context(slot: ScheduledSlot | None) -> Raw:
    """The context of a task that this slot sends, for tasks that were not claimed from a database."""
    return Raw(b"null") if slot is None else Raw(json.encode(ScheduledContext(slot)))


NO_DETAILS: Final = TaskDetails()
MAX_CACHED_DETAILS: Final = 1_000
"""Longer details, for example with the context of a workflow node, are not kept in memory."""
_UNCHECKED_DETAILS: Final = frozenset({"task_options", "flags", "good_until"})
"""Details that other programs may have stored with values that `TaskDetails` cannot hold."""
_TOO_DEEP: Final = TaskDetails(context=Raw(b"nested too deeply"))
"""Nothing is known of such details. The child cannot decode this context, so the task fails."""
_decode_details = json.Decoder(TaskDetails).decode


def _decode_readable(text: str) -> TaskDetails:
    """Decode what can be read: one malformed row must not end the worker."""
    try:
        try:
            return _decode_details(text)
        except ValidationError:
            stored = json.decode(text, type=dict[str, Raw])
            return _decode_details(json.encode({name: stored[name] for name in stored.keys() - _UNCHECKED_DETAILS}))
    except RecursionError:
        return _TOO_DEEP


_cached_details = lru_cache(maxsize=256)(_decode_readable)  # most sends of a task have the same


def parse_details(text: str | None) -> TaskDetails:
    """Parse the details of a claimed row."""
    if text is None:
        return NO_DETAILS
    return _cached_details(text) if len(text) <= MAX_CACHED_DETAILS else _decode_readable(text)


def encode_details(details: TaskDetails) -> str:
    """The text that `parse_details` reads, for tasks that were not claimed from a database."""
    return json.encode(details).decode()


class Assignment(Struct, frozen=True, array_like=True, gc=False):
    """A task sent to a child, with its arguments in stored form.

    The worker sends claimed rows as they are: these are the first fields of `ClaimedRow`, in its order.
    """

    task_id: str
    claim_token: int
    task_name: str
    queue_name: str
    args: str
    kwargs: str
    sent_at: datetime
    details: str | None = None

    def context(self, worker_id: str) -> TaskContext:
        """What `current_task()` returns while the task runs."""
        details = parse_details(self.details)
        # Other programs may have stored flags with other values.
        stored: object = details.flags
        flags = cast("dict[str, Any]", stored) if isinstance(stored, dict) else {}
        return TaskContext(
            task_id=self.task_id,
            task_name=self.task_name,
            queue_name=self.queue_name,
            attempt=details.attempts + 1,
            retry_count=details.retry_count,
            claim_token=self.claim_token,
            sent_at=self.sent_at,
            good_until=details.good_until,
            timeout_ms=details.timeout_ms,
            worker_id=worker_id,
            flags={name: bool(value) for name, value in flags.items()},
            possible_overlap=details.overlap_possible,
            schedule=details.schedule,
        )


class EncodedOutcome(Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """How an attempt ended, with the result document ready to store."""

    outcome: TaskAttemptOutcome
    document: str
    error_code: str | None = None
    error_message: str | None = None

    @property
    def is_unknown_task(self) -> bool:
        """Whether the child does not know the task; a task that returns the same code has another outcome."""
        is_failure = self.outcome is TaskAttemptOutcome.WORKER_FAILURE
        return is_failure and self.error_code == OperationalErrorCode.WORKER_RESOLUTION_ERROR


class StartChild(Message, frozen=True):
    """The first command to every child. Not an argument, because command lines are visible to other users."""

    spec: ChildSpec
    environment: dict[bytes, bytes]
    """All variables: a child that was forked has those of its fork server."""


class RunTasks(Message, frozen=True):
    """Append these tasks to the child's queue, in this order; `first` is the position of the first in its chunk."""

    chunk: int
    first: int
    worker_id: str
    assignments: Sequence[Assignment]


class Recall(Message, frozen=True):
    """Take back all tasks the child has not begun; answered by `Recalled`."""


class CancelTask(Message, frozen=True):
    """Stop one task: recalled if not begun, cancelled if it is a coroutine; a running function is not affected."""

    task: TaskRef


class HeartbeatAck(Message, frozen=True):
    """The worker received a heartbeat of the child."""


class Quit(Message, frozen=True):
    """Exit once nothing is running."""


class AppLoaded(Message, frozen=True):
    """The app is imported; `hooks` start hooks run next, each with its own timeout."""

    hooks: int


class Ready(Message, frozen=True):
    """The app is imported, its hooks have run, and the child accepts tasks."""


class StartFailed(Message, frozen=True):
    """The app or a start hook failed; the child exits."""

    message: str


class TaskBegan(Message, frozen=True):
    """The child starts this task now; sent before its arguments are decoded."""

    chunk: int
    position: int


class TaskCompleted(Message, frozen=True):
    """The attempt completed with this result; no more output follows from it."""

    chunk: int
    position: int
    document: str
    run_ms: float
    """Measured in the child; the worker's own measurement would include the time reports spend in transit."""

    def __post_init__(self) -> None:
        _check_report(self.run_ms, self.document)


class TaskFailed(Message, frozen=True):
    """The attempt ended in another way; no more output follows from it."""

    chunk: int
    position: int
    outcome: EncodedOutcome
    run_ms: float

    def __post_init__(self) -> None:
        _check_report(self.run_ms, self.outcome.document)
        if self.outcome.outcome is TaskAttemptOutcome.COMPLETED:
            raise ValueError("reported a completed task as failed")


_scan_json = json.Decoder(Raw).decode
"""Raises if a text is not JSON; builds nothing."""


def _check_report(run_ms: float, document: str) -> None:
    # User code can write to the pipe of its child, so a report is checked when it is decoded.
    if not 0 <= run_ms < inf:
        raise ValueError(f"run_ms is {run_ms}")
    _scan_json(document)


class Recalled(Message, frozen=True):
    """These tasks left the child's queue and will not begin there."""

    tasks: tuple[TaskRef, ...]


class ChildHeartbeat(Message, frozen=True):
    """The child is alive; answered by `HeartbeatAck`."""


class TaskLabel(NamedTuple):
    """The task that wrote a log line."""

    task_id: str
    task_name: str
    attempt: int


class LogLine(Message, frozen=True):
    """A log record or a printed line of the child; `task` is None if it is unknown."""

    task: TaskLabel | None
    level: int
    logger: str
    message: str
    exception: str | None = None
    """The formatted traceback."""
    fields: dict[str, str | bool | int | float | None] = {}
    """What the record has beyond the standard attributes, from `extra=` or a filter."""


OUTPUT_LOGGER: Final = "horsies.task"
"""The logger of printed lines and of unhandled exceptions."""
OUTPUT_LEVELS: Final = {"stdout": logging.INFO, "stderr": logging.WARNING}


Command: TypeAlias = StartChild | RunTasks | Recall | CancelTask | HeartbeatAck | Quit
Report: TypeAlias = (
    AppLoaded | Ready | StartFailed | TaskBegan | TaskCompleted | TaskFailed | Recalled | ChildHeartbeat | LogLine
)


class ExitStatus(IntEnum):
    """Exit statuses that a child chooses itself."""

    DONE = 0
    START_FAILED = 1
    OUT_OF_MEMORY = 71
    CHANNEL_LOST = 72


EXIT_STATUS_BYTES: Final = {status: bytes([status]) for status in ExitStatus}
"""Sent before exiting. Built in advance because a child that is out of memory cannot allocate."""

encode = msgpack.Encoder().encode
decode_command = msgpack.Decoder(Command).decode
decode_reports = msgpack.Decoder(list[Report]).decode

# Framing: four bytes of length, then the message.

_LENGTH = struct.Struct("!I")
READ_BYTES: Final = 256 * 1024


class ProtocolError(Exception):
    """The peer sent something the protocol does not allow."""


def encode_frame(message: bytes) -> bytes:
    """Prefix a message with its length."""
    return _LENGTH.pack(len(message)) + message


class FrameReader:
    """Splits a byte stream into messages, regardless of how the stream is fragmented."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._unread = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the messages completed by `data`; raise ProtocolError at an oversized one, after those before it."""
        if self._unread:
            self._unread += data
            unread = bytes(self._unread) if self._has_whole_message() else b""
        else:
            unread = data
        start, size, length_size = 0, len(unread), _LENGTH.size
        try:
            while size - start >= length_size:
                (length,) = _LENGTH.unpack_from(unread, start)
                if length > self._max_bytes:
                    raise ProtocolError(f"message of {length} bytes exceeds the limit of {self._max_bytes} bytes")
                end = start + length_size + length
                if end > size:
                    break
                message = unread[start + length_size : end]
                start = end  # before the yield, so that an abandoned generator does not deliver the message again
                yield message
        finally:
            if unread:
                self._unread[:] = memoryview(unread)[start:]

    def _has_whole_message(self) -> bool:
        """Avoids copying the buffer for each of the thousands of fragments of a long message."""
        if len(self._unread) < _LENGTH.size:
            return False
        (length,) = _LENGTH.unpack_from(self._unread)
        return length > self._max_bytes or len(self._unread) >= _LENGTH.size + length


class FrameWriter:
    """Writes frames to a non-blocking socket and buffers what the socket does not take.

    Messages to a closed peer are dropped without an error: the exit of a child is detected by its pid.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        self._loop = loop
        self._sock = sock
        self._unsent = bytearray()
        self._is_closed = False

    def write(self, messages: Iterable[bytes]) -> None:
        if self._is_closed:
            return
        data = b"".join(map(encode_frame, messages))
        if self._unsent:
            self._unsent += data
        elif (sent := self._send(data)) < len(data) and not self._is_closed:
            self._unsent += memoryview(data)[sent:]
            self._loop.add_writer(self._sock, self._flush)

    def close(self) -> None:
        if self._unsent:
            self._loop.remove_writer(self._sock)
        self._unsent.clear()
        self._is_closed = True

    def _flush(self) -> None:
        del self._unsent[: self._send(self._unsent)]
        if not self._unsent:
            self._loop.remove_writer(self._sock)

    def _send(self, data: bytes | bytearray) -> int:
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            self.close()
            return 0
