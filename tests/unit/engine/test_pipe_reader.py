"""Reading the output pipes of a child, during its life and after its exit."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from horsies.engine.pool.process import MAX_FINAL_LINES, MAX_LINE_BYTES, PIPE_CAPACITY_BYTES, PipeReader


class Lines:
    """Collects lines; fails if there are more than a pipe can hold."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.changed = asyncio.Event()

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        assert len(self.lines) <= PIPE_CAPACITY_BYTES, "the drain does not end"
        self.changed.set()


@pytest.fixture
def received() -> Lines:
    return Lines()


@contextmanager
def pipe() -> Generator[tuple[int, int]]:
    read, write = os.pipe()
    try:
        yield read, write
    finally:
        os.close(read)
        os.close(write)


@contextmanager
def endless_writer(write: int) -> Generator[None]:
    """A process that writes to the pipe without end."""
    with subprocess.Popen(["yes"], stdout=write) as process:
        try:
            yield
        finally:
            process.kill()


async def test_lines_are_delivered_as_they_arrive(received: Lines) -> None:
    with pipe() as (read, write):
        reader = PipeReader(asyncio.get_running_loop(), read, received)
        os.write(write, b"first\nsec")
        await asyncio.wait_for(received.changed.wait(), 5)
        assert received.lines == ["first"]
        os.write(write, b"ond\nlast words")
        reader.drain()
        assert received.lines == ["first", "second", "last words"]


async def test_line_without_newline_is_truncated(received: Lines) -> None:
    with pipe() as (read, write):
        reader = PipeReader(asyncio.get_running_loop(), read, received)
        os.write(write, b"x" * (MAX_LINE_BYTES + 1))
        reader.drain()
        assert [len(line) for line in received.lines] == [MAX_LINE_BYTES]


async def test_drain_ends_although_another_process_keeps_writing(received: Lines) -> None:
    with pipe() as (read, write), endless_writer(write):
        reader = PipeReader(asyncio.get_running_loop(), read, received)
        await asyncio.wait_for(received.changed.wait(), 5)
        received.lines.clear()
        reader.drain()
    assert len(received.lines) <= MAX_FINAL_LINES + 1
    assert "omitted" in received.lines[0]
