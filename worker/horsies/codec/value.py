"""One value on its way into a row and out of it: checked and typed by an annotation, or plain JSON without one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import ConfigDict, JsonValue, PydanticUserError, TypeAdapter, ValidationError

from horsies.codec.explain import explained
from horsies.codec.faithful import faithful
from horsies.codec.schema import field_names, kinds, nodes
from horsies.codec.wire import MAX_DEPTH, MAX_PARSED_DEPTH, PayloadRefused, canonical, fault_in

if TYPE_CHECKING:
    from collections.abc import Callable

# A model or dataclass has a configuration of its own, which decides about the bytes in it. A NaN must stay one, for
# we refuse it, where pydantic would write null.
_WIRE = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants")

# Types for which a parsed value and its JSON text are read alike, so that the text need not be parsed twice.
_READ_ALIKE = frozenset({"int", "str", "float", "bool", "none", "any", "list", "dict", "nullable"})
# Types whose values need neither pydantic nor any change; they are what most arguments are.
_OWN_FORM: tuple[Any, ...] = (int, str, float, bool)
# Types whose JSON form pydantic may write other than we would.
_TO_BE_COMPARED = frozenset({"set", "frozenset", "any", "is-instance"})


class Value(Protocol):
    """How values of one parameter, or of one return type, are written and read."""

    @property
    def max_depth(self) -> int:
        """How deep a stored value may be nested and still be read."""
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
    """Without an annotation only plain JSON is taken: what goes in is exactly what comes out."""

    max_depth = MAX_DEPTH

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

    __slots__ = ("_as_is", "_dump", "_is_compared", "_parse", "_reads_alike", "_schema", "_validate", "max_depth")

    def __init__(self, annotation: object) -> None:
        """Raises whatever pydantic or the annotated class raises when there is no way to build an adapter."""
        adapter = _adapter(annotation)
        found = kinds(adapter.core_schema)
        is_strict = any(node.get("strict") for node in nodes(adapter.core_schema))
        self._as_is: Any = annotation if annotation in _OWN_FORM else None
        self._schema = adapter.core_schema
        self._validate = adapter.validator.validate_python
        self._dump = adapter.serializer.to_python
        self._parse = partial(adapter.validator.validate_json, by_name=True, by_alias=True)
        self._reads_alike = found <= _READ_ALIKE and not is_strict
        self._is_compared = bool(found & _TO_BE_COMPARED)
        self.max_depth = MAX_DEPTH if self._reads_alike else MAX_PARSED_DEPTH

    def check(self, value: object) -> object:
        return value if type(value) is self._as_is else self._accepted(self._validate, value)

    def dump(self, checked: Any) -> JsonValue:
        if type(checked) is self._as_is:
            return checked
        # Fields by their names, without what a model computes: the form from which it can be built again.
        try:
            plain = self._dump(checked, mode="json", round_trip=True, by_alias=False, warnings="error")
            if not self._is_compared:
                return plain
            return faithful(plain, self._dump(checked, round_trip=True, by_alias=False))
        except PayloadRefused:
            raise
        except Exception as error:  # noqa: BLE001 - serializers are user code, as validators are
            raise PayloadRefused(f"cannot be written as JSON ({type(error).__name__})") from None

    def load(self, stored: JsonValue) -> object:
        if self._reads_alike:
            return self._accepted(self._validate, stored)
        return self._accepted(self._parse, canonical(stored))

    def _accepted(self, validate: Callable[[Any], object], value: object) -> object:
        try:
            return validate(value)
        except ValidationError as error:
            raise PayloadRefused(explained(error, field_names(self._schema))) from None
        except Exception as error:  # noqa: BLE001 - user code again, whose message may quote the value
            raise PayloadRefused(f"not accepted ({type(error).__name__})") from None


def value_of(annotation: object) -> Value:
    """How values so annotated are written and read."""
    return PlainValue() if annotation is JsonValue else TypedValue(annotation)


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(annotation, config=_WIRE)
    except PydanticUserError as error:
        if error.code != "type-adapter-config-unused":
            raise
        return TypeAdapter(annotation)
