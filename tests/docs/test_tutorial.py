"""Follows docs/tutorial.md with real workers."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from tests.support.cli import Executable, write_files_of

QUICKLY = {"HORSIES_RECOVERY__RUNNING_STALE_THRESHOLD_MS": "4000", "HORSIES_WORKER__PROCESSES": "1"}


def wait_for_status(horsies: Executable, task_id: str, status: str, *, within_s: float = 40.0) -> None:
    deadline = time.monotonic() + within_s
    while (shown := horsies("task", "show", task_id, "--json")).document["status"] != status:
        assert time.monotonic() < deadline, shown.stdout
        time.sleep(0.1)


def test_tutorial_works_as_it_says(database_url: str, tmp_path: Path) -> None:
    assert write_files_of("docs/tutorial.md", tmp_path) == ["horsies.toml", "shop.py", "deliver.py"]
    horsies = Executable(cwd=tmp_path, environment={"HORSIES_BROKER__DATABASE_URL": database_url, **QUICKLY})
    (tmp_path / "second").mkdir()
    second = replace(horsies, cwd=tmp_path / "second")
    assert horsies("check").code == 0
    with horsies.start("worker") as worker:
        worker.wait_for_output("worker started")
        assert horsies("task", "send", "greet", "Ada", "--wait").stdout == '{"ok":"Hello, Ada!"}\n'
        assert horsies("task", "send", "charge", "990", "--wait").stdout == '{"ok":"receipt for 990"}\n'
        refused = horsies("task", "send", "refund", "5", "--wait")
        assert (refused.code, "cannot refund 5 cents" in refused.stdout) == (1, True)
        delivered = replace(horsies, program=(sys.executable,))("deliver.py")
        assert delivered.stdout == "parcel A-1 shipped\n", delivered.stderr
        assert "count_stock" in horsies("schedule", "list").stdout
        export = horsies("task", "send", "export").stdout.strip()
        wait_for_status(horsies, export, "RUNNING")
        with second.start("worker") as other:
            other.wait_for_output("worker started")
            os.kill(worker.popen.pid, signal.SIGKILL)
            wait_for_status(horsies, export, "COMPLETED")
    (failed,) = horsies("task", "list", "--status", "failed", "--json").document["tasks"]
    assert failed["name"] == "refund"
