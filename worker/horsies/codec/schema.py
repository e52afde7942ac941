"""What a pydantic core schema is made of; read once per annotation, never written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Values of the user's own may stand under these keys, and need not be finite trees.
_NOT_SCHEMA = frozenset({"default", "metadata", "expected", "cls"})


def nodes(schema: object) -> Iterator[Mapping[str, Any]]:
    """Every mapping in the schema, the outermost first."""
    if isinstance(schema, dict):
        mapping = cast("dict[str, Any]", schema)
        yield mapping
        for key, value in mapping.items():
            if key not in _NOT_SCHEMA:
                yield from nodes(value)
    elif isinstance(schema, list | tuple):
        for value in cast("list[Any] | tuple[Any, ...]", schema):
            yield from nodes(value)


def kinds(schema: object) -> frozenset[str]:
    """The names of all node types."""
    return frozenset(node["type"] for node in nodes(schema) if isinstance(node.get("type"), str))


def field_names(schema: object) -> frozenset[str]:
    """The names of all fields of models, dataclasses and typed dicts."""
    found: set[str] = set()
    for node in nodes(schema):
        fields = node.get("fields")
        if isinstance(fields, dict):
            found.update(cast("dict[str, Any]", fields))
        elif isinstance(fields, list):
            found.update(field["name"] for field in cast("list[dict[str, Any]]", fields) if "name" in field)
    return frozenset(found)
