"""What commands print: data on stdout, talk on stderr, the same facts as text or as one JSON document."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import PurePath
from typing import Any, TextIO, cast
from uuid import UUID

from horsies.errors import HorsiesError
from horsies.model.text import sanitize_text
from horsies_ops.actions.report import ActionProgress

_UNSEEN = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_BOLD, _RED, _YELLOW, _CYAN, _PLAIN = "\x1b[1m", "\x1b[1;31m", "\x1b[33m", "\x1b[36m", "\x1b[0m"


class Colour:
    """Whether this process may use colour; `--no-color` switches it off for good."""

    is_disabled = False

    @classmethod
    def is_enabled_on(cls, stream: TextIO) -> bool:
        if cls.is_disabled or os.environ.get("NO_COLOR"):
            return False
        return bool(os.environ.get("HORSIES_FORCE_COLOR")) or stream.isatty()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[str] = ()) -> None:
    """Columns as wide as their longest cell, each row one line; those named in `right` are aligned there."""
    from rich.cells import cell_len

    table = [tuple(columns), *(tuple(sanitize_text(cell) for cell in row) for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    coloured = Colour.is_enabled_on(sys.stdout)
    for number, row in enumerate(table):
        cells = [
            " " * (width - cell_len(cell)) + cell if name in right else cell + " " * (width - cell_len(cell))
            for name, cell, width in zip(columns, row, widths, strict=True)
        ]
        line = "  ".join(cells).rstrip()
        print_line(f"{_BOLD}{line}{_PLAIN}" if number == 0 and coloured else line)


def print_facts(facts: Mapping[str, str]) -> None:
    """One `name  value` line a fact, values aligned."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        print_line(f"{name:<{width}}  {sanitize_text(value)}")


def print_line(line: str) -> None:
    sys.stdout.write(line + "\n")


def print_json(document: object) -> None:
    """One document, UTF-8, instants in RFC 3339 UTC, durations in seconds."""
    sys.stdout.write(_json_text(document, indent=2) + "\n")


def json_line(document: object) -> str:
    """The same in one line, for a stream of documents."""
    return _json_text(document, indent=None)


def _json_text(document: object, *, indent: int | None) -> str:
    text = json.dumps(to_json(document), ensure_ascii=False, indent=indent)
    # JSON itself escapes only the first thirty-two controls; the others would act on a terminal just as well.
    return _UNSEEN.sub(lambda character: f"\\u{ord(character[0]):04x}", text)


def to_json(value: Any) -> Any:
    match value:
        case datetime():
            return _to_rfc3339(value)
        case timedelta():
            return value.total_seconds()
        case Enum():
            return value.value
        case UUID() | PurePath():
            return str(value)
        case Mapping():
            return {str(key): to_json(item) for key, item in cast("Mapping[object, Any]", value).items()}
        case list() | tuple() | set() | frozenset():
            return [to_json(item) for item in cast("Iterable[Any]", value)]
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
        case _:
            return value


def _to_rfc3339(at: datetime) -> str:
    # The driver hands out the database's infinities as the first and the last moment, without a time zone.
    aware = at.replace(tzinfo=UTC) if at.utcoffset() is None else at
    try:
        return aware.astimezone(UTC).isoformat().replace("+00:00", "Z")
    except OverflowError:
        return aware.isoformat()


def print_message(line: str) -> None:
    """Say something to the person, not to the program that reads our data."""
    _write_message(sanitize_text(line))


def print_warning(line: str, *, hint: str | None = None) -> None:
    _write_message(f"{_painted('warning', _YELLOW)}: {sanitize_text(line)}")
    if hint:
        _write_message(f"{_painted('hint', _CYAN)}: {sanitize_text(hint)}")


def print_error(error: HorsiesError) -> None:
    """Show an error as `error[CODE]: …` and `hint: …`; several faults one after the other."""
    for each in error.faults:
        _report_one(each)


def _report_one(error: HorsiesError) -> None:
    head, message = error.headline.split(": ", 1)
    _write_message(f"{_painted(head, _RED)}: {_safe_lines(message)}")
    if error.location is not None and str(error.location) not in error.message:
        _write_message(f"  --> {sanitize_text(str(error.location))}")
    for note in error.notes:
        _write_message(f"note: {_safe_lines(note)}")
    if error.help_text:
        _write_message(f"{_painted('hint', _CYAN)}: {_safe_lines(error.help_text)}")


def _write_message(line: str) -> None:
    sys.stdout.flush()  # what was printed before must also be read before
    sys.stderr.write(line + "\n")


def error_document(error: HorsiesError) -> dict[str, object]:
    """An error as part of a JSON document; one that stands for several names each of them in its notes."""
    several = [] if len(error.faults) == 1 else [each.headline for each in error.faults]
    return {
        "code": error.code,
        "message": error.message,
        "location": None if error.location is None else str(error.location),
        "notes": [*error.notes, *several],
        "hint": error.help_text,
    }


def error_documents(error: HorsiesError) -> list[dict[str, object]]:
    """Every error that `error` stands for, as parts of a JSON document."""
    return [error_document(each) for each in error.faults]


def _safe_lines(text: str) -> str:
    return "\n".join(sanitize_text(line) for line in text.splitlines())


def _painted(text: str, colour: str) -> str:
    return f"{colour}{text}{_PLAIN}" if Colour.is_enabled_on(sys.stderr) else text


# Durations and instants as people read them.

_UNITS = (("d", timedelta(days=1)), ("h", timedelta(hours=1)), ("m", timedelta(minutes=1)), ("s", timedelta(seconds=1)))


def format_age(duration: timedelta | None) -> str:
    """Two units at most, as `3m12s` or `1d2h`; below ten seconds to the tenth, and `-` for none."""
    if duration is None:
        return "-"
    if duration < timedelta(0):
        return f"-{format_age(-duration)}"
    if duration < timedelta(seconds=10):
        return f"{duration.total_seconds():.1f}s"
    at = next(number for number, (_, unit) in enumerate(_UNITS) if duration >= unit)
    (name, unit), *smaller = _UNITS[at : at + 2]
    whole, rest = divmod(duration, unit)
    return f"{whole}{name}" + "".join(f"{rest // less:02}{called}" for called, less in smaller)


def format_instant(at: datetime) -> str:
    """To the second, and in UTC wherever one is."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


# How far a long command has come, for people who watch it.


@contextmanager
def progress_bar(doing: str, *, wanted: bool) -> Generator[Callable[[ActionProgress], None] | None]:
    """Something to call as it goes on; None where nobody would see it."""
    if not wanted or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        line = bar.add_task(doing, total=None)
        yield lambda progress: bar.update(line, completed=progress.done, total=progress.total)


@contextmanager
def progress_line(*, wanted: bool) -> Generator[Callable[[str], None]]:
    """Something to say on one line as it goes on, which is gone in the end; nothing where nobody would see it."""
    if not wanted or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as line:
        yield line.update
