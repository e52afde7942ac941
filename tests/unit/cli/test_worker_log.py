"""The log of a worker on a terminal."""

from __future__ import annotations

import io
import logging
import re
from dataclasses import replace

import pytest

from horsies.engine import events
from horsies.engine.reporter import EventText
from horsies.model.task import TaskStatus
from horsies_ops.cli.output import Colour
from horsies_ops.cli.worker_log import TerminalFormatter, banner_lines

FINISHED = events.TaskFinished(
    worker_id="w",
    task_id="01a1ef56-690d-763b-bbd6-62b5ad1a9b49",
    claim_token=1,
    queue_name="default",
    task_name="greet",
    status=TaskStatus.COMPLETED,
    error_code=None,
    run_ms=74.4,
)
RETRIED = replace(
    FINISHED,
    task_name="charge",
    status=TaskStatus.PENDING,
    error_code="LIMIT_EXCEEDED",
    run_ms=1_240.0,
    retry_number=2,
    max_retries=5,
    retry_delay_s=4.2,
)


@pytest.fixture(autouse=True)
def plain_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stderr that can write any character, without colours."""
    monkeypatch.setattr("sys.stderr", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    monkeypatch.setattr(Colour, "is_disabled", True)


def line_of(
    message: str, *args: object, name: str = "horsies.worker", level: int = logging.INFO, **extra: object
) -> str:
    """Return the formatted record without its time."""
    attributes = {
        "msg": message,
        "args": args,
        "name": name,
        "levelno": level,
        "levelname": logging.getLevelName(level),
    }
    text = TerminalFormatter(["greet", "charge"]).format(logging.makeLogRecord(attributes | extra))
    found = re.fullmatch(r"\d\d:\d\d:\d\d (.*)", text, re.DOTALL)
    assert found, text
    return found[1]


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (FINISHED, "✓ greet  ad1a9b49 74 ms"),
        (replace(FINISHED, run_ms=0.12), "✓ greet  ad1a9b49 0.1 ms"),
        (replace(FINISHED, run_ms=150_000.0), "✓ greet  ad1a9b49 2m30s"),
        (RETRIED, "✗ charge ad1a9b49 1.2 s LIMIT_EXCEEDED, retry 2/5 in 4 s"),
        (replace(RETRIED, retry_delay_s=300.0), "✗ charge ad1a9b49 1.2 s LIMIT_EXCEEDED, retry 2/5 in 5m00s"),
        (
            replace(RETRIED, status=TaskStatus.FAILED, error_message="card limit\nmore"),
            "✗ charge ad1a9b49 1.2 s LIMIT_EXCEEDED: card limit",
        ),
        (
            events.TasksFailed(
                worker_id="w", task_name="greet", count=12, error_code="DOWN", task_id="x-ad1a9b49", message="\x1b[2J"
            ),
            "✗ greet  12 failed, the last was ad1a9b49: DOWN: \\x1b[2J",
        ),
        (
            events.TasksRan(worker_id="w", count=4_812, failed=3, retried=0, within_s=2.0),
            "4,812 tasks in 2 s (2,406 per second), 3 failed",
        ),
    ],
)
def test_tasks_have_one_line(event: events.Event, line: str) -> None:
    assert line_of("%s", EventText(event)) == line


def test_other_events_keep_the_text_of_the_log() -> None:
    event = events.ChildSilent(worker_id="w", pid=7, silent_s=9.0)
    assert line_of("%s", EventText(event), level=logging.WARNING) == f"WARNING {EventText(event)}"


def test_record_of_a_task_names_its_logger_and_task() -> None:
    line = line_of("charging %d", 7, name="shop", task_name="charge", task_id="01a1-ad1a9b49", attempt=2, pid=1)
    assert line == "shop charging 7  task=charge  id=ad1a9b49  attempt=2"


def test_traceback_follows_its_record() -> None:
    text = line_of("unhandled KeyError", level=logging.ERROR, exc_text="Traceback:\n  one\nKeyError\x07")
    assert text == "ERROR unhandled KeyError\nTraceback:\n  one\nKeyError\\x07"


def test_marks_fit_the_encoding_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert line_of("%s", EventText(FINISHED)) == "+ greet  ad1a9b49 74 ms"


def test_banner_is_coloured_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(banner_lines("horsies 1", {"queues": "mail"})) == ["horsies 1", "  queues      mail"]
    monkeypatch.setattr(Colour, "is_disabled", False)
    monkeypatch.setenv("HORSIES_FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert list(banner_lines("horsies 1", {"queues": "mail"})) == [
        "\x1b[1mhorsies 1\x1b[0m",
        "  \x1b[2mqueues     \x1b[0m mail",
    ]
