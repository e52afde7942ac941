"""The log of a worker on a terminal: a line for each task while there are few, short times, colours."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta

from horsies.engine import events
from horsies.engine.reporter import EventText
from horsies.log import TextFormatter, format_fields
from horsies.model.task import TaskStatus
from horsies.model.text import first_line, format_age, sanitize_text
from horsies_ops.cli.output import Colour

MAX_NAME_WIDTH = 24
MAX_MESSAGE_CHARS = 100
_BOLD, _DIM, _RED, _GREEN, _YELLOW, _RESET = "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"
_LEVEL_COLOURS = {logging.DEBUG: _DIM, logging.WARNING: _YELLOW, logging.ERROR: _RED, logging.CRITICAL: _RED}


def use_terminal_format(task_names: Iterable[str]) -> None:
    """Format the log for people; only for a log that a terminal shows."""
    for handler in logging.getLogger("horsies").handlers:
        handler.setFormatter(TerminalFormatter(task_names))


def banner_lines(title: str, facts: Mapping[str, str]) -> Iterator[str]:
    """Yield what a worker prints at its start, in colour on a terminal."""
    yield _paint(sanitize_text(title), _BOLD)
    for name, value in facts.items():
        yield f"  {_paint(f'{name:<11}', _DIM)} {sanitize_text(value)}"


class TerminalFormatter(TextFormatter):
    """`12:00:00 ✓ greet 8f3ac06b 74 ms` for a finished task, `12:00:00 message  key=value` for most other records."""

    def __init__(self, task_names: Iterable[str]) -> None:
        super().__init__()
        self._name_width = min(max(map(len, task_names), default=0), MAX_NAME_WIDTH)
        self._done, self._failed = ("✓", "✗") if _can_write("✓✗") else ("+", "x")

    def format_line(self, record: logging.LogRecord) -> str:
        at = _paint(f"{datetime.fromtimestamp(record.created).astimezone():%H:%M:%S}", _DIM)
        match record.args:
            case (EventText(event=event),) if (text := self._event_text(event)) is not None:
                return f"{at} {text}"
            case _:
                pass
        parts = [at]
        if record.levelno != logging.INFO:
            parts.append(_paint(record.levelname, _LEVEL_COLOURS.get(record.levelno, "")))
        if not record.name.startswith("horsies."):
            parts.append(_paint(sanitize_text(record.name), _DIM))
        parts.append(sanitize_text(record.getMessage()) + _paint(format_fields(record), _DIM))
        return " ".join(parts)

    def _event_text(self, event: events.Event) -> str | None:
        """Return the line of an event; None if it has none of its own."""
        match event:
            case events.TaskFinished():
                return self._finished_text(event)
            case events.TasksFailed():
                name, error = self._name(event.task_name), _error_text(event.error_code, event.message)
                count = f"{event.count:,} failed, the last was {event.task_id[-8:]}: "
                return f"{_paint(self._failed, _RED)} {name} {count}{error}"
            case events.TasksRan(count=count, within_s=within_s):
                failed = _paint(f", {event.failed:,} failed", _RED) if event.failed else ""
                retried = _paint(f", {event.retried:,} retried", _YELLOW) if event.retried else ""
                return f"{count:,} tasks in {within_s:g} s ({count / within_s:,.0f} per second){failed}{retried}"
            case events.WorkerStarted(queues=queues):
                return _paint(f"ready, serving {', '.join(map(sanitize_text, queues))}; Ctrl-C stops the worker", _BOLD)
            case events.WorkerDraining():
                return "stopping: claiming no more tasks"
            case events.WorkerStopped(ran=ran, failed=failed, unstored=unstored):
                text = f"stopped after {ran:,} {'attempt' if ran == 1 else 'attempts'}, {failed:,} failed"
                return text + (f", {unstored:,} outcomes not stored" if unstored else "")
            case _:
                return None

    def _finished_text(self, event: events.TaskFinished) -> str:
        duration = "" if event.run_ms is None else f" {_format_ms(event.run_ms)}"
        described = f"{self._name(event.task_name)} {_paint(event.task_id[-8:], _DIM)}{duration}"
        error = _error_text(event.error_code, event.error_message)
        match event.status:
            case TaskStatus.COMPLETED:
                return f"{_paint(self._done, _GREEN)} {described}"
            case TaskStatus.PENDING:
                return f"{_paint(self._failed, _YELLOW)} {described} {error}, {_retry_text(event)}"
            case TaskStatus.FAILED:
                return f"{_paint(self._failed, _RED)} {described} {error}"
            case _:
                return f"{_paint(self._failed, _YELLOW)} {described} {event.status.lower()} {error}".rstrip()

    def _name(self, task_name: str) -> str:
        return f"{sanitize_text(task_name, limit=MAX_NAME_WIDTH):<{self._name_width}}"


def _error_text(code: str | None, message: str | None) -> str:
    parts = [code or "", first_line(message or "", limit=MAX_MESSAGE_CHARS)]
    return ": ".join(sanitize_text(part) for part in parts if part)


def _retry_text(event: events.TaskFinished) -> str:
    of = f"/{event.max_retries}" if event.max_retries else ""
    delay_s = event.retry_delay_s or 0.0
    delay = f"{delay_s:.0f} s" if delay_s < 60 else format_age(timedelta(seconds=delay_s))
    return f"retry {event.retry_number}{of} in {delay}"


def _format_ms(ms: float) -> str:
    if ms < 1_000:
        return f"{ms:.1f} ms" if ms < 1 else f"{ms:.0f} ms"
    return f"{ms / 1_000:.1f} s" if ms < 60_000 else format_age(timedelta(milliseconds=ms))


def _paint(text: str, colour: str) -> str:
    return f"{colour}{text}{_RESET}" if colour and text and Colour.is_enabled_on(sys.stderr) else text


def _can_write(text: str) -> bool:
    try:
        text.encode(sys.stderr.encoding)
    except UnicodeEncodeError:
        return False
    return True
