"""Logging to stderr, as text or JSON; stdout is for command output only."""

from __future__ import annotations

import json
import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, TextIO, cast

from horsies.model.text import sanitize_text

LogFormat = Literal["text", "json"]
STATEMENT_LOGGER = "horsies.statements"
LOGGERS = (
    "horsies",
    "horsies.app",
    "horsies.broker",
    "horsies.embedded",
    "horsies.engine.pool",
    "horsies.locks",
    "horsies.metrics",
    "horsies.notify",
    "horsies.recovery",
    "horsies.scheduler",
    "horsies.send",
    "horsies.service",
    STATEMENT_LOGGER,
    "horsies.task",
    "horsies.testing",
    "horsies.tui",
    "horsies.worker",
    "horsies.workflow",
)
"""Every logger of horsies."""

# Python 3.12 adds taskName to every record, and uvicorn adds color_message.
_STANDARD_FIELDS = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}


def configure_logging(
    level: str = "INFO", form: LogFormat = "text", *, statements: bool = False, stream: TextIO | None = None
) -> None:
    """Log everything under `horsies` to `stream` [default: stderr]; `statements` logs SQL regardless of the level."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logger = logging.getLogger("horsies")
    logger.handlers[:] = [handler]  # replaced: a second call must not print every line twice
    logger.setLevel(level.upper())
    logger.propagate = False  # nor may a handler that the program has set on the root logger
    logging.getLogger(STATEMENT_LOGGER).setLevel(logging.DEBUG if statements else logging.NOTSET)


def enable_loggers() -> None:
    """Enable the loggers of horsies again: `dictConfig` in a user's module disables those it does not name."""
    for name in LOGGERS:
        logging.getLogger(name).disabled = False


def extras(record: logging.LogRecord) -> Mapping[str, object]:
    """Return the fields that the caller added with `extra=`: task ids, queues, counts."""
    return {key: value for key, value in record.__dict__.items() if key not in _STANDARD_FIELDS}


class StructuredMessage(ABC):
    """The only argument of a log record with the message `%s`: a title and fields, which JSON logs keep apart."""

    __slots__ = ()

    @abstractmethod
    def parts(self) -> tuple[str, Mapping[str, object]]:
        """Return the title and the fields."""

    def __str__(self) -> str:
        title, fields = self.parts()
        return title + "".join(f"  {name}={_field_text(value)}" for name, value in fields.items())


def _field_text(value: object) -> object:
    return ",".join(map(str, cast("tuple[object, ...]", value))) if isinstance(value, tuple) else value


class TextFormatter(logging.Formatter):
    """One event per line: `2026-01-31 12:00:00.123 INFO  horsies.claim  claimed 3 tasks  queue=mail`."""

    def format(self, record: logging.LogRecord) -> str:
        # Line by line: the message of an exception may hold anything, the line breaks of a traceback are ours.
        traceback = (_traceback(self, record) or "").splitlines()
        return "\n".join([self.format_line(record), *map(sanitize_text, traceback)])

    def format_line(self, record: logging.LogRecord) -> str:
        """Format the record without its traceback."""
        at = datetime.fromtimestamp(record.created).astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        line = f"{at} {record.levelname:<7} {sanitize_text(record.name)}  {sanitize_text(record.getMessage())}"
        return line + format_fields(record)


def format_fields(record: logging.LogRecord) -> str:
    """`  task=charge  id=0f5a9c06  attempt=2` and what the caller added."""
    fields = dict(extras(record))
    if "task_name" in fields:  # of a task's record: the process matters only if the task is unknown
        task_id, attempt = str(fields.pop("task_id", "")), fields.pop("attempt", 1)
        fields = {"task": fields.pop("task_name"), "id": task_id[-8:], "attempt": attempt, **fields}
        fields.pop("pid", None)
    return "".join(f"  {sanitize_text(key)}={sanitize_text(str(value))}" for key, value in fields.items())


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str | None:
    """The formatted traceback; a record of a child comes with the text."""
    return formatter.formatException(record.exc_info) if record.exc_info else record.exc_text


class JsonFormatter(logging.Formatter):
    """One JSON object per line, timestamps in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
        }
        match record.args:
            case (StructuredMessage() as message,):
                document["message"], fields = message.parts()
            case _:
                document["message"], fields = record.getMessage(), extras(record)
        document |= {name: value for name, value in fields.items() if name not in document}
        if (exception := _traceback(self, record)) is not None:
            document["exception"] = exception
        return json.dumps(document, default=str)
