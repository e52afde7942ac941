"""What a worker and its children say to each other, one message a frame.

The worker gives orders, the child reports. Arguments and results travel as the JSON bytes in which they are stored;
only the child ever decodes them.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Iterator
from datetime import datetime  # msgspec reads annotations at run time
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from msgspec import Struct, msgpack

from horsies.model.task import TaskAttemptOutcome  # the same

if TYPE_CHECKING:
    import asyncio


MAX_REPORT_BYTES: Final = 64 * 1024 * 1024
"""The largest report that a worker takes from a child."""

MAX_COMMAND_BYTES: Final = 2**31
"""More than a row of the database can hold: a child believes its worker."""


class AttemptKey(NamedTuple):
    """One attempt of one task."""

    task_id: str
    claim_token: int


class Message(Struct, frozen=True, array_like=True, tag=True, gc=False):
    """A message; the class name says which one."""


class Assignment(Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """A task as it is handed over: what its code will be told, and its arguments in stored form."""

    task_id: str
    claim_token: int
    task_name: str
    args: bytes
    kwargs: bytes
    context: bytes | None = None
    queue_name: str
    attempt: int
    retry_count: int
    sent_at: datetime
    good_until: datetime | None = None
    timeout_ms: int | None = None
    worker_id: str
    flags: bytes = b"{}"
    possible_overlap: bool = False

    @property
    def key(self) -> AttemptKey:
        return AttemptKey(self.task_id, self.claim_token)

    @property
    def size_bytes(self) -> int:
        return len(self.args) + len(self.kwargs) + len(self.context or b"")


class EncodedOutcome(Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """How an attempt ended, with the result document as it is to be stored."""

    outcome: TaskAttemptOutcome
    document: bytes
    error_code: str | None = None
    error_message: str | None = None
    run_ms: float | None = None
    """By the child's own clock: what its worker could measure is how long reports take as well."""


class RunTasks(Message, frozen=True):
    """Run these, in this order, after what you already have."""

    assignments: tuple[Assignment, ...]


class Recall(Message, frozen=True):
    """Give back what you have not begun; answered by `Recalled`."""


class CancelTask(Message, frozen=True):
    """Stop this one if it can be stopped: unbegun it is given back, a coroutine is cancelled, a function runs on."""

    key: AttemptKey


class HeartbeatAck(Message, frozen=True):
    """I have heard your beat."""


class Quit(Message, frozen=True):
    """Leave once nothing is running."""


class AppLoaded(Message, frozen=True):
    """The app is imported; so many hooks follow, each with a time limit of its own."""

    hooks: int


class Ready(Message, frozen=True):
    """The app is imported and the hooks have run."""

    rss_bytes: int


class StartFailed(Message, frozen=True):
    """The app could not be brought up; the child leaves."""

    message: str


class TaskBegan(Message, frozen=True):
    """This one is being run from now on; nothing of it has been decoded yet."""

    key: AttemptKey


class TaskEnded(Message, frozen=True):
    key: AttemptKey
    outcome: EncodedOutcome


class Recalled(Message, frozen=True):
    """These are given back and will not begin here."""

    keys: tuple[AttemptKey, ...]


class ChildHeartbeat(Message, frozen=True):
    """I live, and this is what I have begun and not ended."""

    keys: tuple[AttemptKey, ...]


Stream: TypeAlias = Literal["stdout", "stderr"]


class OutputLine(Message, frozen=True):
    """A line that code in the child wrote; without a key where nobody knows which task it was."""

    key: AttemptKey | None
    stream: Stream
    line: str


Command: TypeAlias = RunTasks | Recall | CancelTask | HeartbeatAck | Quit
Report: TypeAlias = AppLoaded | Ready | StartFailed | TaskBegan | TaskEnded | Recalled | ChildHeartbeat | OutputLine


class ExitStatus(IntEnum):
    """How a child leaves when it knows why."""

    DONE = 0
    START_FAILED = 1
    OUT_OF_MEMORY = 71
    CHANNEL_LOST = 72


EXIT_STATUS_BYTES: Final = {status: bytes([status]) for status in ExitStatus}
"""What it says before that, ready made: there may be no memory left."""


encode = msgpack.Encoder().encode
decode_command = msgpack.Decoder(Command).decode
decode_report = msgpack.Decoder(Report).decode


# Messages on a stream: four bytes of length, then the message.

_LENGTH = struct.Struct("!I")
READ_BYTES: Final = 256 * 1024


class ProtocolError(Exception):
    """The other side does not speak as agreed."""


def encode_frames(messages: Iterable[bytes]) -> bytes:
    """Messages as they go onto the stream, one after the other."""
    parts: list[bytes] = []
    for message in messages:
        parts += (_LENGTH.pack(len(message)), message)
    return b"".join(parts)


class FrameReader:
    """Cuts a stream into messages, whatever pieces it arrives in."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._unread = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The messages that are complete with `data`; `ProtocolFault` only after those before the fault."""
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
                    raise ProtocolError(f"a message of {length} bytes, where {self._max_bytes} are the most")
                end = start + length_size + length
                if end > size:
                    break
                message = unread[start + length_size : end]
                # Before it is handed out: whatever its reader does, nobody reads it twice.
                start = end
                yield message
        finally:
            if unread:
                self._unread[:] = memoryview(unread)[start:]

    def _has_whole_message(self) -> bool:
        """Whether it is worth while to look: of a long message thousands of pieces may come first."""
        if len(self._unread) < _LENGTH.size:
            return False
        (length,) = _LENGTH.unpack_from(self._unread)
        return length > self._max_bytes or len(self._unread) >= _LENGTH.size + length


class FrameWriter:
    """Writes to a non-blocking socket without ever waiting: what does not fit now leaves as soon as there is room.

    A peer that is gone is no error here, for its death is known from elsewhere; what is said to it is dropped.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        self._loop = loop
        self._sock = sock
        self._unsent = bytearray()
        self._is_closed = False

    def write(self, messages: Iterable[bytes]) -> None:
        if self._is_closed:
            return
        data = encode_frames(messages)
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
