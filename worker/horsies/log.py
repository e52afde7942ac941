"""Logging to stderr, as text or JSON; stdout is for command output only."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, TextIO

from horsies.model.text import sanitize_text

LogFormat = Literal["text", "json"]
STATEMENT_LOGGER = "horsies.statements"

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


def extras(record: logging.LogRecord) -> Mapping[str, object]:
    """Return the fields that the caller added with `extra=`: task ids, queues, counts."""
    return {key: value for key, value in record.__dict__.items() if key not in _STANDARD_FIELDS}


class TextFormatter(logging.Formatter):
    """One event per line: `2026-01-31 12:00:00.123 INFO  horsies.claim  claimed 3 tasks  queue=mail`."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created).astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        fields = "".join(f"  {key}={sanitize_text(str(value))}" for key, value in extras(record).items())
        line = f"{at} {record.levelname:<7} {record.name}  {sanitize_text(record.getMessage())}{fields}"
        if not record.exc_info:
            return line
        # Line by line: the message of an exception may hold anything, the line breaks of a traceback are ours.
        traceback = self.formatException(record.exc_info).split("\n")
        return "\n".join([line, *map(sanitize_text, traceback)])


class JsonFormatter(logging.Formatter):
    """One JSON object per line, timestamps in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **extras(record),
        }
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document, default=str)
