"""Reports come off the line in order and all of them, at once where they are few and together where they flow."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from horsies.engine.pool.child import READ_INTERVAL_S, ChildChannel
from horsies.engine.pool.protocol import AttemptKey, Report, TaskBegan, encode, encode_frames


class Reader:
    """Takes reports, and says whether more are about to follow."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        self.is_flowing = False
        self.taken: asyncio.Queue[Report] = asyncio.Queue()
        self.closed = asyncio.Event()
        self.line = ChildChannel(
            loop,
            sock,
            on_report=self._take,
            on_protocol_error=self._broken,
            on_closed=self.closed.set,
            expects_more=lambda: self.is_flowing,
        )

    def _take(self, report: Report) -> None:
        if isinstance(report, TaskBegan) and report.key.task_id == "refused":
            raise ValueError("refused")
        self.taken.put_nowait(report)

    def _broken(self, why: str) -> None:
        raise AssertionError(why)


@asynccontextmanager
async def _reading() -> AsyncGenerator[tuple[Reader, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        reader = Reader(asyncio.get_running_loop(), ours)
        yield reader, theirs
        reader.line.close()


def _say(sock: socket.socket, *names: str) -> None:
    sock.sendall(encode_frames(encode(TaskBegan(AttemptKey(name, 1))) for name in names))


async def _next(reader: Reader, count: int) -> list[str]:
    async with asyncio.timeout(5):
        taken = [await reader.taken.get() for _ in range(count)]
    return [report.key.task_id for report in taken if isinstance(report, TaskBegan)]


async def test_every_report_is_taken_in_order_whether_they_flow_or_not() -> None:
    async with _reading() as (reader, child):
        for reader.is_flowing in (False, True, True, False):
            _say(child, "a", "b")
            assert await _next(reader, 2) == ["a", "b"]
            _say(child, "c")
            assert await _next(reader, 1) == ["c"]


async def test_while_reports_flow_the_next_ones_wait_to_be_read_together() -> None:
    async with _reading() as (reader, child):
        reader.is_flowing = True
        _say(child, "a")
        assert await _next(reader, 1) == ["a"]
        _say(child, "b")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert reader.taken.empty()
        _say(child, "c")
        assert await _next(reader, 2) == ["b", "c"]


async def test_after_a_pause_of_the_flow_one_is_woken_again() -> None:
    async with _reading() as (reader, child):
        reader.is_flowing = True
        _say(child, "a")
        assert await _next(reader, 1) == ["a"]
        await asyncio.sleep(10 * READ_INTERVAL_S)
        _say(child, "b")
        assert await _next(reader, 1) == ["b"]


async def test_a_line_that_closes_while_reports_flow_is_told_once_and_read_no_more() -> None:
    async with _reading() as (reader, child):
        reader.is_flowing = True
        _say(child, "a")
        assert await _next(reader, 1) == ["a"]
        child.close()
        async with asyncio.timeout(5):
            await reader.closed.wait()
        reader.closed.clear()
        await asyncio.sleep(5 * READ_INTERVAL_S)
        assert not reader.closed.is_set()


async def test_what_was_sent_before_the_end_is_drained_though_its_time_has_not_come() -> None:
    async with _reading() as (reader, child):
        reader.is_flowing = True
        _say(child, "a")
        assert await _next(reader, 1) == ["a"]
        _say(child, "b", "c")
        reader.line.drain()
        assert reader.taken.qsize() == 2


async def test_a_report_that_nobody_can_take_leaves_the_line_open_for_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with _reading() as (reader, child):
        reader.is_flowing = True
        for name in ("a", "refused", "b", "refused", "c"):
            _say(child, name)
            await asyncio.sleep(3 * READ_INTERVAL_S)
        assert await _next(reader, 3) == ["a", "b", "c"]
    assert "refused" in caplog.text
