"""One value on its way into a row and out of it: checked and typed by an annotation, or plain JSON without one.

What is written is what can be read: a value of a type that JSON might change is read back before it is sent, and
refused unless it is the same. Fields are written under their names. An alias is read too, for rows written by others,
unless it is also the name of another field.

Bytes are written as base64 text. Only a pydantic model or pydantic dataclass decides for itself about the bytes in it,
by `ser_json_bytes` and `val_json_bytes` of its config, and pydantic's own choice is UTF-8: bytes that are no such text
are refused there until the class says base64. A plain dataclass or typed dict goes with what it stands in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Protocol, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    GetPydanticSchema,
    JsonValue,
    PydanticUserError,
    RootModel,
    Secret,
    SecretBytes,
    SecretStr,
    TypeAdapter,
    ValidationError,
)

from horsies.codec.canonical_json import MAX_DEPTH, MAX_PARSED_DEPTH, PayloadRefused, canonical, fault_in
from horsies.model.settings.base import dotted
from horsies.model.text import complaint

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence


# What a pydantic core schema is made of; read once per annotation, never written.

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


# What a value is made of, as its JSON form shows it.


def bare(value: object) -> object:
    """The value itself, or what a root model only wraps."""
    return bare(cast("RootModel[object]", value).root) if isinstance(value, RootModel) else value


def members(value: object) -> Mapping[Any, object] | None:
    """The items of a mapping, the elements of a sequence by position, the fields of an object; None without any.

    Private attributes and what a class computes or remembers are no part of its value.
    """
    if isinstance(value, Mapping):
        return cast("Mapping[object, object]", value)
    if isinstance(value, list | tuple):
        return dict(enumerate(cast("Sequence[object]", value)))
    if isinstance(value, BaseModel):
        return _present(value, type(value).model_fields) | (value.model_extra or {})
    if dataclasses.is_dataclass(value):
        return _present(value, [field.name for field in dataclasses.fields(value)])
    return None


def _present(value: object, names: Iterable[str]) -> dict[str, object]:
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


# The JSON form of a value held against the value itself, for what pydantic would write without a word.

_SECRETS: tuple[type[object], ...] = (Secret, SecretBytes, SecretStr)


def faithful(plain: JsonValue, typed: object) -> JsonValue:
    """`plain` with each array that stands for a set sorted by the canonical text of its elements.

    Sets come in another order in every process, and equal arguments must have equal fingerprints. A NaN or Infinity
    written as null and a secret written as its mask are refused. `typed` is the same value before it became JSON;
    where the two differ in shape, because a serializer of the user's own says so, `plain` is left alone.
    """
    typed = bare(typed)
    if isinstance(plain, dict):
        return _faithful_object(plain, typed)
    if plain is None and isinstance(typed, float):
        raise PayloadRefused("holds NaN or Infinity")
    if isinstance(typed, _SECRETS) and plain and plain == str(typed):
        raise PayloadRefused("holds a secret, of which only the mask would be stored")
    if not isinstance(plain, list) or not isinstance(typed, list | tuple | set | frozenset):
        return plain
    twins = cast("Collection[object]", typed)
    if len(twins) != len(plain):
        return plain
    ordered = [faithful(value, twin) for value, twin in zip(plain, twins, strict=True)]
    return sorted(ordered, key=canonical) if isinstance(typed, set | frozenset) else ordered


def _faithful_object(plain: dict[str, JsonValue], typed: object) -> JsonValue:
    inner = members(typed)
    if inner is None:
        return plain
    if not isinstance(typed, Mapping):
        return {key: faithful(value, inner.get(key)) for key, value in plain.items()}
    # Their keys may be written in another way than they are, but their order is the same.
    if len(inner) != len(plain):
        return plain
    return {key: faithful(value, twin) for (key, value), twin in zip(plain.items(), inner.values(), strict=True)}


# What a value loses on its way through JSON, found by reading it back before it is sent.

_JSON_SCALARS = (str, int, float, type(None))


def loss(given: object, back: object, *, is_loose: bool) -> str | None:
    """Why `back`, read from the stored form of `given`, is not the same value, or None when it is.

    Where parts of a value have no declared type (`is_loose`), an array may come back for any collection, an object for
    a model, and text for whatever is written as text; keys, numbers and text must still be what they were.
    """
    if _is_equal(given, back):
        return None
    given, back = bare(given), bare(back)
    before, after = members(given), members(back)
    if before is None or after is None:
        return _loss_of_scalar(given, back, is_loose=is_loose)
    is_object = not isinstance(given, Mapping | list | tuple)
    if not is_object and before.keys() != after.keys():
        return "has a key that would be read back as another"
    shown = _field_names(given) if is_object else ()
    # Of an object only what was read back counts: what a subclass adds is no part of the declared type.
    for name in after:
        if name in before and (lost := loss(before[name], after[name], is_loose=is_loose)):
            return f"{name}: {lost}" if name in shown else lost
    return None


def _loss_of_scalar(given: object, back: object, *, is_loose: bool) -> str | None:
    if not _is_comparable(given) or (is_loose and not isinstance(given, _JSON_SCALARS)):
        return None
    kind, other = type(given).__qualname__, type(back).__qualname__
    return f"holds a value of type {kind} that would be read back as {'another' if kind == other else other}"


def _field_names(given: object) -> Collection[str]:
    """Names that a message may show; those of extras are data."""
    return type(given).model_fields if isinstance(given, BaseModel) else members(given) or ()


def _is_equal(given: object, back: object) -> bool:
    try:
        return bool(given == back)
    except Exception:  # noqa: BLE001 - user code, and arrays of numbers have no one answer
        return False


def _is_comparable(given: object) -> bool:
    """Whether being unequal says anything: not of what reading uses up, nor of what equals nothing but itself."""
    has_equality = type(given).__eq__ is not object.__eq__
    return has_equality and not isinstance(given, Iterator) and _is_equal(given, given)


# Why a value was not accepted, in words that never show the value.

MOST_TOLD = 5


def explained(error: ValidationError, known_names: Iterable[str]) -> str:
    """The faults, each with its place, and how many more there are than are told.

    A place is made of positions and of `known_names`; keys of a dict are data and shown as `*`.
    """
    shown = frozenset(known_names)
    # A union has a finding for each of its members, which may well read the same.
    found: dict[str, None] = {}
    for finding in error.errors(include_url=False, include_input=False):
        place = dotted(tuple(part if isinstance(part, int) or part in shown else "*" for part in finding["loc"]))
        found[f"{place}: {complaint(finding)}" if place else complaint(finding)] = None
    told = "; ".join(list(found)[:MOST_TOLD])
    return told if len(found) <= MOST_TOLD else f"{told}; and {len(found) - MOST_TOLD} more"


# A NaN must stay one, for we refuse it, where pydantic would write null.
_WIRE = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants")

# Types for which a parsed value and its JSON text are read alike, so that the text need not be parsed twice.
_READ_ALIKE = frozenset({"int", "str", "float", "bool", "none", "any", "list", "dict", "nullable"})
# Types whose values need neither pydantic nor any change; they are what most arguments are.
_OWN_FORM: tuple[type, ...] = (int, str, float, bool, type(None))
# Types whose JSON form pydantic may write other than we would.
_TO_BE_COMPARED = frozenset({"set", "frozenset", "any", "is-instance"})
# Types of which every value comes back as it was; all others are read back before they are sent.
_SURE_TO_RETURN = frozenset(
    {"int", "str", "float", "bool", "none", "date", "uuid", "decimal", "list", "tuple", "set", "frozenset", "dict"}
    | {"nullable", "default", "definitions", "definition-ref", "model", "model-fields", "model-field"}
    | {"dataclass", "dataclass-args", "dataclass-field", "typed-dict", "typed-dict-field"}
)


class Value(Protocol):
    """How values of one parameter, or of one return type, are written and read."""

    @property
    def max_depth(self) -> int:
        """How deep a stored value may be nested and still be read."""
        ...

    @property
    def as_is(self) -> type | None:
        """The type whose very values are their own checked and stored form, if there is one."""
        ...

    def check(self, value: object) -> object:
        """The value as its annotation wants it; `PayloadRefused` when it does not fit."""
        ...

    def dump(self, checked: object) -> JsonValue:
        """The plain JSON form of a checked value; `PayloadRefused` when it has none."""
        ...

    def load(self, stored: JsonValue) -> object:
        """The typed value of a stored one; `PayloadRefused` when it no longer fits."""
        ...


class PlainValue:
    """Without an annotation only plain JSON is taken. What comes out is equal, though keys may have another order."""

    max_depth = MAX_DEPTH
    as_is = None

    def check(self, value: object) -> object:
        if fault := fault_in(value):
            raise PayloadRefused(fault)
        return value

    def dump(self, checked: Any) -> JsonValue:
        return checked

    def load(self, stored: JsonValue) -> object:
        return stored


class TypedValue:
    """The annotation decides, as pydantic reads it in lax mode; no class names travel with the data."""

    __slots__ = (
        "_dump",
        "_is_compared",
        "_is_loose",
        "_is_read_back",
        "_parse",
        "_reads_alike",
        "_schema",
        "_validate",
        "as_is",
        "max_depth",
    )

    def __init__(self, annotation: object) -> None:
        """Raises whatever pydantic or the annotated class raises when there is no way to build an adapter."""
        adapter = _adapter(annotation)
        schema = adapter.core_schema
        found = kinds(schema)
        is_strict = any(node.get("strict") for node in nodes(schema))
        kind: Any = type(None) if annotation is None else annotation
        self.as_is: Any = kind if kind in _OWN_FORM else None
        self._schema = schema
        self._validate = adapter.validator.validate_python
        self._dump = adapter.serializer.to_python
        by_alias = not has_clashing_aliases(schema)
        self._parse = partial(adapter.validator.validate_json, by_name=True, by_alias=by_alias)
        self._reads_alike = found <= _READ_ALIKE and not is_strict
        self._is_loose = is_loose(schema)
        self._is_compared = self._is_loose or bool(found & _TO_BE_COMPARED)
        self._is_read_back = self._is_loose or not _is_sure_to_return(schema)
        self.max_depth = MAX_DEPTH if self._reads_alike else MAX_PARSED_DEPTH

    def check(self, value: object) -> object:
        return value if type(value) is self.as_is else self._accepted(self._validate, value)

    def dump(self, checked: Any) -> JsonValue:
        if type(checked) is self.as_is:
            return checked
        try:
            plain = self._written(checked)
            if self._is_read_back:
                self._check_return(plain, checked)
        except (PayloadRefused, MemoryError):
            raise
        except UnicodeDecodeError:
            raise PayloadRefused("holds bytes that are no text, in a class whose config does not say base64") from None
        except Exception as error:  # noqa: BLE001 - serializers are user code, as validators are
            raise PayloadRefused(f"cannot be written as JSON ({type(error).__name__})") from None
        return plain

    def load(self, stored: JsonValue) -> object:
        if self._reads_alike:
            return self._accepted(self._validate, stored)
        return self._accepted(self._parse, canonical(stored))

    def _written(self, checked: Any) -> JsonValue:
        # Fields by their names, without what a model computes: the form from which it can be built again.
        plain = self._dump(checked, mode="json", round_trip=True, by_alias=False, warnings="error")
        return faithful(plain, checked) if self._is_compared else plain

    def _check_return(self, plain: JsonValue, checked: object) -> None:
        try:
            back = self.load(plain)
        except ValueError as refused:
            # What no row may hold is not read either, and is the better reason.
            reason = fault_in(plain, max_depth=self.max_depth) or f"could not be read back: {refused}"
            raise PayloadRefused(reason) from None
        if lost := loss(checked, back, is_loose=self._is_loose):
            raise PayloadRefused(lost)

    def _accepted(self, validate: Callable[[Any], object], value: object) -> object:
        try:
            return validate(value)
        except ValidationError as error:
            raise PayloadRefused(explained(error, field_names(self._schema))) from None
        except MemoryError:  # says nothing about the value
            raise
        except Exception as error:  # noqa: BLE001 - user code again, whose message may quote the value
            raise PayloadRefused(f"not accepted ({type(error).__name__})") from None


def value_of(annotation: object) -> Value:
    """How values so annotated are written and read."""
    return PlainValue() if annotation is JsonValue else TypedValue(annotation)


def _is_sure_to_return(schema: object) -> bool:
    return kinds(schema) <= _SURE_TO_RETURN and not (has_other_keys_than_text(schema) or has_excluded_fields(schema))


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(annotation, config=_WIRE)
    except PydanticUserError as error:
        if error.code != "type-adapter-config-unused":
            raise
    # Refused for a class that may bring a config. One that does not takes ours when it is only a part.
    part = GetPydanticSchema(lambda _, handler: handler.generate_schema(annotation))
    return TypeAdapter(Annotated[Any, part], config=_WIRE)
