"""Each project has its own embedded database, which all its processes find from every working directory."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.cli import LINGERING, Executable, delete_database

APP = """
from horsies import Horsies
app = Horsies()

@app.task
def greet(name: str) -> str:
    return f"Hello, {name}!"
"""
SEND = """
from tasks import greet
print(greet.send("Ada").unwrap().task_id)
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A project without settings; its database is deleted after the test."""
    folder = tmp_path / "project"
    (folder / "below").mkdir(parents=True)
    (folder / "tasks.py").write_text(APP)
    (folder / "send.py").write_text(SEND)
    yield folder
    delete_database(folder)


def test_burst_of_a_new_project_ends(project: Path) -> None:
    horsies = Executable(cwd=project, environment=LINGERING)
    with horsies.start("worker", "tasks:app", "--burst", "--processes", "1") as worker:
        worker.wait_for_output("worker stopped")
        assert worker.popen.wait(timeout=30) == 0


def test_all_processes_find_one_database(project: Path, tmp_path: Path) -> None:
    def horsies(cwd: Path) -> Executable:
        return Executable(cwd=cwd, environment=LINGERING)

    folders, send = (project, project / "below", tmp_path), str(project / "send.py")
    sent = [replace(horsies(cwd), program=(sys.executable,))(send) for cwd in folders]
    status = horsies(project)("db", "status").stdout
    folder = next(line.split()[1] for line in status.splitlines() if line.startswith("folder"))
    assert f"setting up PostgreSQL in {folder} (once)" in sent[0].stderr.splitlines()  # beside a warning for nobody
    assert [each.stderr for each in sent[1:]] == ["", ""]
    assert re.search(rf"^project +{project}$", status, re.MULTILINE)
    (project / "horsies.toml").write_text('[app]\nlocator = "tasks:app"\n')
    for cwd in folders:
        done = horsies(cwd)("worker", str(project / "tasks.py"), "--burst", "--processes", "1")
        assert (done.code, folder in done.stderr) == (0, True), done.stderr
    for cwd in (project, project / "below"):
        tasks = horsies(cwd)("task", "list", "--json").document["tasks"]
        statuses = {task["id"]: task["status"] for task in tasks}
        assert statuses == dict.fromkeys((each.stdout.strip() for each in sent), "COMPLETED")
    shutil.copytree(project, tmp_path / "other", ignore=shutil.ignore_patterns(".horsies"))
    assert horsies(tmp_path / "other")("task", "list").code == 7


@pytest.mark.parametrize("command", [("task", "list"), ("db", "start"), ("db", "status"), ("task", "send", "greet")])
def test_command_outside_a_project_names_both_ways(tmp_path: Path, command: tuple[str, ...]) -> None:
    done = Executable(cwd=tmp_path)(*command)
    assert done.code == 7, done.stderr
    assert "horsies.toml" in done.stderr
    assert ".horsies" in done.stderr
    assert "embedded:///folder" in done.stderr
    assert list(tmp_path.iterdir()) == []
