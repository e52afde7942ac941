"""The arguments of a task: bound to its signature, written as JSON, and read again by the child that runs it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from horsies.codec.annotations import SignatureFault, parameter_value, return_value
from horsies.codec.shape import Shape
from horsies.codec.wire import Part, PayloadRefused, parsed, short_text, stored_text
from horsies.model.result import Err, Ok, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from pydantic import JsonValue

    from horsies.codec.value import Value


Container = TypeVar("Container", list[Any], dict[str, Any])

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class EncodedArguments(NamedTuple):
    """Arguments as they are stored: two canonical JSON texts, split by position and name as the caller gave them.

    Reading them raises ValueError where somebody put other text in their place.
    """

    args_json: str
    kwargs_json: str

    @property
    def args(self) -> list[JsonValue]:
        return _json(list, self.args_json)

    @property
    def kwargs(self) -> dict[str, JsonValue]:
        return _json(dict, self.kwargs_json)

    @property
    def size_bytes(self) -> int:
        return len(self.args_json.encode()) + len(self.kwargs_json.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Typed arguments, ready for the function."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCodec:
    """Everything about a function's signature that sending and running it need, worked out once.

    Defaults are not stored: a parameter that the sender left out gets the default of the code that runs.
    """

    shape: Shape
    values: Mapping[str, Value]
    ok: Value
    plain_calls: Collection[tuple[type, ...]] = ()
    """The types of arguments by position that are a complete call, and of which each is stored as it is: what most
    calls are, and all that has to be known of one."""

    @classmethod
    def of(cls, function: Callable[..., object]) -> Result[TaskCodec, tuple[SignatureFault, ...]]:
        """The codec of a function, or all that is wrong with its signature."""
        plain = inspect.unwrap(function)
        signature = inspect.signature(plain)
        found = {name: parameter_value(plain, each) for name, each in signature.parameters.items()}
        ok = return_value(plain, signature.return_annotation)
        faults = tuple(each.error for each in (*found.values(), ok) if isinstance(each, Err))
        if faults:
            return Err(faults)
        values = {name: each.unwrap() for name, each in found.items()}
        shape = Shape.of(signature)
        return Ok(cls(shape=shape, values=values, ok=ok.unwrap(), plain_calls=frozenset(_plain_calls(shape, values))))

    def encode(self, args: Sequence[object], kwargs: Mapping[str, object]) -> EncodedArguments:
        """Arguments in stored form; `PayloadRefused` names the first that is missing, unknown, doubled or unfit."""
        if not kwargs and (text := self._plain_text(args)) is not None:
            return EncodedArguments(text, "{}")
        names = self.shape.names_taken(len(args), kwargs)
        by_position = list(map(self._dumped, names, args))
        return EncodedArguments(
            stored_text(by_position, map(self._part, names, by_position)) if args else "[]",
            self.encode_keywords(kwargs) if kwargs else "{}",
        )

    def encode_keywords(self, kwargs: Mapping[str, object]) -> str:
        """Keyword arguments in stored form, of a call that need not be complete yet; all of them must be known."""
        by_name = {key: self._dumped(self.shape.name_of(key), value) for key, value in kwargs.items()}
        return stored_text(by_name, self._keys_and_values(by_name))

    def decode(
        self,
        args_json: str | bytes,
        kwargs_json: str | bytes,
        *,
        results: Mapping[str, JsonValue] = _NOTHING,
        injected: Mapping[str, object] = _NOTHING,
    ) -> Call:
        """Typed arguments from stored ones; `PayloadRefused` when they do not fit this function (any more).

        A workflow adds stored `results` of other nodes, and `injected` values that are passed on as they are.
        """
        args, kwargs = _stored(args_json), _stored(kwargs_json)
        if not isinstance(args, list) or not isinstance(kwargs, dict):
            raise PayloadRefused("stored arguments must be an array and an object")
        if results:
            kwargs = {**kwargs, **results}
        names = self.shape.names_taken(len(args), {**kwargs, **injected} if injected else kwargs)
        by_name = {key: self._loaded(self.shape.name_of(key), value) for key, value in kwargs.items()}
        return Call(
            args=tuple(self._loaded(name, value) for name, value in zip(names, args, strict=True)),
            kwargs={**by_name, **injected} if injected else by_name,
        )

    def _plain_text(self, args: Sequence[object]) -> str | None:
        try:
            return short_text(args) if tuple(map(type, args)) in self.plain_calls else None
        except TypeError:  # there are types that have no hash
            return None

    def _dumped(self, name: str, value: Any) -> JsonValue:
        codec = self.values[name]
        if type(value) is codec.as_is:
            return value
        try:
            return codec.dump(codec.check(value))
        except PayloadRefused as refused:
            raise PayloadRefused(refused.reason, parameter=name) from None

    def _loaded(self, name: str, stored: JsonValue) -> object:
        try:
            return self.values[name].load(stored)
        except PayloadRefused as refused:
            raise PayloadRefused(refused.reason, parameter=name) from None

    def _part(self, name: str, value: JsonValue) -> Part:
        return Part(value, self.values[name].max_depth, name)

    def _keys_and_values(self, by_name: dict[str, JsonValue]) -> Iterator[Part]:
        for key, value in by_name.items():
            yield Part(key, parameter=self.shape.name_of(key))
            yield self._part(self.shape.name_of(key), value)


def _plain_calls(shape: Shape, values: Mapping[str, Value]) -> Iterator[tuple[type, ...]]:
    for count in range(len(shape.positional) + 1):
        given = shape.positional[:count]
        types = [kind for name in given if (kind := values[name].as_is) is not None]
        if len(types) == count and set(shape.required) <= set(given):
            yield tuple(types)


# Most calls leave one of the two empty, and reading them costs more than running a short task.
_EMPTY: Mapping[str | bytes, Callable[[], JsonValue]] = {"[]": list, b"[]": list, "{}": dict, b"{}": dict}


def _json(kind: type[Container], text: str) -> Container:
    value = parsed(text)
    if not isinstance(value, kind):
        raise PayloadRefused("stored arguments must be an array and an object")
    return value


def _stored(text: str | bytes) -> JsonValue:
    if text in _EMPTY:
        return _EMPTY[text]()
    try:
        return parsed(text)
    except ValueError:
        raise PayloadRefused("stored arguments are no JSON") from None
