"""Framing of messages on a byte stream."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.engine.pool.protocol import FrameReader, FrameWriter, ProtocolError, encode_frame


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    local, peer = socket.socketpair()
    local.setblocking(False)
    peer.setblocking(False)
    with local, peer:
        yield local, peer


@given(st.lists(st.binary(max_size=50)), st.integers(1, 60))
def test_messages_survive_any_fragmentation(messages: list[bytes], fragment_size: int) -> None:
    reader, stream = FrameReader(max_bytes=50), b"".join(map(encode_frame, messages))
    read = [
        message
        for at in range(0, len(stream), fragment_size)
        for message in reader.feed(stream[at : at + fragment_size])
    ]
    assert read == messages


def test_oversized_message_is_refused_after_earlier_ones() -> None:
    messages = FrameReader(max_bytes=4).feed(encode_frame(b"good") + encode_frame(b"worse"))
    assert next(messages) == b"good"
    with pytest.raises(ProtocolError, match="5 bytes"):
        next(messages)


def test_abandoned_iteration_does_not_repeat_messages() -> None:
    reader = FrameReader(max_bytes=10)
    abandoned = reader.feed(encode_frame(b"one") + encode_frame(b"two"))
    next(abandoned)
    del abandoned
    assert list(reader.feed(b"")) == [b"two"]


async def test_message_larger_than_the_socket_buffer_is_sent(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    local, peer = sockets
    loop = asyncio.get_running_loop()
    writer, reader = FrameWriter(loop, local), FrameReader(max_bytes=1 << 24)
    large = b"x" * (8 << 20)
    writer.write([large])
    writer.write([b"after"])
    read: list[bytes] = []
    while len(read) < 2:
        read += reader.feed(await loop.sock_recv(peer, 1 << 20))
    assert read == [large, b"after"]


async def test_writes_to_a_closed_peer_are_dropped(sockets: tuple[socket.socket, socket.socket]) -> None:
    local, peer = sockets
    peer.close()
    writer = FrameWriter(asyncio.get_running_loop(), local)
    writer.write([b"hello"])
    writer.write([b"again"])
    writer.close()
