from __future__ import annotations

import ast
import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import pytest

from horsies.engine import events
from horsies.engine.pool.protocol import OUTPUT_LOGGER
from horsies.engine.reporter import EventText
from horsies.log import LOGGERS, STATEMENT_LOGGER, LogFormat, configure_logging

LOGGER = logging.getLogger("horsies.test")
ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "worker/horsies"


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    logger = logging.getLogger("horsies")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before


def log_output(form: LogFormat, level: str = "INFO") -> io.StringIO:
    stream = io.StringIO()
    configure_logging(level, form, stream=stream)
    return stream


def test_text_line_has_time_level_logger_message_and_fields() -> None:
    stream = log_output("text")
    LOGGER.warning("claimed %d tasks", 3, extra={"queue": "mail"})
    line = stream.getvalue()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} WARNING horsies\.test  claimed 3 tasks  queue=mail\n", line
    )


def test_json_line_is_one_object() -> None:
    stream = log_output("json")
    LOGGER.info("done\n", extra={"task_id": "1"})
    (line,) = stream.getvalue().splitlines()
    document = json.loads(line)
    assert document["at"].endswith("Z")
    assert (document["message"], document["level"], document["task_id"]) == ("done\n", "INFO", "1")


def test_counts_of_a_summary_are_fields_in_json_and_a_sentence_in_text() -> None:
    summary = EventText(events.TasksRan(worker_id="w", count=1204, failed=3, retried=12, within_s=60.0))
    stream = log_output("json")
    LOGGER.info("%s", summary)
    document = json.loads(stream.getvalue())
    assert document["message"] == "tasks ran"
    assert [document[name] for name in ("count", "failed", "retried", "within_s")] == [1204, 3, 12, 60]
    stream = log_output("text")
    LOGGER.info("%s", summary)
    assert stream.getvalue().endswith("  1204 tasks in 60 s (3 failed, 12 retried)\n")


def test_loss_of_a_fork_server_says_that_nothing_is_claimed() -> None:
    stream = log_output("text")
    LOGGER.warning("%s", EventText(events.ForkServerLost(worker_id="w", pid=7, why="died")))
    assert stream.getvalue().endswith(
        "  fork server lost, claiming nothing until another one is ready  pid=7  why=died\n"
    )
    LOGGER.info("%s", EventText(events.ForkServerRestored(worker_id="w")))
    assert stream.getvalue().endswith("  children can be started again\n")


@pytest.mark.parametrize("are_asked_for", [True, False])
def test_statements_are_logged_at_any_level_if_enabled(are_asked_for: bool) -> None:
    stream = io.StringIO()
    configure_logging("WARNING", statements=are_asked_for, stream=stream)
    logging.getLogger(STATEMENT_LOGGER).debug("SELECT 1", extra={"ms": 0.4})
    configure_logging(stream=io.StringIO())
    assert stream.getvalue().endswith("DEBUG   horsies.statements  SELECT 1  ms=0.4\n") is are_asked_for


def test_exception_is_part_of_the_record() -> None:
    stream = log_output("json")
    try:
        raise LookupError("lost")
    except LookupError:
        LOGGER.exception("failed")
    assert "LookupError: lost" in json.loads(stream.getvalue())["exception"]


def test_control_characters_are_escaped() -> None:
    stream = log_output("text")
    LOGGER.info("name %s", "\x1b[2J\nINFO forged")
    assert len(stream.getvalue().splitlines()) == 1
    assert "\x1b" not in stream.getvalue()


def test_traceback_is_escaped_line_by_line() -> None:
    stream = log_output("text")
    try:
        raise LookupError("\x1b[2J\x9b31m\u202e hidden")
    except LookupError:
        LOGGER.exception("failed")
    heading, *trace = stream.getvalue().splitlines()
    assert (heading[-6:], trace[0], trace[-1]) == (
        "failed",
        "Traceback (most recent call last):",
        r"LookupError: \x1b[2J\x9b31m\u202e hidden",
    )


def test_level_filters_records() -> None:
    stream = log_output("text", level="warning")
    LOGGER.info("quiet")
    assert not stream.getvalue()


def test_every_logger_can_be_enabled_again() -> None:
    """After `dictConfig`, which disables the loggers that it does not name."""
    files = (file for folder in ("worker", "horsies_ops", "tui") for file in (ROOT / folder).rglob("*.py"))
    named = {name for file in files for name in re.findall(r'getLogger\("(horsies[^"]*)"\)', file.read_text())}
    assert named | {STATEMENT_LOGGER, OUTPUT_LOGGER} == set(LOGGERS)


def test_services_pass_fields_as_extra_instead_of_in_the_message() -> None:
    files = [
        file for folder in ("engine", "recovery", "scheduler", "workflows") for file in (PACKAGE / folder).rglob("*.py")
    ]
    calls = [call for file in files for call in ast.walk(ast.parse(file.read_text())) if _is_log_call(call)]
    messages = [argument.value for call in calls for argument in call.args if isinstance(argument, ast.Constant)]
    assert len(messages) > 20
    assert [message for message in messages if "=%" in str(message)] == []


def _is_log_call(node: ast.AST) -> TypeGuard[ast.Call]:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    return isinstance(node.func.value, ast.Name) and node.func.value.id == "logger"
