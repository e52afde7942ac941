"""A folder of the user's with Python files in it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from textwrap import dedent
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

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
