"""Commands of `horsies` as processes of their own, forked from one that has loaded the program already.

Loading it takes most of a short command's time and a second of a worker's start, and the tests run hundreds of them.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

HERE = (sys.executable, "-m", "horsies_ops.cli")
"""The program of this tree."""
LARGEST_REQUEST = 1 << 20
LOADED = ("ops", "reads.workflows", "reads.stale", "actions.apply", "actions.plan", "sweep", "cleanup")
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
    "worker",
)


class Ended(NamedTuple):
    code: int
    stdout: str
    stderr: str


class Command:
    """A command that runs, with what tests ask of a `subprocess.Popen`; it leads a session of its own."""

    def __init__(self, arguments: Sequence[str], answers: socket.socket) -> None:
        self._arguments = arguments
        self._answers = answers
        self.pid = int(answers.recv(64))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """How it ended; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._answers.settimeout(timeout)
            try:
                self.returncode = int(self._answers.recv(64))
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(list(self._arguments), timeout or 0) from None
            self._answers.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


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
        """Wait for a command to end, which it does by our hand when its time is over."""
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            outputs = stdout.fileno(), stderr.fileno()
            command = self.start(arguments, cwd=cwd, environment=environment, outputs=outputs)
            try:
                code = command.wait(timeout_s)
            finally:
                command.kill()
                command.wait()
            return Ended(code, *map(_text, outputs))

    def start(
        self, arguments: Sequence[str], *, cwd: Path, environment: Mapping[str, str], outputs: tuple[int, int]
    ) -> Running:
        """A command whose stdout and stderr are these files; whoever starts it waits for it."""
        request = json.dumps({"arguments": arguments, "cwd": str(cwd), "environment": environment}).encode()
        answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._line, [request], [*outputs, theirs.fileno()])
        return Command(arguments, answers)

    def close(self) -> None:
        self._line.close()
        self._process.wait()


Running = Command | subprocess.Popen[bytes]


def start_in_new_interpreter(
    arguments: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    outputs: tuple[int, int],
    program: Sequence[str] = HERE,
) -> Running:
    """The same for a program that is another one, or that must read what an interpreter reads at its start."""
    stdout, stderr = outputs
    return subprocess.Popen(
        [*program, *arguments],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )


@cache
def command_server() -> CommandServer:
    """The one of this process."""
    server = CommandServer()
    atexit.register(server.close)
    return server


def _text(fd: int) -> str:
    return os.pread(fd, os.fstat(fd).st_size, 0).decode()


def _load() -> None:
    for name in LOADED:
        import_module(f"horsies_ops.{name}")
    for name in COMMANDS:
        import_module(f"horsies_ops.cli.commands.{name}")


def _become(arguments: list[str], cwd: str, environment: dict[str, str], stdout: int, stderr: int) -> None:
    """Make this process look like one that was just started for a command."""
    os.setsid()
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
