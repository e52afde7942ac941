"""The `horsies` executable, run as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


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
    program: tuple[str, ...] = (sys.executable, "-m", "horsies_ops.cli")

    def __call__(self, *arguments: str, **environment: str) -> Answer:
        done = subprocess.run(
            [*self.program, *arguments],
            cwd=self.cwd,
            env={**_clean_environment(), **self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
        return Answer(code=done.returncode, stdout=done.stdout, stderr=done.stderr)


def _clean_environment() -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if not name.startswith("HORSIES_") and name != "DATABASE_URL"
    }
