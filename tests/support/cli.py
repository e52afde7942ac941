"""Commands of `horsies` as processes of their own, forked from one that has loaded the program already.

Loading it takes most of a short command's time and a second of a worker's start, and the tests run hundreds of them.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

PROGRAM = (sys.executable, "-m", "horsies_ops.cli")
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


class CommandExit(NamedTuple):
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

    def run(
        self, arguments: Sequence[str], *, cwd: Path, environment: Mapping[str, str], timeout_s: float
    ) -> CommandExit:
        """Wait for a command to end, which it does by our hand when its time is over."""
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            outputs = stdout.fileno(), stderr.fileno()
            command = self.start(arguments, cwd=cwd, environment=environment, outputs=outputs)
            try:
                code = command.wait(timeout_s)
            finally:
                command.kill()
                command.wait()
            return CommandExit(code, *map(_text, outputs))

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
    program: Sequence[str] = PROGRAM,
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


# The `horsies` executable, run as a user runs it.

LONGEST_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> Any:
        return json.loads(self.stdout)


@dataclass(frozen=True, slots=True, kw_only=True)
class Executable:
    """Runs `horsies` in a folder, with an environment that has no settings but those given."""

    cwd: Path
    environment: dict[str, str] = field(default_factory=dict[str, str])
    program: tuple[str, ...] = PROGRAM

    def __call__(self, *arguments: str, **environment: str) -> CommandResult:
        settings = self._settings(environment)
        if self.program is PROGRAM:
            ended = command_server().run(arguments, cwd=self.cwd, environment=settings, timeout_s=LONGEST_S)
            return CommandResult(code=ended.code, stdout=ended.stdout, stderr=ended.stderr)
        done = subprocess.run(
            [*self.program, *arguments],
            cwd=self.cwd,
            env=settings,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
        )
        return CommandResult(code=done.returncode, stdout=done.stdout, stderr=done.stderr)

    @contextmanager
    def start(self, *arguments: str, **environment: str) -> Generator[RunningCommand]:
        """A command that runs until it is told to stop; killed by its pid if it still runs at the end."""
        log = self.cwd / "stderr.log"
        with log.open("wb") as stderr, (self.cwd / "stdout.log").open("wb") as stdout:
            popen = self._start(arguments, self._settings(environment), (stdout.fileno(), stderr.fileno()))
        try:
            yield RunningCommand(popen, log)
        finally:
            popen.kill()
            popen.wait()

    def _start(self, arguments: tuple[str, ...], settings: dict[str, str], outputs: tuple[int, int]) -> Running:
        if self.program is PROGRAM:
            return command_server().start(arguments, cwd=self.cwd, environment=settings, outputs=outputs)
        return start_in_new_interpreter(
            arguments, cwd=self.cwd, environment=settings, outputs=outputs, program=self.program
        )

    def _settings(self, environment: dict[str, str]) -> dict[str, str]:
        return {**_clean_environment(), **self.environment, **environment}


@dataclass(frozen=True, slots=True)
class RunningCommand:
    """A command that runs."""

    popen: Running
    log: Path

    @property
    def stderr(self) -> str:
        return self.log.read_text()

    @property
    def stdout(self) -> str:
        return self.log.with_name("stdout.log").read_text()

    def wait_for_output(self, text: str, *, within_s: float = 30.0) -> None:
        deadline = time.monotonic() + within_s
        while text not in self.stderr:
            assert self.popen.poll() is None, self.stderr
            assert time.monotonic() < deadline, self.stderr
            time.sleep(0.01)

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(timeout=20)


def _clean_environment() -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if not name.startswith("HORSIES_") and name != "DATABASE_URL"
    }


# A folder of the user's with Python files in it.

APP = "from horsies import Horsies\napp = Horsies()\n"

TASK = """
from horsies import TaskError, TaskResult
from {app} import app

@app.task("{name}")
def {name}(number: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=number)
"""


@dataclass(frozen=True, slots=True)
class Project:
    folder: Path

    def write(self, file: str, text: str = "") -> Path:
        """Write a file, and let it be found by whoever imports next."""
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
        importlib.invalidate_caches()
        return path

    def write_task(self, file: str, *, name: str, app: str = "main") -> Path:
        """Write a module with one task of the app in module `app`."""
        return self.write(file, TASK.format(name=name, app=app))


# The examples in our documents, taken out of them.

ROOT = Path(__file__).resolve().parents[2]

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"# (\S+\.\w+)\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A block of a document."""

    document: str
    language: str
    text: str
    line: int
    """The line before its first."""

    @property
    def file_name(self) -> str | None:
        """The file that the block stands for, named in a comment on its first line."""
        found = _FILE_NAME.match(self.text)
        return found[1] if found else None

    def run_in(self, namespace: dict[str, object]) -> None:
        """Run it; a traceback names the document and the line in it."""
        code = compile("\n" * self.line + self.text, self.document, "exec")
        exec(code, namespace)  # noqa: S102  # that is what examples are for


def examples_of(document: str, *, language: str | None = None) -> Iterator[Example]:
    """The blocks of a document, or those in one language."""
    text = (ROOT / document).read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start(2))
        if language in (None, found[1]):
            yield Example(document=document, language=found[1], text=found[2], line=line)


def program_of(document: str) -> str:
    """The Python examples that stand for no file, as one program in which each line has its number in the document."""
    lines: list[str] = []
    for example in examples_of(document, language="python"):
        if example.file_name is None:
            lines += [""] * (example.line - len(lines)) + example.text.splitlines()
    return "\n".join(lines) + "\n"


def write_files_of(document: str, folder: Path) -> list[str]:
    """Write each example that stands for a file into `folder`; returns their names."""
    named = {each.file_name: each.text for each in examples_of(document) if each.file_name is not None}
    for name, text in named.items():
        (folder / name).write_text(text)
    return list(named)


if __name__ == "__main__":
    _load()
    if _serve(socket.socket(fileno=int(sys.argv[1]))):
        import_module("horsies_ops.cli.main").main()
