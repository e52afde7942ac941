"""Named SQL statements, loaded from `.sql` files into frozen dataclasses.

In a file each statement follows a `-- name: complete` line. Its dataclass has one field per statement, whose type gives
the type of the rows: `Query[TaskRow]` yields `TaskRow` values, `Query[None]` nothing. If file and dataclass do not have
the same names, the import fails.
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
    """One statement and the type of its rows. The SQL starts with its name, which pg_stat_activity shows."""

    name: str
    sql: str
    row_type: type[R]

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Columns that a row must have, in the order of the record's fields."""
        if self.row_type is type(None):
            return ()
        if issubclass(self.row_type, tuple):
            return self.row_type._fields  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType, reportAttributeAccessIssue]
        return tuple(field.name for field in fields(self.row_type))  # pyright: ignore[reportArgumentType]

    def to_rows(self, rows: Sequence[_Row]) -> list[R]:
        """Convert driver rows to records. Named tuples are ten times as fast as dataclasses."""
        record, columns = self.row_type, self.columns
        if rows and issubclass(record, tuple):
            # Tuples are filled by position: a column out of order would silently end up in another field.
            if tuple(rows[0].keys()) != columns:
                raise TypeError(f"{self.name} does not return its columns in the order of {record.__name__}")
            return [record._make(row) for row in rows]  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]
        return [record(**{column: row[column] for column in columns}) for row in rows]


def load_queries(statements: type[Q], package: str, file: str) -> Q:
    """Load `package`/sql/`file`.sql into the dataclass `statements`."""
    text = (resources.files(package) / "sql" / f"{file}.sql").read_text(encoding="utf-8")
    found = dict(_split(text))
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


def _split(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and text of each statement, without the comments at its top."""
    parts = _NAME.split(text)
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        lines = body.strip().splitlines()
        while lines and lines[0].startswith("--"):
            lines.pop(0)
        yield name, "\n".join(lines).rstrip().rstrip(";")
