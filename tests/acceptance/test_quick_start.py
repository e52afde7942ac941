"""The README's quick start, run in an empty folder."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from horsies.config import load_settings
from tests.support.cli import Executable, examples_of, write_files_of


def test_quick_start_sends_a_pending_task(embedded: Executable, tmp_path: Path) -> None:
    assert write_files_of("README.md", tmp_path) == ["horsies.toml", "tasks.py", "send.py"]
    checked = embedded("check")
    assert checked.code == 0, checked.stderr
    sent = replace(embedded, program=(sys.executable,))("send.py")
    assert sent.code == 0, sent.stderr
    (task,) = embedded("task", "list", "--json").document["tasks"]
    assert (task["name"], task["status"]) == ("greet", "PENDING")
    assert sent.stdout == f"sent {task['id']}\n"


def test_documented_table_gives_the_project_its_own_database(tmp_path: Path) -> None:
    write_files_of("README.md", tmp_path)
    (table,) = [each.text for each in examples_of("README.md", language="toml") if each.file_name is None]
    with (tmp_path / "horsies.toml").open("a") as file:
        file.write(table)
    settings = load_settings(cwd=tmp_path, environ={})
    assert settings.locator is not None
    assert settings.app.broker.database_url.reveal() == "embedded:///absolute/folder"
