"""Probing an embedded server, its processes, and handles that keep it running."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from horsies.embedded import ServerHandle
from horsies.embedded.server import ServerState, probe_server, server_processes


@pytest.fixture
def path() -> Iterator[Path]:
    # paths of tmp_path can be too long for a socket
    folder = Path(tempfile.mkdtemp())
    yield folder / "socket"
    shutil.rmtree(folder)


@contextmanager
def _server_replying(reply: bytes, path: Path) -> Generator[None]:
    def reply_once() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1024)
            connection.sendall(reply)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1024)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=reply_once)
        thread.start()
        yield
        thread.join()


def test_missing_socket_is_no_response(path: Path) -> None:
    assert probe_server(path, server_uid=os.geteuid()) is ServerState.NOT_LISTENING


def test_socket_without_listener_is_no_response(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert probe_server(path, server_uid=os.geteuid()) is ServerState.NOT_LISTENING


@pytest.mark.parametrize(
    ("reply", "state"),
    [
        (b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I", ServerState.READY),
        (b"E\0\0\0\x20SFATAL\0C53300\0Mtoo many clients\0\0", ServerState.READY),
        (b"E\0\0\0\x20SFATAL\0C57P03\0Mstarting up\0\0", ServerState.NOT_READY),
        (b"", ServerState.NOT_READY),
    ],
)
def test_server_replies_are_classified(path: Path, reply: bytes, state: ServerState) -> None:
    with _server_replying(reply, path):
        assert probe_server(path, server_uid=os.geteuid()) is state


def test_other_programs_in_the_data_folder_are_ignored(tmp_path: Path) -> None:
    program = subprocess.Popen(["sleep", "60"], cwd=tmp_path)
    try:
        assert server_processes(tmp_path) == []
    finally:
        program.kill()
        program.wait()


def _handle(on_release: Callable[[], None]) -> ServerHandle:
    return ServerHandle(url="postgresql:///", folder=Path("/nowhere"), started=True, on_release=on_release)


def test_handle_is_released_once() -> None:
    released: list[str] = []
    handle = _handle(lambda: released.append("released"))
    handle.release()
    handle.release()
    assert released == ["released"]


@pytest.mark.parametrize("interruption", [SystemExit, KeyboardInterrupt])
def test_interrupted_release_can_be_completed(interruption: type[BaseException]) -> None:
    interruptions = [interruption()]
    released: list[str] = []

    def on_release() -> None:
        if interruptions:
            raise interruptions.pop()
        released.append("released")

    handle = _handle(on_release)
    with pytest.raises(interruption):
        handle.release()
    handle.release()
    assert released == ["released"]


def test_release_in_a_signal_handler_runs_once() -> None:
    released: list[str] = []

    def on_release() -> None:
        handle.release()
        released.append("released")

    handle = _handle(on_release)
    handle.release()
    assert released == ["released"]


def test_failed_release_is_not_repeated() -> None:
    attempts: list[str] = []

    def on_release() -> None:
        attempts.append("attempt")
        raise PermissionError

    handle = _handle(on_release)
    with pytest.raises(PermissionError):
        handle.release()
    handle.release()
    assert attempts == ["attempt"]


def test_import_loads_neither_asyncpg_nor_pydantic() -> None:
    script = "import sys, horsies.embedded; print(*{'asyncpg', 'pydantic', 'psutil', 'asyncio'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip() == ""
    )
