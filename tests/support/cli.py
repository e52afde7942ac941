"""Run `horsies` commands in processes forked from a server that has already imported the program.

Imports take most of the time of a short command and a second of a worker's start, and tests run hundreds of them. Also:
project folders with Python files, and the examples in our documents.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import re
import shutil
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
from urllib.parse import parse_qs, urlsplit

PROGRAM = (sys.executable, "-m", "horsies_ops.cli")
MAX_REQUEST_BYTES = 1 << 20
PRELOADED = ("ops", "reads.workflows", "reads.stale", "actions.tasks", "actions.plan", "actions.sweep")
COMMAND_MODULES = ("task", "queues", "workflow", "workers", "history", "recovery", "setup", "db", "worker")


class CommandExit(NamedTuple):
    code: int
    stdout: str
    stderr: str


class Command:
    """A running command in its own session, with the interface of `subprocess.Popen` that tests need."""

    def __init__(self, arguments: Sequence[str], answers: socket.socket) -> None:
        self._arguments = arguments
        self._answers = answers
        self.pid = int(answers.recv(64))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Exit status; None while it runs."""
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
    """Forks a process for each command; safe to use from several threads. Ends with this process."""

    def __init__(self) -> None:
        self._requests, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with server_end:
            fd = server_end.fileno()
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(fd)], pass_fds=[fd], stdin=subprocess.DEVNULL
            )

    def run(
        self, arguments: Sequence[str], *, cwd: Path, environment: Mapping[str, str], timeout_s: float
    ) -> CommandExit:
        """Run a command to its end; kill it after `timeout_s`."""
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
        """Start a command with these files as stdout and stderr; the caller waits for it."""
        request = json.dumps({"arguments": arguments, "cwd": str(cwd), "environment": environment}).encode()
        answers, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with server_end:
            socket.send_fds(self._requests, [request], [*outputs, server_end.fileno()])
        return Command(arguments, answers)

    def close(self) -> None:
        self._requests.close()
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
    """Like `CommandServer.start`, for another program or for a test of interpreter start-up."""
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
    """The command server of this process."""
    server = CommandServer()
    atexit.register(server.close)
    return server


def _text(fd: int) -> str:
    return os.pread(fd, os.fstat(fd).st_size, 0).decode()


def _load() -> None:
    for name in PRELOADED:
        import_module(f"horsies_ops.{name}")
    for name in COMMAND_MODULES:
        import_module(f"horsies_ops.cli.commands.{name}")


def _set_up_process(arguments: list[str], cwd: str, environment: dict[str, str], stdout: int, stderr: int) -> None:
    """Make this forked process look like one just started for a command."""
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    sys.argv = ["horsies", *arguments]
    sys.path[0] = cwd
    sys.path[1:1] = [folder for folder in environment.get("PYTHONPATH", "").split(os.pathsep) if folder]


def _report_exit(pid: int, answers: int) -> None:
    """Send the pid and later the exit status of a command, then exit."""
    with socket.socket(fileno=answers) as connection:
        connection.send(str(pid).encode())
        _, status = os.waitpid(pid, 0)
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _serve(requests: socket.socket) -> bool:
    """Fork for each request. Returns True in each command's process, False here when the client has gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, fds, _, _ = socket.recv_fds(requests, MAX_REQUEST_BYTES, 3)
        if not data:
            return False
        if os.fork() == 0:
            break
        for fd in fds:
            os.close(fd)
    requests.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    stdout, stderr, answers = fds
    if pid := os.fork():
        _report_exit(pid, answers)
    _set_up_process(**json.loads(data), stdout=stdout, stderr=stderr)
    for fd in fds:
        os.close(fd)
    return True


# The `horsies` executable

COMMAND_TIMEOUT_S = 60.0


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
    """Runs `horsies` in a folder; the environment has no settings except those given."""

    cwd: Path
    environment: dict[str, str] = field(default_factory=dict[str, str])
    program: tuple[str, ...] = PROGRAM

    def __call__(self, *arguments: str, **environment: str) -> CommandResult:
        settings = self._settings(environment)
        if self.program is PROGRAM:
            done = command_server().run(arguments, cwd=self.cwd, environment=settings, timeout_s=COMMAND_TIMEOUT_S)
            return CommandResult(code=done.code, stdout=done.stdout, stderr=done.stderr)
        process = subprocess.run(
            [*self.program, *arguments],
            cwd=self.cwd,
            env=settings,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
        )
        return CommandResult(code=process.returncode, stdout=process.stdout, stderr=process.stderr)

    @contextmanager
    def start(self, *arguments: str, **environment: str) -> Generator[RunningCommand]:
        """Start a command; it is killed at the end of the block if it still runs."""
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
        """Send SIGTERM and return the exit status."""
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(timeout=20)


LINGERING = {"HORSIES_PG_LINGER_S": "10"}
"""Environment of commands in a row, which then do not start the embedded server each time."""


def delete_database(project: Path) -> None:
    """Stop the embedded server of a project and delete its data, which for root is not in the project."""
    horsies = Executable(cwd=project)
    horsies("db", "stop", "--force")
    if url := horsies("db", "url").stdout.strip():
        shutil.rmtree(Path(parse_qs(urlsplit(url).query)["host"][0]).parent, ignore_errors=True)


def _clean_environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name == "HORSIES_PG_LINGER_S" or not (name.startswith("HORSIES_") or name == "DATABASE_URL")
    }


# A project folder

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
        """Write a file and invalidate import caches."""
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
        importlib.invalidate_caches()
        return path

    def write_task(self, file: str, *, name: str, app: str = "main") -> Path:
        """Write a module with one task of the app in module `app`."""
        return self.write(file, TASK.format(name=name, app=app))


# Examples in our documents

ROOT = Path(__file__).resolve().parents[2]

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"# (\S+\.\w+)\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A code block of a document."""

    document: str
    language: str
    text: str
    line: int
    """Number of lines before its first line."""

    @property
    def file_name(self) -> str | None:
        """File name given in a comment on its first line, if any."""
        found = _FILE_NAME.match(self.text)
        return found[1] if found else None

    def run_in(self, namespace: dict[str, object]) -> None:
        """Execute it; tracebacks name the document and its line."""
        code = compile("\n" * self.line + self.text, self.document, "exec")
        exec(code, namespace)  # noqa: S102


def examples_of(document: str, *, language: str | None = None) -> Iterator[Example]:
    """Code blocks of a document, all or those in one language."""
    text = (ROOT / document).read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start(2))
        if language in (None, found[1]):
            yield Example(document=document, language=found[1], text=found[2], line=line)


def program_of(document: str) -> str:
    """Python examples without a file name, as one program with the line numbers of the document."""
    lines: list[str] = []
    for example in examples_of(document, language="python"):
        if example.file_name is None:
            lines += [""] * (example.line - len(lines)) + example.text.splitlines()
    return "\n".join(lines) + "\n"


def write_files_of(document: str, folder: Path) -> list[str]:
    """Write each example with a file name into `folder`, those of one file in order; returns the names."""
    named: dict[str, str] = {}
    for example in examples_of(document):
        if example.file_name is not None:
            named[example.file_name] = named.get(example.file_name, "") + example.text
    for name, text in named.items():
        (folder / name).write_text(text)
    return list(named)


if __name__ == "__main__":
    _load()
    if _serve(socket.socket(fileno=int(sys.argv[1]))):
        import_module("horsies_ops.cli.main").main()
