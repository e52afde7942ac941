from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pytest

from horsies.store.queries import Query, column_values, load_queries

SQL = """
-- name: one
-- A comment.
SELECT 1 AS n;

-- name: two
UPDATE t
   SET n = 2;  -- another
"""


@dataclass(frozen=True, slots=True)
class Number:
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Both:
    one: Query[Number]
    two: Query[None]


class Color(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    color: Color
    lid: Color | None
    labels: Mapping[str, int]
    sizes: dict[str, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlyOne:
    one: Query[Number]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An importable package with one SQL file."""
    (tmp_path / "sql").mkdir()
    (tmp_path / "sql" / "numbers.sql").write_text(SQL)
    (tmp_path / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path.parent)
    return tmp_path.name


def test_statements_are_loaded_by_name_without_comments(package: str) -> None:
    both = load_queries(Both, package, "numbers")
    assert both.one.sql == "/* numbers.one */ SELECT 1 AS n"
    assert both.two.sql.startswith("/* numbers.two */ UPDATE t")
    assert (both.one.row_type, both.two.columns) == (Number, ())


def test_rows_become_records(package: str) -> None:
    both = load_queries(Both, package, "numbers")
    assert list(map(both.one.to_row, [{"n": 1}, {"n": 2}])) == [Number(1), Number(2)]


def test_rows_of_one_column_become_single_values() -> None:
    query = Query(name="n", sql="", row_type=int)
    assert list(map(query.to_row, [{0: 1}, {0: 2}])) == [1, 2]


def test_field_types_decide_how_columns_are_read() -> None:
    query = Query(name="boxes", sql="", row_type=Box)
    rows = [
        {"color": "red", "lid": None, "labels": '{"a": 1}', "sizes": None},
        {"color": "red", "lid": "red", "labels": "[]", "sizes": '{"b": 2}'},
    ]
    assert list(map(query.to_row, rows)) == [
        Box(color=Color.RED, lid=None, labels={"a": 1}, sizes=None),
        Box(color=Color.RED, lid=Color.RED, labels={}, sizes={"b": 2}),
    ]


def test_statement_missing_in_dataclass_fails_at_import(package: str) -> None:
    with pytest.raises(TypeError, match=r"numbers\.sql and OnlyOne differ in: two"):
        load_queries(OnlyOne, package, "numbers")


def test_calls_of_fragments_are_replaced_with_their_indent(package: str, tmp_path: Path) -> None:
    (tmp_path / "sql" / "fragments.sql").write_text(
        "-- fragment: rows(column, source)\n-- A comment.\nSELECT {{ column }}\n  FROM {{ source }}\n"
    )
    (tmp_path / "sql" / "numbers.sql").write_text("-- name: one\nSELECT *\n  FROM ({{ rows(n, t WHERE n > 1) }});\n")

    assert load_queries(OnlyOne, package, "numbers").one.sql == (
        "/* numbers.one */ SELECT *\n  FROM (SELECT n\n          FROM t WHERE n > 1)"
    )


def test_column_values_are_fields_in_order_with_objects_as_json() -> None:
    box = Box(color=Color.RED, lid=None, labels={"a": 1}, sizes=None)
    assert column_values(box) == ["red", None, '{"a": 1}', None]
