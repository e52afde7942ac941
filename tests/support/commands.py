"""Commands of `horsies` as processes of their own, forked from one that has loaded the program already.

Loading it takes most of a short command's time, and the tests run hundreds of them.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

LARGEST_REQUEST = 1 << 20
LOADED = ("ops", "reads.workflows", "reads.verdicts", "actions.hand", "actions.planning", "sweep", "cleanup")
COMMANDS = (
    "task",
    "queue",
    "workflow",
    "workers",
    "events",
    "audit",
    "sweep",
    "cleanup",
    "doctor",
    "config",
    "db",
    "check",
)


class Ended(NamedTuple):
    code: int
    stdout: str
    stderr: str


class CommandServer:
    """Runs commands, also from several threads at once; it goes when this process does."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            handed = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(handed)], pass_fds=[handed], stdin=subprocess.DEVNULL
            )

    def run(self, arguments: Sequence[str], *, cwd: Path, environment: Mapping[str, str], timeout_s: float) -> Ended:
        request = json.dumps({"arguments": arguments, "cwd": str(cwd), "environment": environment}).encode()
        answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr, answers:
            with theirs:
                fds = [stdout.fileno(), stderr.fileno(), theirs.fileno()]
                socket.send_fds(self._line, [request], fds)
            code = _code(answers, arguments, timeout_s)
            return Ended(code, _text(stdout.fileno()), _text(stderr.fileno()))

    def close(self) -> None:
        self._line.close()
        self._process.wait()


def _code(answers: socket.socket, arguments: Sequence[str], timeout_s: float) -> int:
    answers.settimeout(timeout_s)
    pid = int(answers.recv(64))
    try:
        return int(answers.recv(64))
    except TimeoutError:
        os.kill(pid, signal.SIGKILL)
        raise subprocess.TimeoutExpired(list(arguments), timeout_s) from None


def _text(fd: int) -> str:
    return os.pread(fd, os.fstat(fd).st_size, 0).decode()


def _load() -> None:
    for name in LOADED:
        import_module(f"horsies_ops.{name}")
    for name in COMMANDS:
        import_module(f"horsies_ops.cli.commands.{name}")


def _become(arguments: list[str], cwd: str, environment: dict[str, str], stdout: int, stderr: int) -> None:
    """Make this process look like one that was just started for a command."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    sys.argv = ["horsies", *arguments]
    sys.path[0] = cwd
    sys.path[1:1] = [each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each]


def _watch(pid: int, answers: int) -> None:
    """Tell how a command ended, and go."""
    with socket.socket(fileno=answers) as line:
        line.send(str(pid).encode())
        _, status = os.waitpid(pid, 0)
        line.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _serve(line: socket.socket) -> bool:
    """Fork for each request; returns in the process of each command, and False here when nobody asks any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, fds, _, _ = socket.recv_fds(line, LARGEST_REQUEST, 3)
        if not data:
            return False
        if os.fork() == 0:
            break
        for fd in fds:
            os.close(fd)
    line.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    stdout, stderr, answers = fds
    if pid := os.fork():
        _watch(pid, answers)
    _become(**json.loads(data), stdout=stdout, stderr=stderr)
    for fd in fds:
        os.close(fd)
    return True


if __name__ == "__main__":
    _load()
    if _serve(socket.socket(fileno=int(sys.argv[1]))):
        import_module("horsies_ops.cli.main").main()
