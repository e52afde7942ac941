"""Messages on a stream: four bytes of length, then the message."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Iterable, Iterator

_LENGTH = struct.Struct("!I")
READ_BYTES: Final = 256 * 1024


class ProtocolFault(Exception):
    """The other side does not speak as agreed."""


def framed(messages: Iterable[bytes]) -> bytes:
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
                    raise ProtocolFault(f"a message of {length} bytes, where {self._max_bytes} are the most")
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
        data = framed(messages)
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
