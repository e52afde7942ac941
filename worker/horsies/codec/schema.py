"""What a pydantic core schema is made of; read once per annotation, never written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Values of the user's own may stand under these keys, and need not be finite trees.
_NOT_SCHEMA = frozenset({"default", "metadata", "expected", "cls"})
# Under these a mapping has keys of the user's own: the names of fields, the tags of a union.
_KEYED_BY_USER = frozenset({"fields", "choices"})
_ITEMS = frozenset({"items_schema"})
# Where these say nothing about what they hold, they hold anything.
_CONTENTS: Mapping[str, frozenset[str]] = {
    "dict": frozenset({"keys_schema", "values_schema"}),
    "list": _ITEMS,
    "set": _ITEMS,
    "frozenset": _ITEMS,
    "generator": _ITEMS,
}


def nodes(schema: object) -> Iterator[Mapping[str, Any]]:
    """Every node of the schema, the outermost first."""
    if isinstance(schema, dict):
        mapping = cast("dict[str, Any]", schema)
        yield mapping
        for key, value in mapping.items():
            if key in _KEYED_BY_USER and isinstance(value, dict):
                yield from nodes(list(cast("dict[str, Any]", value).values()))
            elif key not in _NOT_SCHEMA:
                yield from nodes(value)
    elif isinstance(schema, list | tuple):
        for value in cast("list[Any] | tuple[Any, ...]", schema):
            yield from nodes(value)


def kinds(schema: object) -> frozenset[str]:
    """The names of all node types."""
    return frozenset(node["type"] for node in nodes(schema) if "type" in node)


def field_names(schema: object) -> frozenset[str]:
    """The names of all fields of models, dataclasses and typed dicts."""
    return frozenset(name for node in nodes(schema) for name, _ in _fields(node))


def has_clashing_aliases(schema: object) -> bool:
    """Whether a field is also read under the name of another one of its class."""
    return any(_clashes(dict(_fields(node))) for node in nodes(schema))


def is_loose(schema: object) -> bool:
    """Whether some of a value has no declared type to come back to, as under Any or in a bare `dict`."""
    return any(_holds_anything(node) for node in nodes(schema))


def has_other_keys_than_text(schema: object) -> bool:
    return any(node["keys_schema"]["type"] != "str" for node in nodes(schema) if "keys_schema" in node)


def has_excluded_fields(schema: object) -> bool:
    return any("serialization_exclude" in node or "serialization_exclude_if" in node for node in nodes(schema))


def _holds_anything(node: Mapping[str, Any]) -> bool:
    kind = node.get("type", "")
    if kind == "any" or "allow" in (node.get("extra_behavior"), node.get("extra_fields_behavior")):
        return True
    return bool(_CONTENTS.get(kind, frozenset()) - node.keys())


def _fields(node: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    fields = node.get("fields")
    if isinstance(fields, dict):
        yield from cast("dict[str, Any]", fields).items()
    elif isinstance(fields, list):
        # A dataclass lists the bare names of its fields as well.
        for field in cast("list[object]", fields):
            if isinstance(field, dict):
                yield field["name"], cast("dict[str, Any]", field)


def _clashes(fields: Mapping[str, Mapping[str, Any]]) -> bool:
    return any(_first_keys(field.get("validation_alias")) & fields.keys() - {name} for name, field in fields.items())


def _first_keys(alias: object) -> frozenset[object]:
    """Where a lookup may begin: an alias is a key, a path of keys, or several such paths."""
    if not isinstance(alias, list):
        return frozenset({alias})
    path = cast("list[object]", alias)
    return frozenset(cast("list[object]", step)[0] if isinstance(step, list) else path[0] for step in path)
