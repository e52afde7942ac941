"""Named SQL statements, loaded from `.sql` files into frozen dataclasses.

In a file each statement follows a `-- name: complete` line. Its dataclass has one field per statement, whose type gives
the type of the rows: `Query[TaskInfo]` yields `TaskInfo` values, `Query[UUID]` the single column of each row,
`Query[None]` nothing. If file and dataclass do not have the same names, the import fails.

Parts that several statements share are in `fragments.sql`, each after a line like `-- fragment: insert_outbox(source)`.
The call `{{ insert_outbox(ended) }}` in a statement is replaced by that part, with `ended` in place of `{{ source }}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache, cached_property
from importlib import resources
from math import isfinite
from operator import itemgetter
from types import NoneType
from typing import Any, Generic, Protocol, TypeVar, cast, get_args, get_origin, get_type_hints

from horsies.codec.results import decode_result
from horsies.model.task_result import TaskResult

R = TypeVar("R")
Q = TypeVar("Q")

_STATEMENT = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_FRAGMENT = re.compile(r"^-- fragment: (\w+\(.*\))\s*$", re.MULTILINE)
_CALL = re.compile(r"\{\{ (\w+)\((.*)\) \}\}")


class _Row(Protocol):
    def __getitem__(self, column: Any, /) -> Any: ...


@dataclass(frozen=True)
class Query(Generic[R]):
    """One statement and the type of its rows. The SQL starts with its name, which pg_stat_activity shows.

    Rows are dataclasses, named tuples (ten times as fast, but without conversion) or single values. The type of a
    dataclass field decides how its column is read: a StrEnum field gets a member, a dict or Mapping field the object
    in a JSON text, a TaskResult field the result in a stored document.
    """

    name: str
    sql: str
    row_type: type[R]

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Columns that a record needs, in the order of its fields; empty if rows are not records."""
        if self.is_tuple:
            return cast("Any", self.row_type)._fields
        return tuple(field.name for field in fields(self.row_type)) if is_dataclass(self.row_type) else ()

    @cached_property
    def is_tuple(self) -> bool:
        """Whether rows are named tuples, which are filled by position."""
        return isinstance(self.row_type, type) and issubclass(self.row_type, tuple)

    @cached_property
    def to_row(self) -> Callable[[_Row], R]:
        """Converts a driver row to a record or single value."""
        record, columns = cast("Any", self.row_type), self.columns
        if self.is_tuple:
            return record._make
        if not columns:
            return itemgetter(0)
        hints = get_type_hints(record)
        converters = {column: convert for column in columns if (convert := _converter(hints[column])) is not None}

        def to_record(row: _Row) -> R:
            values = {column: row[column] for column in columns}
            for column, convert in converters.items():
                if values[column] is not None:
                    values[column] = convert(values[column])
            return record(**values)

        return to_record


def _converter(field_type: Any) -> Callable[[Any], object] | None:
    """How to read a column for a field of this type; None if the driver's value needs no conversion."""
    for kind in get_args(field_type) if NoneType in get_args(field_type) else (field_type,):
        if isinstance(kind, type) and issubclass(kind, StrEnum):
            return kind
        if (get_origin(kind) or kind) in {dict, Mapping}:
            return json_object
        if get_origin(kind) is TaskResult:
            return decode_result
    return None


def json_value(text: str | None) -> Any:
    """Parse stored JSON for a reader. What Python cannot represent becomes a text that says so; never raises.

    Other programs can store numbers of any length and values of any depth.
    """
    if text is None:
        return None
    try:
        return json.loads(text, parse_int=_parse_integer, parse_float=_parse_float)
    except (RecursionError, ValueError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else "malformed"
        return f"({reason}, {len(text):,} characters)"


def json_object(text: str | None) -> dict[str, Any]:
    """Parse a stored JSON object; anything else, which only a manual change can have stored, counts as empty."""
    value = json_value(text)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def json_list(text: str | None) -> list[Any]:
    """Parse a stored JSON array; anything else, which only a manual change can have stored, is its single item."""
    value = json_value(text)
    return cast("list[Any]", value) if isinstance(value, list) else [value]


def _parse_integer(digits: str) -> int | str:
    try:
        return int(digits)
    except ValueError:  # more digits than the interpreter's limit
        return f"{digits[:20]}… ({len(digits):,} digits)"


def _parse_float(digits: str) -> float | str:
    number = float(digits)
    return number if isfinite(number) else f"{digits[:20]}… ({len(digits):,} digits)"


def column_values(record: object) -> list[object]:
    """The fields of a dataclass as arguments of a statement, in their order; a Mapping becomes a JSON text."""
    values = [getattr(record, field.name) for field in fields(cast("Any", record))]
    return [json.dumps(value) if isinstance(value, Mapping) else value for value in values]


def load_queries(statements: type[Q], package: str, file: str) -> Q:
    """Load `package`/sql/`file`.sql into the dataclass `statements`."""
    text = (resources.files(package) / "sql" / f"{file}.sql").read_text(encoding="utf-8")
    found = {name: _include(sql, _fragments(package)) for name, sql in _split(text, _STATEMENT)}
    declared = get_type_hints(statements)
    if found.keys() != declared.keys():
        differences = ", ".join(sorted(found.keys() ^ declared.keys()))
        raise TypeError(f"{file}.sql and {statements.__name__} differ in: {differences}")
    return statements(
        **{
            name: Query(name=f"{file}.{name}", sql=f"/* {file}.{name} */ {sql}", row_type=get_args(declared[name])[0])
            for name, sql in found.items()
        }
    )


def every_query(*groups: object) -> Iterator[Query[Any]]:
    """All statements of these groups, for tests that prepare or explain each."""
    for group in groups:
        for field in fields(group):  # pyright: ignore[reportArgumentType]
            yield getattr(group, field.name)


@dataclass(frozen=True, slots=True)
class _Fragment:
    parameters: Sequence[str]
    sql: str


@cache
def _fragments(package: str) -> dict[str, _Fragment]:
    file = resources.files(package) / "sql" / "fragments.sql"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    found: dict[str, _Fragment] = {}
    for header, sql in _split(text, _FRAGMENT):
        name, _, parameters = header.removesuffix(")").partition("(")
        found[name] = _Fragment(parameters.split(", "), sql)
    return found


def _include(sql: str, fragments: Mapping[str, _Fragment]) -> str:
    """Replace each call of a fragment by its text, indented like the call; a fragment may call others."""

    def expand(call: re.Match[str]) -> str:
        fragment = fragments[call[1]]
        text = fragment.sql
        for parameter, argument in zip(fragment.parameters, call[2].split(", "), strict=True):
            text = text.replace(f"{{{{ {parameter} }}}}", argument)
        indent = call.start() - (sql.rfind("\n", 0, call.start()) + 1)
        return _include(text, fragments).replace("\n", "\n" + " " * indent)

    return _CALL.sub(expand, sql)


def _split(text: str, header: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Yield header and text of each statement or fragment, without the comments at its top."""
    parts = header.split(text)
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        lines = body.strip().splitlines()
        while lines and lines[0].startswith("--"):
            lines.pop(0)
        yield name, "\n".join(lines).rstrip().rstrip(";")
