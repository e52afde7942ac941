"""`horsies worker --log-format json`: every line of stdout and stderr is one JSON object."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from tests.support.cli import Executable, Project

TALKATIVE = """
import logging, os, sys, threading, time, warnings
from horsies import Horsies, TaskError, TaskResult

app = Horsies()
print("imported", end="")
print(" now")
sys.stdout.buffer.write(b"bytes\\n")
warnings.warn("old ways", stacklevel=1)
logging.getLogger("mine").warning("by my own logger")
sys.stderr.write("without an end")

@app.task("talk")
def talk() -> TaskResult[None, TaskError]:
    print("out"), print("err", file=sys.stderr), os.system("echo from a program")
    warnings.warn("in a task", stacklevel=1)
    return TaskResult(ok=None)

@app.task("linger")
def linger() -> TaskResult[None, TaskError]:
    print("lingering")
    time.sleep(60)
    return TaskResult(ok=None)
"""


def objects(text: str) -> list[dict[str, Any]]:
    """Parse every line as a JSON log record."""
    lines = [json.loads(line) for line in text.splitlines()]
    assert all({"at", "level", "logger", "message"} <= set(line) for line in lines)
    return lines


@pytest.fixture
def project(horsies: Executable) -> Project:
    project = Project(horsies.cwd)
    project.write("main.py", TALKATIVE)
    return project


@pytest.mark.usefixtures("project")
def test_every_log_line_is_a_json_object(horsies: Executable, database_url: str) -> None:
    url = {"HORSIES_BROKER__DATABASE_URL": database_url}
    with horsies.start("worker", "main:app", "--processes", "1", "--log-format", "json", **url) as worker:
        worker.wait_for_output("worker started")
        for task in ("talk", "linger"):
            assert horsies("task", "send", task, "--app", "main:app", **url).code == 0
        worker.wait_for_output("lingering")
        worker.popen.send_signal(signal.SIGTERM)
        worker.wait_for_output("press Ctrl-C again or send another SIGTERM to kill them now")
        worker.popen.send_signal(signal.SIGINT)
        assert worker.popen.wait(timeout=20) == 0
    lines = objects(worker.stderr)
    (started,) = [line for line in lines if line["message"] == "worker started"]
    assert started["queues"] == ["default"]
    messages = [line["message"] for line in lines]
    for words in ("imported now", "bytes", "without an end", "by my own logger", "out", "err", "from a program"):
        assert words in messages
    for words in ("UserWarning: old ways", "UserWarning: in a task", "still running: linger", "worker stopped"):
        assert any(words in line for line in messages), words
    assert worker.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["nowhere:app"], "HRS-207", "nowhere"),
        (["main:app", "--queues", "mail"], "HRS-103", "mail"),
        (["main:app", "--processes", "0"], "HRS-218", "worker.processes"),
        (["main:app", "--no-such-option"], "HRS-206", "--no-such-option"),
        (["main:app", "--config", "missing.toml"], "HRS-206", "missing.toml"),
        (["main:app", "--database-url", "mysql://me:hunter2@here/db"], "HRS-203", "postgresql"),
        (["broken.py:app"], "HRS-210", "ZeroDivisionError"),
    ],
)
def test_refused_start_is_logged_as_json(
    horsies: Executable, project: Project, arguments: list[str], code: str, word: str
) -> None:
    project.write("broken.py", "1 / 0")
    answer = horsies("worker", *arguments, "--log-format=json")
    assert answer.code != 0
    assert answer.stdout == ""
    (error,) = [line for line in objects(answer.stderr) if line["level"] == "ERROR"]
    assert word in error["message"]
    assert error["code"] == code
    assert "hunter2" not in answer.stderr


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("options", "environment"),
    [((), {"HORSIES_LOG__FORMAT": "json"}), (("--log-format", "json"), {}), (("--log-format=json",), {})],
)
def test_json_log_is_recognized_before_settings_are_read(
    horsies: Executable, options: tuple[str, ...], environment: dict[str, str]
) -> None:
    answer = horsies("worker", "nowhere:app", "--processes", "0", *options, **environment)
    assert [error["hint"] is not None for error in objects(answer.stderr)] == [True]
