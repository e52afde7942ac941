"""The `horsies` executable, run as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.support.commands import HERE, command_server, start_in_new_interpreter

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from tests.support.commands import Running

LONGEST_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
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
    program: tuple[str, ...] = HERE

    def __call__(self, *arguments: str, **environment: str) -> Answer:
        settings = self._settings(environment)
        if self.program is HERE:
            ended = command_server().run(arguments, cwd=self.cwd, environment=settings, timeout_s=LONGEST_S)
            return Answer(code=ended.code, stdout=ended.stdout, stderr=ended.stderr)
        done = subprocess.run(
            [*self.program, *arguments],
            cwd=self.cwd,
            env=settings,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
        )
        return Answer(code=done.returncode, stdout=done.stdout, stderr=done.stderr)

    @contextmanager
    def at_work(self, *arguments: str, **environment: str) -> Generator[AtWork]:
        """A command that runs until it is told to stop; killed by its pid if it still runs at the end."""
        log = self.cwd / "stderr.log"
        with log.open("wb") as stderr, (self.cwd / "stdout.log").open("wb") as stdout:
            popen = self._start(arguments, self._settings(environment), (stdout.fileno(), stderr.fileno()))
        try:
            yield AtWork(popen, log)
        finally:
            popen.kill()
            popen.wait()

    def _start(self, arguments: tuple[str, ...], settings: dict[str, str], outputs: tuple[int, int]) -> Running:
        if self.program is HERE:
            return command_server().start(arguments, cwd=self.cwd, environment=settings, outputs=outputs)
        return start_in_new_interpreter(
            arguments, cwd=self.cwd, environment=settings, outputs=outputs, program=self.program
        )

    def _settings(self, environment: dict[str, str]) -> dict[str, str]:
        return {**_clean_environment(), **self.environment, **environment}


@dataclass(frozen=True, slots=True)
class AtWork:
    """A command that runs."""

    popen: Running
    log: Path

    @property
    def said(self) -> str:
        return self.log.read_text()

    @property
    def printed(self) -> str:
        return self.log.with_name("stdout.log").read_text()

    def until_said(self, text: str, *, within_s: float = 30.0) -> None:
        deadline = time.monotonic() + within_s
        while text not in self.said:
            assert self.popen.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.01)

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(timeout=20)


def _clean_environment() -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if not name.startswith("HORSIES_") and name != "DATABASE_URL"
    }
