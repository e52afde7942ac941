"""One value on its way into a row and out of it: checked and typed by an annotation, or plain JSON without one.

What is written is what can be read: a value of a type that JSON might change is read back before it is sent, and
refused unless it is the same. Fields are written under their names. An alias is read too, for rows written by others,
unless it is also the name of another field.

Bytes are written as base64 text. Only a pydantic model or pydantic dataclass decides for itself about the bytes in it,
by `ser_json_bytes` and `val_json_bytes` of its config, and pydantic's own choice is UTF-8: bytes that are no such text
are refused there until the class says base64. A plain dataclass or typed dict goes with what it stands in.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from pydantic import ConfigDict, GetPydanticSchema, JsonValue, PydanticUserError, TypeAdapter, ValidationError

from horsies.codec.explain import explained
from horsies.codec.faithful import faithful
from horsies.codec.loss import loss
from horsies.codec.schema import (
    field_names,
    has_clashing_aliases,
    has_excluded_fields,
    has_other_keys_than_text,
    is_loose,
    kinds,
    nodes,
)
from horsies.codec.wire import MAX_DEPTH, MAX_PARSED_DEPTH, PayloadRefused, canonical, fault_in

if TYPE_CHECKING:
    from collections.abc import Callable

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
