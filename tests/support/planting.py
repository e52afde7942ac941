"""Which functions and operators our SQL calls, with the types of their arguments before implicit casts.

The server stores the parse tree of a `BEGIN ATOMIC` function, so every statement is stored as the body of one, and its
calls are read from there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import asyncpg

_TOKEN = re.compile(r"\{|\}|\(|\)|(?:\\.|[^\s(){}])+")
_IMPLICIT = "2"  # COERCE_IMPLICIT_CAST
_RESULT_TYPES = {
    "CONST": "consttype",
    "PARAM": "paramtype",
    "VAR": "vartype",
    "FUNCEXPR": "funcresulttype",
    "OPEXPR": "opresulttype",
    "DISTINCTEXPR": "opresulttype",
    "NULLIFEXPR": "opresulttype",
    "AGGREF": "aggtype",
    "WINDOWFUNC": "wintype",
    "CASEEXPR": "casetype",
    "COALESCEEXPR": "coalescetype",
    "MINMAXEXPR": "minmaxtype",
    "ARRAYEXPR": "array_typeid",
    "RELABELTYPE": "resulttype",
    "COERCEVIAIO": "resulttype",
    "ARRAYCOERCEEXPR": "resulttype",
    "FIELDSELECT": "resulttype",
    "SQLVALUEFUNCTION": "type",
    "ROWEXPR": "row_typeid",
}
_CALLS = {"FUNCEXPR": "funcid", "AGGREF": "aggfnoid", "WINDOWFUNC": "winfnoid"}
_CASTS = {"FUNCEXPR": "funcformat", "RELABELTYPE": "relabelformat", "COERCEVIAIO": "coerceformat"}
_OPERATORS = ("OPEXPR", "DISTINCTEXPR", "NULLIFEXPR", "SCALARARRAYOPEXPR")
BOOLEAN = 16


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a parse tree: its kind, and its fields by name."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Call:
    """A function or operator, and the types of the arguments that it was called with."""

    is_operator: bool
    oid: int
    types: tuple[int, ...]
    result: int


def parse_tree(text: str) -> Any:
    """Parse the text of a pg_node_tree into nodes, lists and words."""
    tokens = _TOKEN.findall(text)
    position = 0

    def value() -> Any:
        nonlocal position
        token = tokens[position]
        position += 1
        if token == "{":
            return node()
        if token == "(":
            items: list[Any] = []
            while tokens[position] != ")":
                items.append(value())
            position += 1
            return items
        return token

    def node() -> Node:
        nonlocal position
        kind = tokens[position]
        position += 1
        fields: dict[str, Any] = {}
        while tokens[position] != "}":
            name = tokens[position].removeprefix(":")
            position += 1
            values: list[Any] = []
            while tokens[position] != "}" and not tokens[position].startswith(":"):
                values.append(value())
            fields[name] = values[0] if len(values) == 1 else values
        position += 1
        return Node(kind, fields)

    return value()


def calls_in(tree: Any) -> Iterator[Call]:
    """Yield every call in a parse tree."""
    if isinstance(tree, list):
        for item in cast("list[Any]", tree):
            yield from calls_in(item)
    if not isinstance(tree, Node):
        return
    for child in tree.fields.values():
        yield from calls_in(child)
    arguments = [_argument(node) for node in _nodes(tree.fields.get("args"))]
    is_cast = tree.kind == "FUNCEXPR" and tree.fields["funcformat"] != "0"
    if tree.kind in _CALLS and not is_cast:
        yield Call(False, int(tree.fields[_CALLS[tree.kind]]), tuple(map(_type_of, arguments)), _type_of(tree))
    elif tree.kind in _OPERATORS:
        operator, types = int(tree.fields["opno"]), tuple(map(_type_of, arguments))
        # The right operand of `= ANY` is an array of the type of the left one.
        if tree.kind != "SCALARARRAYOPEXPR":
            yield Call(True, operator, types, _type_of(tree))
        if len(types) == 2:
            # The server first tries an operand that is a literal with the type of the other operand.
            yield Call(True, operator, (types[0], types[0]), _type_of(tree))


def _nodes(value: Any) -> list[Node]:
    return [item for item in _as_list(value) if isinstance(item, Node)]


def _as_list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else [value]


def _argument(node: Node) -> Node:
    """The argument as it was written: without names, the entries of an aggregate's list and implicit casts."""
    if node.kind == "TARGETENTRY":
        return _argument(node.fields["expr"])
    if node.kind == "NAMEDARGEXPR":
        return _argument(node.fields["arg"])
    if node.kind in _CASTS and node.fields.get(_CASTS[node.kind]) == _IMPLICIT:
        inner = node.fields["args"] if node.kind == "FUNCEXPR" else node.fields["arg"]
        return _argument(_as_list(inner)[0])
    return node


def _type_of(node: Node) -> int:
    if node.kind == "SUBLINK":
        if node.fields["subLinkType"] == "0" or "subselect" not in node.fields:
            return BOOLEAN
        entry = _as_list(node.fields["subselect"].fields["targetList"])[0]
        return _type_of(entry.fields["expr"]) if node.fields["subLinkType"] in {"4", "5"} else -1
    name = _RESULT_TYPES.get(node.kind)
    return int(node.fields[name]) if name else BOOLEAN


async def store_statement(connection: asyncpg.Connection[Any], name: str, sql: str) -> None:
    """Store a statement as a function, so that the server records what it calls."""
    prepared = await connection.prepare(sql)
    parameters = ", ".join(kind.name for kind in prepared.get_parameters())
    returns = "SETOF record" if prepared.get_attributes() else "void"
    await connection.execute(
        f'CREATE FUNCTION "{name}"({parameters}) RETURNS {returns} LANGUAGE sql BEGIN ATOMIC {sql}; END'
    )
