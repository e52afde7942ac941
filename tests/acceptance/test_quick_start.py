"""The README's quick start, typed into an empty folder."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.support.documents import write_files_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.executable import Executable


def test_the_quick_start_leads_to_a_pending_task(embedded: Executable, tmp_path: Path) -> None:
    assert write_files_of("README.md", tmp_path) == ["horsies.toml", "tasks.py", "send.py"]
    checked = embedded("check")
    assert checked.code == 0, checked.stderr
    sent = replace(embedded, program=(sys.executable,))("send.py")
    assert sent.code == 0, sent.stderr
    (task,) = embedded("task", "list", "--json").document["tasks"]
    assert (task["name"], task["status"]) == ("greet", "PENDING")
    assert sent.stdout == f"sent {task['id']}\n"
