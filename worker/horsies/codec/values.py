"""Codecs for single values: typed by an annotation with pydantic, or plain JSON without one.

Every stored value can be read back: a value of a type that JSON might change is decoded again before it is sent, and
rejected if it differs. Fields are stored under their names. Aliases are accepted when decoding, for rows written by
other programs, unless the alias is also the name of another field.

Bytes are stored as base64 text. A pydantic model or pydantic dataclass uses `ser_json_bytes` and `val_json_bytes` of
its own config instead, whose default is UTF-8, so other bytes in it are rejected until its config says base64. Plain
dataclasses and typed dicts inherit from the type that contains them.
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
from horsies.model.text import format_violations

# NaN stays NaN, so that it is rejected; by default pydantic would encode it as null.
_ADAPTER_CONFIG = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants")

# Schema types for which validating parsed JSON equals validating its text, so the text is not parsed twice.
_PARSED_JSON_TYPES = frozenset({"int", "str", "float", "bool", "none", "any", "list", "dict", "nullable"})
# Types whose values need no conversion; most arguments have them.
_PASSTHROUGH_TYPES: tuple[type, ...] = (int, str, float, bool, type(None))
# Schema types whose JSON form needs `normalize_json`.
_NORMALIZED_TYPES = frozenset({"set", "frozenset", "any", "is-instance"})
# Schema types whose values always survive a round trip; values of other types are checked before they are sent.
_ROUND_TRIP_SAFE_TYPES = frozenset(
    {"int", "str", "float", "bool", "none", "date", "uuid", "decimal", "list", "tuple", "set", "frozenset", "dict"}
    | {"nullable", "default", "definitions", "definition-ref", "model", "model-fields", "model-field"}
    | {"dataclass", "dataclass-args", "dataclass-field", "typed-dict", "typed-dict-field"}
)


class ValueCodec(Protocol):
    """Encodes and decodes the values of one parameter or return type."""

    @property
    def max_depth(self) -> int:
        """How deep a stored value may be nested."""
        ...

    @property
    def passthrough_type(self) -> type | None:
        """The type whose values need neither validation nor conversion, if there is one."""
        ...

    @property
    def annotation(self) -> object:
        """The declared type; Any if there is none."""
        ...

    def validate(self, value: object) -> object:
        """Convert the value to the annotated type; raises PayloadError if it does not match."""
        ...

    def dump(self, checked: object) -> JsonValue:
        """Convert a validated value to plain JSON; raises PayloadError if it has no JSON form."""
        ...

    def load(self, stored: JsonValue) -> object:
        """Convert a stored value to the annotated type; raises PayloadError if it does not match."""
        ...


class PlainCodec:
    """Codec of unannotated parameters: accepts plain JSON only. The order of keys may change."""

    max_depth = MAX_DEPTH
    passthrough_type = None
    annotation: object = Any

    def validate(self, value: object) -> object:
        if fault := find_json_fault(value):
            raise PayloadError(fault)
        return value

    def dump(self, checked: Any) -> JsonValue:
        return checked

    def load(self, stored: JsonValue) -> object:
        return stored


class TypedCodec:
    """Codec of annotated values: pydantic in lax mode. Class names are not stored."""

    def __init__(self, annotation: object) -> None:
        """Build the adapter; errors of pydantic and of the annotated class are not translated."""
        adapter = _build_adapter(annotation)
        schema = adapter.core_schema
        types = frozenset(node["type"] for node in schema_nodes(schema) if "type" in node)
        is_strict = any(node.get("strict") for node in schema_nodes(schema))
        kind: Any = type(None) if annotation is None else annotation
        self.passthrough_type: Any = kind if kind in _PASSTHROUGH_TYPES else None
        self.annotation = annotation
        self._schema = schema
        self._validate = adapter.validator.validate_python
        self._dump = adapter.serializer.to_python
        by_alias = not has_clashing_aliases(schema)
        self._parse = partial(adapter.validator.validate_json, by_name=True, by_alias=by_alias)
        self._accepts_parsed_json = types <= _PARSED_JSON_TYPES and not is_strict
        self._has_untyped_parts = any(map(_is_untyped, schema_nodes(schema)))
        self._needs_normalizing = self._has_untyped_parts or bool(types & _NORMALIZED_TYPES)
        is_round_trip_safe = types <= _ROUND_TRIP_SAFE_TYPES and not any(map(_may_lose_values, schema_nodes(schema)))
        self._needs_round_trip_check = self._has_untyped_parts or not is_round_trip_safe
        self._keeps_plain_json = types <= _PARSED_JSON_TYPES and not any(
            "serialization" in node for node in schema_nodes(schema)
        )
        """Whether a value that is plain JSON already is its own stored form."""
        self.max_depth = MAX_DEPTH if self._accepts_parsed_json else MAX_PARSED_DEPTH

    def validate(self, value: object) -> object:
        # The exact type: a subclass, such as bool of int or an enum of str, has to be converted.
        return value if type(value) is self.passthrough_type else self._run_validator(self._validate, value)

    def dump(self, checked: Any) -> JsonValue:
        if type(checked) is self.passthrough_type:
            return checked
        if self._needs_round_trip_check and self._keeps_plain_json and find_json_fault(checked) is None:
            return checked
        try:
            # Field names instead of aliases, without computed fields: the form a model can be built from again.
            plain = self._dump(checked, mode="json", round_trip=True, by_alias=False, warnings="error")
            if self._needs_normalizing:
                plain = normalize_json(plain, checked)
            if self._needs_round_trip_check:
                self._check_round_trip(plain, checked)
        except (PayloadError, MemoryError):
            raise
        except UnicodeDecodeError:
            reason = 'contains bytes that are not UTF-8; set ser_json_bytes="base64" in the config of the class'
            raise PayloadError(reason) from None
        except Exception as error:  # noqa: BLE001 - serializers are user code
            raise PayloadError(f"cannot be written as JSON ({type(error).__name__})") from None
        return plain

    def load(self, stored: JsonValue) -> object:
        if self._accepts_parsed_json:
            return self.validate(stored)
        return self._run_validator(self._parse, canonical_json(stored))

    def _check_round_trip(self, plain: JsonValue, checked: object) -> None:
        try:
            decoded = self.load(plain)
        except ValueError as error:
            # A value that cannot be stored fails to load too; that is the better reason.
            reason = find_json_fault(plain, max_depth=self.max_depth) or f"could not be read back: {error}"
            raise PayloadError(reason) from None
        if lost := find_round_trip_loss(checked, decoded, has_untyped_parts=self._has_untyped_parts):
            raise PayloadError(lost)

    def _run_validator(self, validate: Callable[[Any], object], value: object) -> object:
        try:
            return validate(value)
        except ValidationError as error:
            raise PayloadError(summarize_validation_error(error, field_names(self._schema))) from None
        except MemoryError:  # not a fault of the value
            raise
        except Exception as error:  # noqa: BLE001 - validators are user code; the message may quote the value
            raise PayloadError(f"could not be validated ({type(error).__name__})") from None


def codec_for(annotation: object) -> ValueCodec:
    """Return the codec for an annotation."""
    return PlainCodec() if annotation is JsonValue else TypedCodec(annotation)


def _build_adapter(annotation: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(annotation, config=_ADAPTER_CONFIG)
    except PydanticUserError as error:
        if error.code != "type-adapter-config-unused":
            raise
    # pydantic rejects a config for classes that may have their own. As a nested type, a class without one uses ours.
    nested = GetPydanticSchema(lambda _, handler: handler.generate_schema(annotation))
    return TypeAdapter(Annotated[Any, nested], config=_ADAPTER_CONFIG)


# Messages for rejected values, which never show the value

MAX_ERRORS_SHOWN = 5


def summarize_validation_error(error: ValidationError, known_names: Iterable[str]) -> str:
    """List the errors with their paths, and the number of errors left out.

    A path shows indexes and `known_names` only; keys of a dict are user data and shown as `*`.
    """
    messages = format_violations(error, is_shown=frozenset(known_names).__contains__)
    summary = "; ".join(messages[:MAX_ERRORS_SHOWN])
    return summary if len(messages) <= MAX_ERRORS_SHOWN else f"{summary}; and {len(messages) - MAX_ERRORS_SHOWN} more"


# Round-trip check: a value is decoded again before it is sent, to find what JSON would lose

_JSON_SCALARS = (str, int, float, type(None))


def find_round_trip_loss(given: object, decoded: object, *, has_untyped_parts: bool) -> str | None:
    """Return how `decoded`, read from the stored form of `given`, differs from it, or None if it does not.

    With `has_untyped_parts`, an array may come back for any collection, an object for a model, and a string for a value
    that is encoded as one; keys, numbers and strings must still be unchanged.
    """
    if _is_equal(given, decoded):
        return None
    given, decoded = unwrap_root_model(given), unwrap_root_model(decoded)
    before, after = nested_values(given), nested_values(decoded)
    if before is None or after is None:
        return _scalar_loss(given, decoded, is_untyped=has_untyped_parts)
    is_object = not isinstance(given, Mapping | list | tuple)
    if not is_object and before.keys() != after.keys():
        return "has a key that would change when read back"
    # An error may show the names of declared fields; keys and the names of extra fields are user data.
    declared = type(given).model_fields if isinstance(given, BaseModel) else before
    # For objects, compare decoded fields only: fields added by a subclass are not part of the declared type.
    for name in after:
        if name in before and (
            lost := find_round_trip_loss(before[name], after[name], has_untyped_parts=has_untyped_parts)
        ):
            return f"{name}: {lost}" if is_object and name in declared else lost
    return None


def _scalar_loss(given: object, decoded: object, *, is_untyped: bool) -> str | None:
    if not _is_comparable(given) or (is_untyped and not isinstance(given, _JSON_SCALARS)):
        return None
    before, after = type(given).__qualname__, type(decoded).__qualname__
    change = "a different value" if before == after else after
    return f"contains a value of type {before} that would be read back as {change}"


def _is_equal(given: object, decoded: object) -> bool:
    try:
        return bool(given == decoded)
    except Exception:  # noqa: BLE001 - `==` is user code, and numpy arrays have no single truth value
        return False


def _is_comparable(given: object) -> bool:
    """Whether inequality means a loss: not for iterators, which are consumed, or types compared by identity."""
    has_equality = type(given).__eq__ is not object.__eq__
    return has_equality and not isinstance(given, Iterator) and _is_equal(given, given)


# Comparison of a typed value with its JSON form


def unwrap_root_model(value: object) -> object:
    """Return the content of a root model, any other value unchanged."""
    return unwrap_root_model(cast("RootModel[object]", value).root) if isinstance(value, RootModel) else value


def nested_values(value: object) -> Mapping[Any, object] | None:
    """Return the items of a mapping, the elements of a sequence by index, or the fields of an object; else None.

    Private attributes, computed fields and cached properties are not included.
    """
    if isinstance(value, Mapping):
        return cast("Mapping[object, object]", value)
    if isinstance(value, list | tuple):
        return dict(enumerate(cast("Sequence[object]", value)))
    if isinstance(value, BaseModel):
        return _existing_attributes(value, type(value).model_fields) | (value.model_extra or {})
    if dataclasses.is_dataclass(value):
        return _existing_attributes(value, [field.name for field in dataclasses.fields(value)])
    return None


def _existing_attributes(value: object, names: Iterable[str]) -> dict[str, object]:
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


_SECRETS: tuple[type[object], ...] = (Secret, SecretBytes, SecretStr)


def normalize_json(plain: JsonValue, typed: object) -> JsonValue:
    """Sort the arrays in `plain` that encode sets, by the canonical text of their elements.

    The order of a set differs between processes, but equal arguments need equal fingerprints. Raises PayloadError for
    NaN or Infinity encoded as null and for a masked secret, which pydantic would encode silently. `typed` is the value
    before encoding; where its shape differs from `plain`, because of a custom serializer, `plain` is not changed.
    """
    typed = unwrap_root_model(typed)
    if isinstance(plain, dict):
        return _normalize_object(plain, typed)
    if plain is None and isinstance(typed, float):
        raise PayloadError("contains NaN or Infinity")
    if isinstance(typed, _SECRETS) and plain and plain == str(typed):
        raise PayloadError("contains a secret, of which only the mask would be stored")
    if not isinstance(plain, list) or not isinstance(typed, list | tuple | set | frozenset):
        return plain
    typed_items = cast("Collection[object]", typed)
    if len(typed_items) != len(plain):
        return plain
    normalized = [normalize_json(value, item) for value, item in zip(plain, typed_items, strict=True)]
    return sorted(normalized, key=canonical_json) if isinstance(typed, set | frozenset) else normalized


def _normalize_object(plain: dict[str, JsonValue], typed: object) -> JsonValue:
    inner = nested_values(typed)
    if inner is None:
        return plain
    if not isinstance(typed, Mapping):
        return {key: normalize_json(value, inner.get(key)) for key, value in plain.items()}
    # Encoded keys may differ from the keys themselves, but their order is the same.
    if len(inner) != len(plain):
        return plain
    return {key: normalize_json(value, item) for (key, value), item in zip(plain.items(), inner.values(), strict=True)}


# Inspection of pydantic core schemas, once per annotation

# User values are stored under these keys; they are not schemas and may be cyclic.
_NOT_SCHEMA = frozenset({"default", "metadata", "expected", "cls"})
# Mappings under these keys have user-defined keys: field names, tags of a union.
_KEYED_BY_USER = frozenset({"fields", "choices"})
_ITEMS = frozenset({"items_schema"})
# A container without these keys may contain anything.
_ELEMENT_SCHEMAS: Mapping[str, frozenset[str]] = {
    "dict": frozenset({"keys_schema", "values_schema"}),
    "list": _ITEMS,
    "set": _ITEMS,
    "frozenset": _ITEMS,
    "generator": _ITEMS,
}


def schema_nodes(schema: object) -> Iterator[Mapping[str, Any]]:
    """Yield every node of the schema, the outermost first."""
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


def field_names(schema: object) -> frozenset[str]:
    """Return the names of all fields of models, dataclasses and typed dicts."""
    return frozenset(name for node in schema_nodes(schema) for name, _ in _fields(node))


def has_clashing_aliases(schema: object) -> bool:
    """Whether the alias of a field is also the name of another field of its class."""
    return any(
        _alias_keys(field.get("validation_alias")) & fields.keys() - {name}
        for fields in (dict(_fields(node)) for node in schema_nodes(schema))
        for name, field in fields.items()
    )


def _may_lose_values(node: Mapping[str, Any]) -> bool:
    """Whether it excludes fields, or has keys that are not strings."""
    has_other_keys = "keys_schema" in node and node["keys_schema"]["type"] != "str"
    return has_other_keys or "serialization_exclude" in node or "serialization_exclude_if" in node


def _is_untyped(node: Mapping[str, Any]) -> bool:
    """Whether part of a value has no declared type, as with Any or a bare `dict`."""
    kind = node.get("type", "")
    if kind == "any" or "allow" in (node.get("extra_behavior"), node.get("extra_fields_behavior")):
        return True
    return bool(_ELEMENT_SCHEMAS.get(kind, frozenset()) - node.keys())


def _fields(node: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    fields = node.get("fields")
    if isinstance(fields, dict):
        yield from cast("dict[str, Any]", fields).items()
    elif isinstance(fields, list):
        # The schema of a dataclass also lists the names of its fields as strings.
        for field in cast("list[object]", fields):
            if isinstance(field, dict):
                yield field["name"], cast("dict[str, Any]", field)


def _alias_keys(alias: object) -> frozenset[object]:
    """Return the top-level keys of an alias, which is a key, a path of keys, or several such paths."""
    if not isinstance(alias, list):
        return frozenset({alias})
    path = cast("list[object]", alias)
    return frozenset(cast("list[object]", step)[0] if isinstance(step, list) else path[0] for step in path)
