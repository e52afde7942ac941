"""Lines from the descriptors of a child, also after its end."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from horsies.engine.pool.process import MAX_FINAL_LINES, MAX_LINE_BYTES, PIPE_CAPACITY_BYTES, PipeReader


class Heard:
    """Lines that were handed on; more than a pipe holds are too many."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.changed = asyncio.Event()

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        assert len(self.lines) <= PIPE_CAPACITY_BYTES, "no end of it"
        self.changed.set()


@pytest.fixture
def heard() -> Heard:
    return Heard()


@contextmanager
def pipe() -> Generator[tuple[int, int]]:
    read, write = os.pipe()
    try:
        yield read, write
    finally:
        os.close(read)
        os.close(write)


@contextmanager
def yes(write: int) -> Generator[None]:
    """Somebody who writes without end."""
    with subprocess.Popen(["yes"], stdout=write) as process:
        try:
            yield
        finally:
            process.kill()


async def test_lines_are_handed_on_as_they_come(heard: Heard) -> None:
    with pipe() as (read, write):
        pipes = PipeReader(asyncio.get_running_loop(), read, heard)
        os.write(write, b"first\nsec")
        await asyncio.wait_for(heard.changed.wait(), 5)
        assert heard.lines == ["first"]
        os.write(write, b"ond\nlast words")
        pipes.drain()
        assert heard.lines == ["first", "second", "last words"]


async def test_a_line_without_an_end_is_cut(heard: Heard) -> None:
    with pipe() as (read, write):
        pipes = PipeReader(asyncio.get_running_loop(), read, heard)
        os.write(write, b"x" * (MAX_LINE_BYTES + 1))
        pipes.drain()
        assert [len(line) for line in heard.lines] == [MAX_LINE_BYTES]


async def test_the_end_of_a_process_is_not_held_up_by_another_that_keeps_writing(heard: Heard) -> None:
    with pipe() as (read, write), yes(write):
        pipes = PipeReader(asyncio.get_running_loop(), read, heard)
        await asyncio.wait_for(heard.changed.wait(), 5)
        heard.lines.clear()
        pipes.drain()
    assert len(heard.lines) <= MAX_FINAL_LINES + 1
    assert "omitted" in heard.lines[0]
