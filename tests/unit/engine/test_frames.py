"""Messages on a stream, in whatever pieces they arrive."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.engine.pool.protocol import FrameReader, FrameWriter, ProtocolError, encode_frames


@pytest.fixture
def line() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


@given(st.lists(st.binary(max_size=50)), st.integers(1, 60))
def test_messages_come_out_as_they_went_in(messages: list[bytes], piece: int) -> None:
    reader, stream = FrameReader(max_bytes=50), encode_frames(messages)
    read = [each for at in range(0, len(stream), piece) for each in reader.feed(stream[at : at + piece])]
    assert read == messages


def test_a_message_that_is_too_long_is_refused_after_those_before_it() -> None:
    messages = FrameReader(max_bytes=4).feed(encode_frames([b"good", b"worse"]))
    assert next(messages) == b"good"
    with pytest.raises(ProtocolError, match="5 bytes"):
        next(messages)


def test_a_message_is_not_read_twice_when_its_reader_gives_up() -> None:
    reader = FrameReader(max_bytes=10)
    stopped = reader.feed(encode_frames([b"one", b"two"]))
    next(stopped)
    del stopped
    assert list(reader.feed(b"")) == [b"two"]


async def test_a_message_larger_than_the_buffer_leaves_as_room_is_made(
    line: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = line
    loop = asyncio.get_running_loop()
    writer, reader = FrameWriter(loop, ours), FrameReader(max_bytes=1 << 24)
    large = b"x" * (8 << 20)
    writer.write([large])
    writer.write([b"after"])
    read: list[bytes] = []
    while len(read) < 2:
        read += reader.feed(await loop.sock_recv(theirs, 1 << 20))
    assert read == [large, b"after"]


async def test_what_is_written_to_a_peer_that_is_gone_is_dropped(line: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = line
    theirs.close()
    writer = FrameWriter(asyncio.get_running_loop(), ours)
    writer.write([b"hello"])
    writer.write([b"again"])
    writer.close()
