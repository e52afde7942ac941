"""`horsies worker --reload`: new code is loaded, broken code is not, and running tasks finish."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace

import psutil
import pytest

from tests.support.cli import Executable, Project, RunningCommand
from tests.support.workers import is_alive

CODE = """
import time
from pathlib import Path

from horsies import Horsies

app = Horsies()


@app.task
def greet() -> str:
    return "{version}"


@app.task
def wait() -> str:
    Path("waiting").touch()
    while not Path("go").exists():
        time.sleep(0.02)
    return "{version}"
"""


@pytest.fixture
def project(horsies: Executable) -> Project:
    project = Project(horsies.cwd)
    project.write("main.py", CODE.format(version="first"))
    return project


@pytest.fixture
def on_database(horsies: Executable, database_url: str) -> Executable:
    return replace(horsies, environment={"HORSIES_BROKER__DATABASE_URL": database_url})


@contextmanager
def reloading(horsies: Executable) -> Generator[RunningCommand]:
    with horsies.start("worker", "main:app", "--processes", "1", "--reload") as worker:
        worker.wait_for_output("worker started")
        yield worker
        assert worker.stop() == 0, worker.stderr


def answer(horsies: Executable) -> str:
    return horsies("task", "send", "greet", "--app", "main:app", "--wait", "--json").document["result"]["ok"]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_new_code_runs_while_old_tasks_finish(on_database: Executable, project: Project) -> None:
    with reloading(on_database) as worker:
        sent = on_database("task", "send", "wait", "--app", "main:app")
        until((project.folder / "waiting").exists)
        project.write("main.py", CODE.format(version="second"))
        worker.wait_for_output("reloaded; the worker with the old code stops after its running tasks")
        assert answer(on_database) == "second"
        project.write("go")
        followed = on_database("task", "follow", sent.stdout.strip())
        assert (followed.code, followed.stdout.splitlines()[-1]) == (0, '{"ok":"first"}')


def test_broken_code_is_shown_once_and_the_old_code_runs(on_database: Executable, project: Project) -> None:
    with reloading(on_database) as worker:
        project.write("main.py", "def broken(:\n")
        worker.wait_for_output("the old code keeps running; waiting for a code change")
        assert worker.stderr.count("SyntaxError") == 1
        assert "main.py:1" in worker.stderr
        assert "Traceback" not in worker.stderr
        sent = on_database("task", "send", "greet", "--wait", "--json")
        assert sent.document["result"]["ok"] == "first"
        project.write("main.py", CODE.format(version="fixed"))
        worker.wait_for_output("reloaded")
        assert answer(on_database) == "fixed"


def test_changed_settings_need_a_restart(on_database: Executable, project: Project) -> None:
    with reloading(on_database) as worker:
        project.write("horsies.toml", "[app]\n")
        worker.wait_for_output("horsies.toml changed: stop the worker and start it again to apply it")
        assert "code changed" not in worker.stderr


@pytest.mark.usefixtures("project")
def test_worker_stops_if_its_reloader_is_killed(on_database: Executable) -> None:
    with on_database.start("worker", "main:app", "--processes", "1", "--reload") as reloader:
        reloader.wait_for_output("worker started")
        (worker,) = psutil.Process(reloader.popen.pid).children()
        reloader.popen.send_signal(signal.SIGKILL)
        until(lambda: not is_alive(worker))
        assert "worker stopped" in reloader.stderr


def test_first_start_waits_for_code_that_can_be_imported(on_database: Executable, project: Project) -> None:
    project.write("main.py", "import nowhere_to_be_found\n")
    with on_database.start("worker", "main:app", "--processes", "1", "--reload") as worker:
        worker.wait_for_output("no worker is running; waiting for a code change")
        project.write("main.py", CODE.format(version="fixed"))
        worker.wait_for_output("worker started")
        assert worker.stop() == 0


def test_reload_and_burst_exclude_each_other(horsies: Executable) -> None:
    refused = horsies("worker", "main:app", "--reload", "--burst")
    assert (refused.code, refused.stderr) == (2, "error[HRS-206]: --reload and --burst exclude each other\n")
