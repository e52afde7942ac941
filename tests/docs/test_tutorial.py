"""Follows docs/tutorial.md with real workers and the terminal UI, without any setting of its own."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.cli import LINGERING, Executable, delete_database, write_files_of
from tests.support.terminal import on_terminal


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    delete_database(tmp_path)


@pytest.fixture
def tutorial(folder: Path) -> Executable:
    assert write_files_of("docs/tutorial.md", folder) == ["horsies.toml", "shop.py", "deliver.py"]
    return Executable(cwd=folder, environment=LINGERING)


def shown(horsies: Executable, task_id: str, condition: Callable[[str], bool], *, within_s: float = 40.0) -> str:
    """Return what `task show` prints once it meets the condition."""
    deadline = time.monotonic() + within_s
    while not condition(text := horsies("task", "show", task_id).stdout):
        assert time.monotonic() < deadline, text
        time.sleep(0.1)
    return text


def test_tutorial_works_as_it_says(tutorial: Executable) -> None:
    assert tutorial("check").code == 0
    with tutorial.start("worker") as worker:
        worker.wait_for_output("worker started")
        assert tutorial("task", "send", "greet", "Ada", "--wait").stdout == '{"ok":"Hello, Ada!"}\n'
        assert tutorial("task", "send", "charge", "990", "--wait").stdout == '{"ok":"receipt for 990"}\n'
        (charge,) = tutorial("task", "list", "--name", "charge").stdout.splitlines()[1:]
        assert charge.split()[-1] == "2"  # tries
        refused = tutorial("task", "send", "refund", "5", "--wait")
        assert (refused.code, "cannot refund 5 cents" in refused.stdout) == (1, True)
        assert "refund" in tutorial("task", "list", "--status", "failed").stdout
        delivered = replace(tutorial, program=(sys.executable,))("deliver.py")
        assert delivered.stdout == "parcel A-1 shipped\n", delivered.stderr
        assert "COMPLETED" in tutorial("workflow", "list").stdout
        assert "count_stock" in tutorial("schedule", "list").stdout


def test_killed_worker_is_seen_and_recovered_as_the_tutorial_says(tutorial: Executable, folder: Path) -> None:
    with tutorial.start("worker") as worker:
        worker.wait_for_output("worker started")
        export = tutorial("task", "send", "export").stdout.strip()
        running = shown(tutorial, export, lambda text: "RUNNING" in text)
        with (
            tutorial.start("worker") as other,
            on_terminal("horsies_ops.cli", "tui", cwd=folder, environment=LINGERING) as tui,
        ):
            other.wait_for_output("worker started")
            tui.press("4")
            (owner,) = set(re.findall(r"^  worker ([0-9a-f]{8})", running, re.MULTILINE))
            workers = tutorial("workers", "list").stdout
            (pid,) = re.findall(rf"^{owner} +\S+:(\d+)", workers, re.MULTILINE)
            assert int(pid) == worker.popen.pid
            os.kill(int(pid), signal.SIGKILL)
            tui.wait_until(lambda text: "export" in text)
            tui.wait_until(lambda text: "export" not in text)
            # Not "COMPLETED": the attempts are read after the row.
            recovered = shown(tutorial, export, lambda text: "exported" in text)
            tui.press("8")
            tui.wait_until(lambda text: "recovered" in text)
    assert re.search(r"#1 .*WORKER_CRASHED", recovered)
    assert re.search(r"#2 .*COMPLETED", recovered)
