from __future__ import annotations

import shutil
import socket
import tempfile
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from horsies.embedded.server import ServerState, probe_server


@pytest.fixture
def path() -> Iterator[Path]:
    # pytest's own folders can be too deep for a socket
    folder = Path(tempfile.mkdtemp())
    yield folder / "socket"
    shutil.rmtree(folder)


@contextmanager
def _server_saying(reply: bytes, path: Path) -> Generator[None]:
    def answer_once() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1024)
            connection.sendall(reply)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1024)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=answer_once)
        thread.start()
        yield
        thread.join()


def test_missing_socket_is_no_response(path: Path) -> None:
    assert probe_server(path) is ServerState.NO_RESPONSE


def test_socket_without_listener_is_no_response(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert probe_server(path) is ServerState.NO_RESPONSE


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        (b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I", ServerState.READY),
        (b"E\0\0\0\x20SFATAL\0C53300\0Mtoo many clients\0\0", ServerState.READY),
        (b"E\0\0\0\x20SFATAL\0C57P03\0Mstarting up\0\0", ServerState.NOT_READY),
        (b"", ServerState.NOT_READY),
    ],
)
def test_server_replies_are_classified(path: Path, reply: bytes, answer: ServerState) -> None:
    with _server_saying(reply, path):
        assert probe_server(path) is answer
