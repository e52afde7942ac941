"""Named SQL statements, loaded from `.sql` files into frozen dataclasses.

A file holds statements behind `-- name: complete` lines. The dataclass that goes with it has one field a statement, and
the field's type says what a row is: `Query[Applied]` yields `Applied` values, `Query[None]` yields nothing. File and
class must name the same statements; a difference is an error at import.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from importlib import resources
from typing import Any, Generic, Protocol, TypeVar, get_args, get_type_hints

R = TypeVar("R")
Q = TypeVar("Q")

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


class _Row(Protocol):
    def __getitem__(self, column: str, /) -> Any: ...
    def keys(self) -> Iterable[str]: ...


@dataclass(frozen=True)
class Query(Generic[R]):
    """One statement and the type of its rows. The SQL begins with its name, so that pg_stat_activity shows it."""

    name: str
    sql: str
    row_type: type[R]

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns that a row must have, in the order of the record's fields."""
        if self.row_type is type(None):
            return ()
        if issubclass(self.row_type, tuple):
            return self.row_type._fields  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType, reportAttributeAccessIssue]
        return tuple(field.name for field in fields(self.row_type))  # pyright: ignore[reportArgumentType]

    def to_rows(self, found: Sequence[_Row]) -> list[R]:
        """Turn rows of the driver into records; a named tuple takes them whole, which is a tenth of the work."""
        record, columns = self.row_type, self.columns
        if found and issubclass(record, tuple):
            if tuple(found[0].keys()) != columns:
                raise TypeError(f"{self.name} does not return its columns in the order of {record.__name__}")
            return [record._make(row) for row in found]  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]
        return [record(**{column: row[column] for column in columns}) for row in found]


def load_queries(statements: type[Q], package: str, file: str) -> Q:
    """Fill `statements` from `package`/sql/`file`.sql."""
    text = (resources.files(package) / "sql" / f"{file}.sql").read_text(encoding="utf-8")
    found = dict(_split(text))
    declared = get_type_hints(statements)
    if found.keys() != declared.keys():
        odd = ", ".join(sorted(found.keys() ^ declared.keys()))
        raise TypeError(f"{file}.sql and {statements.__name__} differ in: {odd}")
    return statements(
        **{
            name: Query(name=f"{file}.{name}", sql=f"/* {file}.{name} */ {sql}", row_type=get_args(declared[name])[0])
            for name, sql in found.items()
        }
    )


def every_query(*groups: object) -> Iterator[Query[Any]]:
    """All statements of the given groups, for the tests that prepare or explain each."""
    for group in groups:
        for field in fields(group):  # pyright: ignore[reportArgumentType]
            yield getattr(group, field.name)


def _split(text: str) -> Iterator[tuple[str, str]]:
    """Yield each statement's name and its text without the comments above it."""
    parts = _NAME.split(text)
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        lines = body.strip().splitlines()
        while lines and lines[0].startswith("--"):
            lines.pop(0)
        yield name, "\n".join(lines).rstrip().rstrip(";")
