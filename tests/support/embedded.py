"""Clusters in folders of their own, and other processes that use them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from horsies.embedded import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

NOBODY = 65534

# What must be imported while the interpreter's own folder can still be read, then the change of user.
_PRELUDE = """
import json, os, sys, pathlib, psutil
from horsies.embedded import EmbeddedServer
folder, uid = pathlib.Path(sys.argv[1]), int(sys.argv[2])
if uid != os.geteuid():
    os.setgroups([]); os.setgid(uid); os.setuid(uid)
def say(**facts):
    print(json.dumps(facts), flush=True)
server = EmbeddedServer(folder, durable=False)
"""
_CLIENT = """
with server.use() as lease:
    say(started=lease.started, pid=server.status().pid)
    sys.stdin.readline()
"""


@contextmanager
def folder_of_its_own() -> Generator[Path]:
    """A folder that any user may pass through; whatever server runs directly in it is stopped in the end."""
    folder = Path(tempfile.mkdtemp(prefix="horsies-embedded-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        EmbeddedServer(folder).stop(force=True)
        shutil.rmtree(folder)


def run_script(script: str, folder: Path, *, uid: int | None = None) -> list[dict[str, Any]]:
    """What a process says in which `server` is the one in `folder`; it must end well."""
    process = start_script(script, folder, uid=uid)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return [json.loads(line) for line in output.splitlines()]


def start_script(script: str, folder: Path, *, uid: int | None = None) -> subprocess.Popen[str]:
    user = str(os.geteuid() if uid is None else uid)
    command = [sys.executable, "-c", _PRELUDE + script, str(folder), user]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


class Client:
    """Another process that uses the server until it is told to leave."""

    def __init__(self, folder: Path) -> None:
        self._process = start_script(_CLIENT, folder)

    def joined(self) -> dict[str, Any]:
        """Wait until it is in; tells whether it started the server, and the server's pid."""
        assert self._process.stdout
        return json.loads(self._process.stdout.readline())

    def leave(self) -> None:
        self._process.communicate("leave\n")
        assert self._process.returncode == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def server_log(folder: Path) -> str:
    return "".join(path.read_text() for path in sorted((folder / "log").iterdir()))


def wait_until(condition: Callable[[], bool], *, limit_s: float = 30) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        os.sched_yield()


def server_process(server: EmbeddedServer) -> psutil.Process:
    pid = server.status().pid
    assert pid is not None
    return psutil.Process(pid)
