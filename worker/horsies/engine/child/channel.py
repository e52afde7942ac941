"""The child's end of the line to its worker."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from horsies.engine.child.leaving import leave_with
from horsies.engine.frames import READ_BYTES, FrameReader, framed
from horsies.engine.messages import MAX_ORDER_BYTES, ExitStatus, decode_order, encode

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from horsies.engine.messages import Order, Report


class Channel:
    """Reports from any thread, orders to one of them.

    The worker always reads, so a send that waits for room comes to its end. A process forked from this one is none of
    the worker's children: its end is closed and what it reports goes nowhere.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        # Re-entrant, for a finalizer may print while a report is on its way.
        self._sending = threading.RLock()
        self._is_open = True
        os.register_at_fork(after_in_child=self._forsake)

    def send(self, *reports: Report) -> None:
        """Hand reports over together. Without a line there is nobody to work for: the process ends."""
        data = framed([encode(report) for report in reports])
        with self._sending:
            if self._is_open:
                try:
                    self._sock.sendall(data)
                except OSError:
                    leave_with(ExitStatus.LINE_LOST)

    def orders(self) -> Iterator[Order]:
        """Every order until the worker closes its end."""
        reader = FrameReader(max_bytes=MAX_ORDER_BYTES)
        while data := self._sock.recv(READ_BYTES):
            for frame in reader.feed(data):
                yield decode_order(frame)

    def _forsake(self) -> None:
        self._sending = threading.RLock()
        self._is_open = False
        self._sock.close()
