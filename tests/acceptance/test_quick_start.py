"""The README's quick start, run in an empty folder without any setting."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.cli import LINGERING, Executable, delete_database, write_files_of


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    delete_database(tmp_path)


def test_quick_start_works_as_it_says(folder: Path) -> None:
    assert write_files_of("README.md", folder) == ["horsies.toml", "tasks.py", "send.py"]
    horsies = Executable(cwd=folder, environment=LINGERING)
    assert horsies("check").code == 0
    with horsies.start("worker", "--processes", "1") as worker:
        worker.wait_for_output("worker started")
        assert "setting up PostgreSQL in" in worker.stderr
        sent = replace(horsies, program=(sys.executable,))("send.py")
        assert sent.code == 0, sent.stderr
        assert sent.stdout.endswith("\nHello, Ada!\n")
        assert horsies("task", "send", "greet", "Bob", "--wait").stdout == '{"ok":"Hello, Bob!"}\n'
        tasks = horsies("task", "list", "--json").document["tasks"]
        assert [(task["name"], task["status"]) for task in tasks] == [("greet", "COMPLETED")] * 2
        assert worker.stop() == 0
