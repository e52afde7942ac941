"""What commands print: data on stdout, talk on stderr, the same facts as text or as one JSON document."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TextIO, cast
from uuid import UUID

from horsies.errors import HorsiesError, MultipleValidationErrors
from horsies.model.text import safe

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

_RED, _CYAN, _PLAIN = "\x1b[1;31m", "\x1b[36m", "\x1b[0m"


class Colour:
    """Whether this process may use colour; `--no-color` switches it off for good."""

    refused = False

    @classmethod
    def wanted_on(cls, stream: TextIO) -> bool:
        if cls.refused or os.environ.get("NO_COLOR"):
            return False
        return bool(os.environ.get("HORSIES_FORCE_COLOR")) or stream.isatty()


def console() -> Console:
    """A rich console on stdout for tables; markup off, since cells hold data."""
    from rich.console import Console

    coloured = Colour.wanted_on(sys.stdout)
    return Console(
        file=sys.stdout,
        no_color=not coloured,
        force_terminal=coloured or None,
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=True,
        width=None if sys.stdout.isatty() else 200,
    )


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(*columns, box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for row in rows:
        table.add_row(*(safe(cell) for cell in row))
    console().print(table)


def print_facts(facts: Mapping[str, str]) -> None:
    """One `name  value` line a fact, values aligned."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        print_line(f"{name:<{width}}  {safe(value)}")


def print_line(line: str) -> None:
    sys.stdout.write(line + "\n")


def print_json(document: object) -> None:
    """One document, UTF-8, instants in RFC 3339 UTC, durations in seconds."""
    sys.stdout.write(json.dumps(to_json(document), ensure_ascii=False, indent=2) + "\n")


def to_json(value: Any) -> Any:
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
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


def talk(line: str) -> None:
    """Say something to the person, not to the program that reads our data."""
    sys.stderr.write(safe(line) + "\n")


def warn(line: str, *, hint: str | None = None) -> None:
    talk(f"warning: {line}")
    if hint:
        talk(f"hint: {hint}")


def report(error: HorsiesError) -> None:
    """Show an error as `error[CODE]: …` and `hint: …`; several faults one after the other."""
    faults = error.report.errors if isinstance(error, MultipleValidationErrors) else (error,)
    for fault in faults:
        _report_one(fault)


def _report_one(error: HorsiesError) -> None:
    head, message = error.headline.split(": ", 1)
    sys.stderr.write(f"{_painted(head, _RED)}: {_safe_lines(message)}\n")
    if error.location is not None:
        sys.stderr.write(f"  --> {safe(str(error.location))}\n")
    for note in error.notes:
        sys.stderr.write(f"note: {_safe_lines(note)}\n")
    if error.help_text:
        sys.stderr.write(f"{_painted('hint', _CYAN)}: {_safe_lines(error.help_text)}\n")


def _safe_lines(text: str) -> str:
    return "\n".join(safe(line) for line in text.splitlines())


def _painted(text: str, colour: str) -> str:
    return f"{colour}{text}{_PLAIN}" if Colour.wanted_on(sys.stderr) else text
