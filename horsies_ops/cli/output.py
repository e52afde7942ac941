"""Output of commands: data on stdout as text or JSON, messages on stderr."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Generic, TextIO, TypeVar, cast
from uuid import UUID

from horsies.errors import HorsiesError
from horsies.model.text import format_age, sanitize_text

if TYPE_CHECKING:
    from horsies_ops.actions.report import ActionProgress
    from horsies_ops.cli.options import GlobalOptions

R = TypeVar("R")

# C1 controls, and characters that hide text or change its direction.
_INVISIBLE = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_BOLD, _RED, _YELLOW, _CYAN, _RESET = "\x1b[1m", "\x1b[1;31m", "\x1b[33m", "\x1b[36m", "\x1b[0m"


MIN_SHRUNK_WIDTH = 13
"""Columns are not cut below this; a note such as `due in 59m59s` fits."""


class Colour:
    """Decides whether output is coloured; `--no-color` disables it for the whole process."""

    is_disabled = False

    @classmethod
    def is_enabled_on(cls, stream: TextIO) -> bool:
        if cls.is_disabled or os.environ.get("NO_COLOR"):
            return False
        return bool(os.environ.get("HORSIES_FORCE_COLOR")) or stream.isatty()


@dataclasses.dataclass(frozen=True, slots=True)
class TableColumn(Generic[R]):
    """A column of a list: its title, the text of a row, its alignment, and whether it may be cut to fit a terminal."""

    title: str
    text: Callable[[R], str]
    right: bool = False
    can_shrink: bool = False


def show_rows(
    options: GlobalOptions,
    noun: str,
    rows: Sequence[R],
    columns: Sequence[TableColumn[R]],
    *,
    json: bool,
    document: Callable[[R], object] | None = None,
    empty: str | None = None,
    **more: object,
) -> None:
    """Print rows as a table or, with `json`, as a document with the rows under `noun` and the fields in `more`.

    Without rows, `empty` is printed [default: "no" and the noun].
    """
    if json:
        print_json({noun: [(document or row_document)(row) for row in rows], **more})
    elif rows:
        print_rows(rows, columns)
    else:
        options.print_message(empty or f"no {noun}")


def print_rows(rows: Iterable[R], columns: Sequence[TableColumn[R]], *, width: int | None = None) -> None:
    """Print rows as a table; with `width`, columns that can shrink are cut until a line fits."""
    cells = [[sanitize_text(column.text(row), limit=width) for column in columns] for row in rows]
    if width is not None:
        limits = _fitting_widths(columns, cells, width)
        cells = [[sanitize_text(cell, limit=limit) for cell, limit in zip(row, limits, strict=True)] for row in cells]
    print_table([column.title for column in columns], cells, right=[column.title for column in columns if column.right])


def _fitting_widths(columns: Sequence[TableColumn[R]], cells: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the widths of the columns, of which the widest that can shrink is cut first."""
    widths = [max(map(len, texts)) for texts in zip([column.title for column in columns], *cells, strict=True)]
    shrinkable = [index for index, column in enumerate(columns) if column.can_shrink]
    excess = sum(widths) + 2 * (len(columns) - 1) - width
    for _ in range(excess):
        widest = max(shrinkable, key=lambda index: widths[index])
        widths[widest] -= widths[widest] > MIN_SHRUNK_WIDTH
    return widths


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[str] = ()) -> None:
    """Print a header and one line per row. Columns named in `right` are right-aligned."""
    from rich.cells import cell_len

    table = [tuple(columns), *(tuple(sanitize_text(cell) for cell in row) for row in rows)]
    # cell_len, not len: East Asian characters and emoji take two columns.
    widths = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    coloured = Colour.is_enabled_on(sys.stdout)
    for number, row in enumerate(table):
        cells = [
            " " * (width - cell_len(cell)) + cell if name in right else cell + " " * (width - cell_len(cell))
            for name, cell, width in zip(columns, row, widths, strict=True)
        ]
        line = "  ".join(cells).rstrip()
        print_line(f"{_BOLD}{line}{_RESET}" if number == 0 and coloured else line)


def print_facts(facts: Mapping[str, str]) -> None:
    """Print one `name  value` line per fact, with values aligned."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        print_line(f"{name:<{width}}  {sanitize_text(value)}")


def print_line(line: str) -> None:
    sys.stdout.write(line + "\n")


def print_json(document: object) -> None:
    """Print one indented JSON document; times are RFC 3339 in UTC, durations are seconds."""
    sys.stdout.write(_json_text(document, indent=2) + "\n")


def json_line(document: object) -> str:
    """Return a document as one line of JSON, for streams of documents."""
    return _json_text(document, indent=None)


def _json_text(document: object, *, indent: int | None) -> str:
    text = json.dumps(to_json(document), ensure_ascii=False, indent=indent)
    # json.dumps escapes only C0 controls; other control and invisible characters would reach the terminal.
    return _INVISIBLE.sub(lambda character: f"\\u{ord(character[0]):04x}", text)


def to_json(value: Any) -> Any:
    """Convert a value to what `json.dumps` accepts."""
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


def row_document(row: Any, **names: str | None) -> dict[str, Any]:
    """Return a row as JSON fields: a duration gets the suffix `_s`, a `*_json` column its parsed value.

    `names` renames fields; None leaves one out.
    """
    document: dict[str, Any] = {}
    for field in dataclasses.fields(row):
        name = names.get(field.name, field.name)
        if name is None:
            continue
        if name.endswith("_json"):
            name = name.removesuffix("_json")
            document[name] = getattr(row, name)
        else:
            # The annotation, not the value, which may be None.
            is_duration = str(field.type).startswith("timedelta")
            document[f"{name}_s" if is_duration else name] = getattr(row, field.name)
    return document


def program_name() -> str:
    """Return how the user can run `horsies`: by its name if it is on the PATH, else as it was started."""
    given = Path(sys.argv[0])
    if given.name == "__main__.py":
        return f"{sys.executable} -m {__package__}"
    found = shutil.which("horsies")
    return "horsies" if found is not None and Path(found).resolve() == given.resolve() else str(given)


def format_value(value: object) -> str:
    """Format any value for text output: a string as it is, a time or an age as in lists, anything else as JSON."""
    match value:
        case datetime():
            return format_instant(value)
        case timedelta():
            return format_age(value)
        case _:
            plain = to_json(value)
            return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _to_rfc3339(at: datetime) -> str:
    return _to_utc(at).isoformat().replace("+00:00", "Z")


def _to_utc(at: datetime) -> datetime:
    # asyncpg returns infinity and -infinity as datetime.max and datetime.min without a time zone.
    aware = at.replace(tzinfo=UTC) if at.utcoffset() is None else at
    try:
        return aware.astimezone(UTC)
    except OverflowError:
        return aware


def print_message(line: str) -> None:
    """Print a line to stderr."""
    _write_message(sanitize_text(line))


def print_warnings(options: GlobalOptions, warnings: Iterable[str]) -> None:
    """Print warnings to stderr, unless --quiet is given."""
    for warning in () if options.quiet else warnings:
        print_warning(warning)


def print_warning(line: str, *, hint: str | None = None) -> None:
    _write_message(f"{_colour('warning', _YELLOW)}: {sanitize_text(line)}")
    if hint:
        _write_message(f"{_colour('hint', _CYAN)}: {sanitize_text(hint)}")


def print_error(error: HorsiesError) -> None:
    """Print `error[CODE]: …`, its notes and `hint: …` for each fault of an error."""
    for fault in error.faults:
        head, message = fault.headline.split(": ", 1)
        _write_message(f"{_colour(head, _RED)}: {_safe_lines(message)}")
        if fault.location is not None and str(fault.location) not in fault.message:
            _write_message(f"  --> {sanitize_text(str(fault.location))}")
        for note in fault.notes:
            _write_message(f"note: {_safe_lines(note)}")
        if fault.help_text:
            _write_message(f"{_colour('hint', _CYAN)}: {_safe_lines(fault.help_text)}")


def _write_message(line: str) -> None:
    sys.stdout.flush()  # keep stdout and stderr in order where both go to one place
    sys.stderr.write(line + "\n")


def error_document(error: HorsiesError) -> dict[str, object]:
    """Return an error as JSON fields; an error with several faults lists them in its notes."""
    several = [] if len(error.faults) == 1 else [fault.headline for fault in error.faults]
    return {
        "code": error.code,
        "message": error.message,
        "location": None if error.location is None else str(error.location),
        "notes": [*error.notes, *several],
        "hint": error.help_text,
    }


def _safe_lines(text: str) -> str:
    return "\n".join(sanitize_text(line) for line in text.splitlines())


def _colour(text: str, colour: str) -> str:
    return f"{colour}{text}{_RESET}" if Colour.is_enabled_on(sys.stderr) else text


def format_size(number: int) -> str:
    """Format a number of bytes, such as `1.5 MiB`."""
    import humanize

    return humanize.naturalsize(number, binary=True)


def format_instant(at: datetime) -> str:
    """Format a time in UTC to the second."""
    return f"{_to_utc(at):%Y-%m-%d %H:%M:%S}Z"


@contextmanager
def progress_bar(label: str, *, enabled: bool) -> Generator[Callable[[ActionProgress], None] | None]:
    """Show a progress bar and yield the function that updates it; yields None if stderr is not a terminal."""
    if not enabled or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        bar_id = bar.add_task(label, total=None)
        yield lambda progress: bar.update(bar_id, completed=progress.done, total=progress.total)


@contextmanager
def progress_line(*, enabled: bool) -> Generator[Callable[[str], None]]:
    """Show a status line and yield the function that updates it; does nothing if stderr is not a terminal."""
    if not enabled or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield status.update
