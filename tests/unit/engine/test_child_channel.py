"""The worker's channel to a child: single reports are read at once, bursts of reports in batches."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager

import pytest

from horsies.engine.pool.child import READ_INTERVAL_S, ChildChannel
from horsies.engine.pool.protocol import EncodedOutcome, LogLine, Report, encode, encode_frame
from horsies.model.task import TaskAttemptOutcome


class Receiver:
    """Collects the reports of a channel."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        self.expects_more = False
        self.errors: list[str] = []
        self.received: asyncio.Queue[Report] = asyncio.Queue()
        self.closed = asyncio.Event()
        self.channel = ChildChannel(
            loop,
            sock,
            on_reports=self._on_reports,
            on_data=lambda: None,
            on_protocol_error=self._on_protocol_error,
            on_closed=self.closed.set,
            expects_more=lambda: self.expects_more,
        )

    def _on_reports(self, reports: Iterable[Report]) -> None:
        for report in reports:
            if isinstance(report, LogLine) and report.message == "invalid":
                raise ValueError("invalid")
            self.received.put_nowait(report)

    def _on_protocol_error(self, error: str) -> None:
        self.errors.append(error)


@asynccontextmanager
async def open_channel() -> AsyncGenerator[tuple[Receiver, socket.socket]]:
    worker_end, child_end = socket.socketpair()
    worker_end.setblocking(False)
    with worker_end, child_end:
        receiver = Receiver(asyncio.get_running_loop(), worker_end)
        yield receiver, child_end
        receiver.channel.close()


def _send(sock: socket.socket, *names: str) -> None:
    sock.sendall(b"".join(encode_frame(encode([LogLine(None, 20, "horsies.task", name)])) for name in names))


async def _next(receiver: Receiver, count: int) -> list[str]:
    async with asyncio.timeout(5):
        received = [await receiver.received.get() for _ in range(count)]
    return [report.message for report in received if isinstance(report, LogLine)]


async def test_reports_are_received_in_order_in_both_modes() -> None:
    async with open_channel() as (receiver, child):
        for receiver.expects_more in (False, True, True, False):
            _send(child, "a", "b")
            assert await _next(receiver, 2) == ["a", "b"]
            _send(child, "c")
            assert await _next(receiver, 1) == ["c"]


async def test_expected_reports_are_read_in_batches() -> None:
    async with open_channel() as (receiver, child):
        receiver.expects_more = True
        _send(child, "a")
        assert await _next(receiver, 1) == ["a"]
        _send(child, "b")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert receiver.received.empty()
        _send(child, "c")
        assert await _next(receiver, 2) == ["b", "c"]


async def test_reading_resumes_after_a_pause() -> None:
    async with open_channel() as (receiver, child):
        receiver.expects_more = True
        _send(child, "a")
        assert await _next(receiver, 1) == ["a"]
        await asyncio.sleep(10 * READ_INTERVAL_S)
        _send(child, "b")
        assert await _next(receiver, 1) == ["b"]


async def test_close_during_a_burst_is_reported_once() -> None:
    async with open_channel() as (receiver, child):
        receiver.expects_more = True
        _send(child, "a")
        assert await _next(receiver, 1) == ["a"]
        child.close()
        async with asyncio.timeout(5):
            await receiver.closed.wait()
        receiver.closed.clear()
        await asyncio.sleep(5 * READ_INTERVAL_S)
        assert not receiver.closed.is_set()


async def test_drain_reads_reports_before_their_scheduled_read() -> None:
    async with open_channel() as (receiver, child):
        receiver.expects_more = True
        _send(child, "a")
        assert await _next(receiver, 1) == ["a"]
        _send(child, "b", "c")
        receiver.channel.drain()
        assert receiver.received.qsize() == 2


async def test_exception_from_a_report_is_a_protocol_error() -> None:
    async with open_channel() as (receiver, child):
        _send(child, "a", "invalid", "b")
        assert await _next(receiver, 1) == ["a"]
        await asyncio.sleep(5 * READ_INTERVAL_S)
        assert receiver.errors == ["invalid"]
        assert receiver.received.empty()


@pytest.mark.parametrize("expects_more", [False, True])
async def test_channel_reads_nothing_after_a_protocol_error(expects_more: bool) -> None:
    async with open_channel() as (receiver, child):
        receiver.expects_more = expects_more
        _send(child, "a")
        assert await _next(receiver, 1) == ["a"]
        for name in ("invalid", "b", "invalid"):
            _send(child, name)
            await asyncio.sleep(5 * READ_INTERVAL_S)
        receiver.channel.drain()
        assert receiver.errors == ["invalid"]
        assert receiver.received.empty()


@pytest.mark.parametrize("run_ms", [float("nan"), float("inf"), -1.0])
@pytest.mark.parametrize("document", [b'{"ok": 1}'])
async def test_forged_run_time_is_a_protocol_error(run_ms: float, document: bytes) -> None:
    assert await _errors_of_forged_end(run_ms, document)


@pytest.mark.parametrize("document", [b"", b"{", b"\xff\xfe", b'{"ok": "\xff"}', b"[" * 100_000, b"NaN"])
async def test_forged_document_is_a_protocol_error(document: bytes) -> None:
    assert await _errors_of_forged_end(1.0, document)


@pytest.mark.parametrize("outcome", ["COMPLETED", "FAILED"])
async def test_forged_failure_must_not_be_completed(outcome: str) -> None:
    forged = EncodedOutcome(outcome=TaskAttemptOutcome(outcome), document="{}")
    errors = await _errors_of(encode(["TaskFailed", 0, 0, forged, 1.0]))
    assert bool(errors) is (outcome == "COMPLETED")


async def _errors_of_forged_end(run_ms: float, document: bytes) -> list[str]:
    text = b"\xdb" + len(document).to_bytes(4, "big") + document  # msgpack: a text, of any bytes
    return await _errors_of(b"\x95" + encode("TaskCompleted") + encode(0) + encode(0) + text + encode(run_ms))


async def _errors_of(report: bytes) -> list[str]:
    """The protocol errors after a report that no child of ours sends."""
    async with open_channel() as (receiver, child):
        child.sendall(encode_frame(b"\x91" + report))
        await asyncio.sleep(5 * READ_INTERVAL_S)
        return receiver.errors
