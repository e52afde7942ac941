"""`horsies worker` on a pseudo-terminal."""

from __future__ import annotations

import re

from tests.support.cli import Executable, Project
from tests.support.terminal import on_terminal

TASKS = """
import time
from pathlib import Path
from horsies import Horsies, RetryPolicy
app = Horsies()

@app.task
def wait(file: str) -> str:
    print("waiting")
    while not Path(file).exists():
        time.sleep(0.01)
    return file

@app.task
def greet(name: str) -> str:
    return name

@app.task(
    exception_mapper={ConnectionError: "BANK_DOWN"},
    retry_policy=RetryPolicy.fixed([60, 60], auto_retry_for=["BANK_DOWN"], jitter=False),
)
def charge() -> int:
    raise ConnectionError("no answer")
"""


def test_each_task_has_a_line_while_there_are_few(horsies: Executable, database_url: str) -> None:
    Project(horsies.cwd).write("main.py", TASKS)
    environment = {"HORSIES_BROKER__DATABASE_URL": database_url, "NO_COLOR": "1"}
    arguments = ("worker", "main:app", "--processes", "1")
    with on_terminal("horsies_ops.cli", *arguments, cwd=horsies.cwd, environment=environment) as worker:
        worker.wait_until(lambda text: "ready, serving default" in text)
        assert "starting 1 child\n" in re.sub(" +\n", "\n", worker.terminal.text)
        for task in (["greet", "Ada"], ["charge"]):
            assert horsies("task", "send", *task, "--app", "main:app", **environment).code == 0
        worker.wait_until(lambda text: re.search(r"\d ✓ greet  [0-9a-f]{8} [\d.]+ ms", text) is not None)
        retried = r"\d ✗ charge [0-9a-f]{8} [\d.]+ ms BANK_DOWN: ConnectionError: no answer, retry 1/2 in 1m00s"
        worker.wait_until(lambda text: re.search(retried, text) is not None)
        worker.press("\x03")
        assert worker.process.wait(timeout=20) == 0


def test_closed_terminal_lets_running_tasks_finish(horsies: Executable, database_url: str) -> None:
    Project(horsies.cwd).write("main.py", TASKS)
    environment = {"HORSIES_BROKER__DATABASE_URL": database_url}
    arguments = ("worker", "main:app", "--processes", "1")
    with on_terminal("horsies_ops.cli", *arguments, cwd=horsies.cwd, environment=environment) as worker:
        worker.wait_until(lambda text: "ready, serving default" in text)
        file = horsies.cwd / "go"
        sent = horsies("task", "send", "wait", str(file), "--app", "main:app", "--json", **environment)
        worker.wait_until(lambda text: "waiting" in text)
        worker.close_terminal()
        file.touch()
        assert worker.process.wait(timeout=20) == 0
    shown = horsies("task", "show", sent.document["id"], "--json", **environment).document
    assert shown["status"] == "COMPLETED"
