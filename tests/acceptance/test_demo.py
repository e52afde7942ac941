"""`horsies demo` as a process."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from tests.support.cli import Executable


def test_demo_runs_all_kinds_of_tasks_and_cleans_up(horsies: Executable) -> None:
    with tempfile.TemporaryDirectory(prefix="horsies-") as folder:
        Path(folder).chmod(0o755)  # as root, the server runs as another user who needs access
        answer = horsies("demo", "--seconds", "10", "--processes", "3", TMPDIR=folder)
        left = list(Path(folder).iterdir())
    assert answer.code == 0, answer.stderr
    facts = dict(line.rsplit(maxsplit=1) for line in answer.stdout.splitlines() if line)
    assert int(facts["tasks COMPLETED"]) > 0
    assert int(facts["tasks FAILED"]) > 0
    assert "killed the second worker" in answer.stderr
    assert "worker 2 was killed (kill -9)" in answer.stderr
    assert "next: horsies init" in answer.stderr
    closing = [line.replace("horsies ", ".venv/bin/horsies ") for line in answer.stderr.splitlines()[-5:]]
    assert max(map(len, closing)) <= 80
    assert re.search(r"which ran [3-9] tasks", answer.stderr)
    assert left == []


def test_demo_tui_needs_a_terminal(horsies: Executable) -> None:
    answer = horsies("demo", "--tui")
    assert answer.code == 2
    assert "terminal" in answer.stderr
