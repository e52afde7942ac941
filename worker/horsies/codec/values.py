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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Protocol, cast

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

from horsies.codec.canonical_json import MAX_DEPTH, MAX_PARSED_DEPTH, PayloadError, canonical_json, find_json_fault
from horsies.model.settings.base import format_path
from horsies.model.text import describe_validation_error

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


def schema_nodes(schema: object) -> Iterator[Mapping[str, Any]]:
    """Every node of the schema, the outermost first."""
    if isinstance(schema, dict):
        mapping = cast("dict[str, Any]", schema)
        yield mapping
        for key, value in mapping.items():
            if key in _KEYED_BY_USER and isinstance(value, dict):
                yield from schema_nodes(list(cast("dict[str, Any]", value).values()))
            elif key not in _NOT_SCHEMA:
                yield from schema_nodes(value)
    elif isinstance(schema, list | tuple):
        for value in cast("list[Any] | tuple[Any, ...]", schema):
            yield from schema_nodes(value)


def schema_types(schema: object) -> frozenset[str]:
    """The names of all node types."""
    return frozenset(node["type"] for node in schema_nodes(schema) if "type" in node)


def field_names(schema: object) -> frozenset[str]:
    """The names of all fields of models, dataclasses and typed dicts."""
    return frozenset(name for node in schema_nodes(schema) for name, _ in _fields(node))


def has_clashing_aliases(schema: object) -> bool:
    """Whether a field is also read under the name of another one of its class."""
    return any(_clashes(dict(_fields(node))) for node in schema_nodes(schema))


def has_untyped_parts(schema: object) -> bool:
    """Whether some of a value has no declared type to come back to, as under Any or in a bare `dict`."""
    return any(_holds_anything(node) for node in schema_nodes(schema))


def has_other_keys_than_text(schema: object) -> bool:
    return any(node["keys_schema"]["type"] != "str" for node in schema_nodes(schema) if "keys_schema" in node)


def has_excluded_fields(schema: object) -> bool:
    return any("serialization_exclude" in node or "serialization_exclude_if" in node for node in schema_nodes(schema))


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


def unwrap_root_model(value: object) -> object:
    """The value itself, or what a root model only wraps."""
    return unwrap_root_model(cast("RootModel[object]", value).root) if isinstance(value, RootModel) else value


def nested_values(value: object) -> Mapping[Any, object] | None:
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


def normalize_json(plain: JsonValue, typed: object) -> JsonValue:
    """`plain` with each array that stands for a set sorted by the canonical text of its elements.

    Sets come in another order in every process, and equal arguments must have equal fingerprints. A NaN or Infinity
    written as null and a secret written as its mask are refused. `typed` is the same value before it became JSON;
    where the two differ in shape, because a serializer of the user's own says so, `plain` is left alone.
    """
    typed = unwrap_root_model(typed)
    if isinstance(plain, dict):
        return _normalize_object(plain, typed)
    if plain is None and isinstance(typed, float):
        raise PayloadError("holds NaN or Infinity")
    if isinstance(typed, _SECRETS) and plain and plain == str(typed):
        raise PayloadError("holds a secret, of which only the mask would be stored")
    if not isinstance(plain, list) or not isinstance(typed, list | tuple | set | frozenset):
        return plain
    twins = cast("Collection[object]", typed)
    if len(twins) != len(plain):
        return plain
    ordered = [normalize_json(value, twin) for value, twin in zip(plain, twins, strict=True)]
    return sorted(ordered, key=canonical_json) if isinstance(typed, set | frozenset) else ordered


def _normalize_object(plain: dict[str, JsonValue], typed: object) -> JsonValue:
    inner = nested_values(typed)
    if inner is None:
        return plain
    if not isinstance(typed, Mapping):
        return {key: normalize_json(value, inner.get(key)) for key, value in plain.items()}
    # Their keys may be written in another way than they are, but their order is the same.
    if len(inner) != len(plain):
        return plain
    return {key: normalize_json(value, twin) for (key, value), twin in zip(plain.items(), inner.values(), strict=True)}


# What a value loses on its way through JSON, found by reading it back before it is sent.

_JSON_SCALARS = (str, int, float, type(None))


def find_round_trip_loss(given: object, decoded: object, *, has_untyped_parts: bool) -> str | None:
    """Why `back`, read from the stored form of `given`, is not the same value, or None when it is.

    Where parts of a value have no declared type (`is_loose`), an array may come back for any collection, an object for
    a model, and text for whatever is written as text; keys, numbers and text must still be what they were.
    """
    if _is_equal(given, decoded):
        return None
    given, decoded = unwrap_root_model(given), unwrap_root_model(decoded)
    before, after = nested_values(given), nested_values(decoded)
    if before is None or after is None:
        return _scalar_loss(given, decoded, is_loose=has_untyped_parts)
    is_object = not isinstance(given, Mapping | list | tuple)
    if not is_object and before.keys() != after.keys():
        return "has a key that would be read back as another"
    shown = _field_names(given) if is_object else ()
    # Of an object only what was read back counts: what a subclass adds is no part of the declared type.
    for name in after:
        if name in before and (
            lost := find_round_trip_loss(before[name], after[name], has_untyped_parts=has_untyped_parts)
        ):
            return f"{name}: {lost}" if name in shown else lost
    return None


def _scalar_loss(given: object, back: object, *, is_loose: bool) -> str | None:
    if not _is_comparable(given) or (is_loose and not isinstance(given, _JSON_SCALARS)):
        return None
    kind, other = type(given).__qualname__, type(back).__qualname__
    return f"holds a value of type {kind} that would be read back as {'another' if kind == other else other}"


def _field_names(given: object) -> Collection[str]:
    """Names that a message may show; those of extras are data."""
    return type(given).model_fields if isinstance(given, BaseModel) else nested_values(given) or ()


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

MAX_ERRORS_SHOWN = 5


def summarize_validation_error(error: ValidationError, known_names: Iterable[str]) -> str:
    """The faults, each with its place, and how many more there are than are told.

    A place is made of positions and of `known_names`; keys of a dict are data and shown as `*`.
    """
    shown = frozenset(known_names)
    # A union has a finding for each of its members, which may well read the same.
    found: dict[str, None] = {}
    for finding in error.errors(include_url=False, include_input=False):
        place = format_path(tuple(part if isinstance(part, int) or part in shown else "*" for part in finding["loc"]))
        found[f"{place}: {describe_validation_error(finding)}" if place else describe_validation_error(finding)] = None
    told = "; ".join(list(found)[:MAX_ERRORS_SHOWN])
    return told if len(found) <= MAX_ERRORS_SHOWN else f"{told}; and {len(found) - MAX_ERRORS_SHOWN} more"


# A NaN must stay one, for we refuse it, where pydantic would write null.
_ADAPTER_CONFIG = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants")

# Types for which a parsed value and its JSON text are read alike, so that the text need not be parsed twice.
_PARSED_JSON_TYPES = frozenset({"int", "str", "float", "bool", "none", "any", "list", "dict", "nullable"})
# Types whose values need neither pydantic nor any change; they are what most arguments are.
_PASSTHROUGH_TYPES: tuple[type, ...] = (int, str, float, bool, type(None))
# Types whose JSON form pydantic may write other than we would.
_NORMALIZED_TYPES = frozenset({"set", "frozenset", "any", "is-instance"})
# Types of which every value comes back as it was; all others are read back before they are sent.
_ROUND_TRIP_SAFE_TYPES = frozenset(
    {"int", "str", "float", "bool", "none", "date", "uuid", "decimal", "list", "tuple", "set", "frozenset", "dict"}
    | {"nullable", "default", "definitions", "definition-ref", "model", "model-fields", "model-field"}
    | {"dataclass", "dataclass-args", "dataclass-field", "typed-dict", "typed-dict-field"}
)


class ValueCodec(Protocol):
    """How values of one parameter, or of one return type, are written and read."""

    @property
    def max_depth(self) -> int:
        """How deep a stored value may be nested and still be read."""
        ...

    @property
    def passthrough_type(self) -> type | None:
        """The type whose very values are their own checked and stored form, if there is one."""
        ...

    def validate(self, value: object) -> object:
        """The value as its annotation wants it; `PayloadRefused` when it does not fit."""
        ...

    def dump(self, checked: object) -> JsonValue:
        """The plain JSON form of a checked value; `PayloadRefused` when it has none."""
        ...

    def load(self, stored: JsonValue) -> object:
        """The typed value of a stored one; `PayloadRefused` when it no longer fits."""
        ...


class PlainCodec:
    """Without an annotation only plain JSON is taken. What comes out is equal, though keys may have another order."""

    max_depth = MAX_DEPTH
    passthrough_type = None

    def validate(self, value: object) -> object:
        if fault := find_json_fault(value):
            raise PayloadError(fault)
        return value

    def dump(self, checked: Any) -> JsonValue:
        return checked

    def load(self, stored: JsonValue) -> object:
        return stored


class TypedCodec:
    """The annotation decides, as pydantic reads it in lax mode; no class names travel with the data."""

    __slots__ = (
        "_accepts_parsed_json",
        "_dump",
        "_has_untyped_parts",
        "_needs_normalizing",
        "_needs_round_trip_check",
        "_parse",
        "_schema",
        "_validate",
        "max_depth",
        "passthrough_type",
    )

    def __init__(self, annotation: object) -> None:
        """Raises whatever pydantic or the annotated class raises when there is no way to build an adapter."""
        adapter = _adapter(annotation)
        schema = adapter.core_schema
        found = schema_types(schema)
        is_strict = any(node.get("strict") for node in schema_nodes(schema))
        kind: Any = type(None) if annotation is None else annotation
        self.passthrough_type: Any = kind if kind in _PASSTHROUGH_TYPES else None
        self._schema = schema
        self._validate = adapter.validator.validate_python
        self._dump = adapter.serializer.to_python
        by_alias = not has_clashing_aliases(schema)
        self._parse = partial(adapter.validator.validate_json, by_name=True, by_alias=by_alias)
        self._accepts_parsed_json = found <= _PARSED_JSON_TYPES and not is_strict
        self._has_untyped_parts = has_untyped_parts(schema)
        self._needs_normalizing = self._has_untyped_parts or bool(found & _NORMALIZED_TYPES)
        self._needs_round_trip_check = self._has_untyped_parts or not _is_round_trip_safe(schema)
        self.max_depth = MAX_DEPTH if self._accepts_parsed_json else MAX_PARSED_DEPTH

    def validate(self, value: object) -> object:
        return value if type(value) is self.passthrough_type else self._run_validator(self._validate, value)

    def dump(self, checked: Any) -> JsonValue:
        if type(checked) is self.passthrough_type:
            return checked
        try:
            plain = self._written(checked)
            if self._needs_round_trip_check:
                self._check_round_trip(plain, checked)
        except (PayloadError, MemoryError):
            raise
        except UnicodeDecodeError:
            raise PayloadError("holds bytes that are no text, in a class whose config does not say base64") from None
        except Exception as error:  # noqa: BLE001 - serializers are user code, as validators are
            raise PayloadError(f"cannot be written as JSON ({type(error).__name__})") from None
        return plain

    def load(self, stored: JsonValue) -> object:
        if self._accepts_parsed_json:
            return self._run_validator(self._validate, stored)
        return self._run_validator(self._parse, canonical_json(stored))

    def _written(self, checked: Any) -> JsonValue:
        # Fields by their names, without what a model computes: the form from which it can be built again.
        plain = self._dump(checked, mode="json", round_trip=True, by_alias=False, warnings="error")
        return normalize_json(plain, checked) if self._needs_normalizing else plain

    def _check_round_trip(self, plain: JsonValue, checked: object) -> None:
        try:
            back = self.load(plain)
        except ValueError as refused:
            # What no row may hold is not read either, and is the better reason.
            reason = find_json_fault(plain, max_depth=self.max_depth) or f"could not be read back: {refused}"
            raise PayloadError(reason) from None
        if lost := find_round_trip_loss(checked, back, has_untyped_parts=self._has_untyped_parts):
            raise PayloadError(lost)

    def _run_validator(self, validate: Callable[[Any], object], value: object) -> object:
        try:
            return validate(value)
        except ValidationError as error:
            raise PayloadError(summarize_validation_error(error, field_names(self._schema))) from None
        except MemoryError:  # says nothing about the value
            raise
        except Exception as error:  # noqa: BLE001 - user code again, whose message may quote the value
            raise PayloadError(f"not accepted ({type(error).__name__})") from None


def codec_for(annotation: object) -> ValueCodec:
    """How values so annotated are written and read."""
    return PlainCodec() if annotation is JsonValue else TypedCodec(annotation)


def _is_round_trip_safe(schema: object) -> bool:
    return schema_types(schema) <= _ROUND_TRIP_SAFE_TYPES and not (
        has_other_keys_than_text(schema) or has_excluded_fields(schema)
    )


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(annotation, config=_ADAPTER_CONFIG)
    except PydanticUserError as error:
        if error.code != "type-adapter-config-unused":
            raise
    # Refused for a class that may bring a config. One that does not takes ours when it is only a part.
    part = GetPydanticSchema(lambda _, handler: handler.generate_schema(annotation))
    return TypeAdapter(Annotated[Any, part], config=_ADAPTER_CONFIG)
