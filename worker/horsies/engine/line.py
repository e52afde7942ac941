"""The worker's end of the line to a child: orders out, reports in, without ever waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import MsgspecError

from horsies.engine.frames import READ_BYTES, FrameReader, FrameWriter, ProtocolFault
from horsies.engine.messages import MAX_REPORT_BYTES, decode_report, encode

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable

    from horsies.engine.messages import Order, Report


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
