"""The arguments of a task: bound to its signature, written as JSON, and read again by the child that runs it."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple, TypeVar

from pydantic import JsonValue, PydanticSchemaGenerationError, PydanticUserError

from horsies.codec.canonical_json import DocumentPart, PayloadError, encode_document, encode_short_scalars, parse_json
from horsies.codec.results import workflow_parameter_codec
from horsies.codec.values import PlainCodec, ValueCodec, codec_for
from horsies.errors import ErrorCode
from horsies.model.result import Err, Ok, Result
from horsies.model.task_result import TaskError, TaskResult

# Which arguments a function takes, checked as a call would check them, without making the call.

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSignature:
    """The parameters of a function; `rest` and `extra` are the names behind `*` and `**`."""

    positional: tuple[str, ...]
    keywords: frozenset[str]
    required: tuple[str, ...]
    var_positional: str | None
    var_keyword: str | None
    _names_by_count: dict[int, tuple[str, ...]] = field(default_factory=dict["int", "tuple[str, ...]"], compare=False)

    @classmethod
    def of(cls, signature: inspect.Signature) -> CallSignature:
        parameters = signature.parameters.values()
        return cls(
            positional=tuple(each.name for each in parameters if each.kind in _BY_POSITION),
            keywords=frozenset(each.name for each in parameters if each.kind in _BY_KEYWORD),
            required=tuple(each.name for each in parameters if _is_required(each)),
            var_positional=next(
                (each.name for each in parameters if each.kind is inspect.Parameter.VAR_POSITIONAL), None
            ),
            var_keyword=next((each.name for each in parameters if each.kind is inspect.Parameter.VAR_KEYWORD), None),
        )

    def check_call(self, count: int, keywords: Collection[str]) -> None:
        """Refuse so many positional arguments with these keywords unless a call with them would bind."""
        if count > len(self.positional) and self.var_positional is None:
            raise PayloadError(f"{count} positional arguments given, at most {len(self.positional)} taken")
        filled = self.positional[:count]
        for name in keywords:
            if name in self.keywords:
                if name in filled:
                    raise PayloadError("given twice, by position and by name", parameter=name)
            elif not isinstance(name, str):
                raise PayloadError("has a keyword that is not text")
            elif self.var_keyword is None:
                raise PayloadError("unknown", parameter=name)
        for name in self.required:
            if name not in filled and not (name in keywords and name in self.keywords):
                raise PayloadError("missing", parameter=name)

    def bind_names(self, count: int, keywords: Collection[str]) -> tuple[str, ...]:
        """Refuse as `check` does, else say as `names_of` does; for calls by position alone it is found out once."""
        if not keywords and (names := self._names_by_count.get(count)) is not None:
            return names
        self.check_call(count, keywords)
        names = self.positional_names(count)
        if not keywords and count <= len(self.positional):
            self._names_by_count[count] = names
        return names

    def positional_names(self, count: int) -> tuple[str, ...]:
        """The parameter that takes each of so many positional arguments."""
        return self.positional[:count] + (self.var_positional or "",) * (count - len(self.positional))

    def prefer_keywords(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The same arguments, with all that can be given by name given so."""
        pairs = list(zip(self.positional_names(len(args)), args, strict=True))
        by_name = {name: value for name, value in pairs if name in self.keywords}
        return [value for name, value in pairs if name not in self.keywords], {**by_name, **kwargs}

    def parameter_for(self, keyword: str) -> str:
        """The parameter that takes this keyword."""
        return keyword if keyword in self.keywords else self.var_keyword or ""


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind in (*_BY_POSITION, inspect.Parameter.KEYWORD_ONLY)


# The annotations of a function, each resolved by itself so that a fault can be laid to one parameter.

RETURN = "return"
RETURN_HINT = "declare what it returns: -> TaskResult[int, TaskError]"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureFault:
    """Why a function cannot be a task; `parameter` is None where its return type is meant."""

    code: ErrorCode
    reason: str
    hint: str
    parameter: str | None = None
    may_resolve_later: bool = False
    """True when a name is not defined yet, as for a class that stands further down in the module."""


def parameter_codec(
    function: Callable[..., object], parameter: inspect.Parameter
) -> Result[ValueCodec, SignatureFault]:
    """How arguments for this parameter are written and read."""
    if parameter.annotation is parameter.empty:
        return Ok(PlainCodec())
    name = parameter.name
    return (
        _resolve_annotation(function, name, parameter.annotation)
        .and_then(lambda annotation: _build_codec(annotation, name))
        .and_then(lambda value: _check_default(value, parameter))
    )


def return_codec(function: Callable[..., object], annotation: object) -> Result[ValueCodec, SignatureFault]:
    """How the ok value of this function is written and read."""
    if annotation is inspect.Signature.empty:
        reason = "has no return annotation"
        return Err(SignatureFault(code=ErrorCode.TASK_NO_RETURN_TYPE, reason=reason, hint=RETURN_HINT))
    return (
        _resolve_annotation(function, RETURN, annotation)
        .and_then(_ok_type)
        .and_then(lambda found: _build_codec(found, None))
    )


def _ok_type(annotation: object) -> Result[object, SignatureFault]:
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is TaskResult and len(arguments) == 2 and arguments[1] is TaskError:
        return Ok(arguments[0])
    reason = f"must return TaskResult[T, TaskError], but returns {_format_annotation(annotation)}"
    return Err(SignatureFault(code=ErrorCode.TASK_INVALID_RETURN_TYPE, reason=reason, hint=RETURN_HINT))


def _check_default(value: ValueCodec, parameter: inspect.Parameter) -> Result[ValueCodec, SignatureFault]:
    """Defaults are not stored, and so never checked when a task is sent or run."""
    if parameter.default is parameter.empty:
        return Ok(value)
    try:
        value.validate(parameter.default)
    except PayloadError as refused:
        reason = f"its default does not fit its annotation: {refused.reason}"
        hint = "change one of them, as in limit: int | None = None"
        code = ErrorCode.TASK_STRICT_SIGNATURE_VIOLATION
        return Err(SignatureFault(code=code, reason=reason, hint=hint, parameter=parameter.name))
    return Ok(value)


def _resolve_annotation(
    function: Callable[..., object], name: str, annotation: object
) -> Result[object, SignatureFault]:
    """The annotation with its forward references looked up in the function's module."""
    alone = SimpleNamespace(__annotations__={name: annotation})
    names = getattr(function, "__globals__", {})
    try:
        return Ok(typing.get_type_hints(alone, globalns=names, include_extras=True)[name])
    except Exception as error:  # noqa: BLE001 - evaluating an annotation runs whatever is written there
        return Err(_annotation_fault(name, error))


def _build_codec(annotation: object, name: str | None) -> Result[ValueCodec, SignatureFault]:
    try:
        upstream = None if name is None else workflow_parameter_codec(name, annotation)
        return Ok(upstream or codec_for(annotation))
    except Exception as error:  # noqa: BLE001 - a class may build its own schema, and raise anything in it
        return Err(_annotation_fault(name, error))


def _is_unresolved(error: Exception) -> bool:
    if isinstance(error, PydanticUserError):
        return error.code == "class-not-fully-defined"
    return isinstance(error, NameError)


def _annotation_fault(name: str | None, error: Exception) -> SignatureFault:
    may_resolve_later = _is_unresolved(error)
    return SignatureFault(
        code=ErrorCode.TASK_STRICT_SIGNATURE_VIOLATION,
        parameter=None if name == RETURN else name,
        reason=_reason(error),
        may_resolve_later=may_resolve_later,
        hint="define the class above the task"
        if may_resolve_later
        else "use plain types, dataclasses or pydantic models",
    )


def _reason(error: Exception) -> str:
    first = str(error).partition("\n")[0]
    if isinstance(error, PydanticSchemaGenerationError):
        # Goes on with advice for models, which does not help a task.
        kind = first.partition(" schema for ")[2].partition(". ")[0]
        return f"{_strip_modules(kind)} cannot be stored as JSON"
    return first


def _format_annotation(annotation: object) -> str:
    """The annotation as people write it, without the modules of its names."""
    return _strip_modules(inspect.formatannotation(annotation)).replace("NoneType", "None")


def _strip_modules(written: str) -> str:
    return re.sub(r"\w+\.|<class '|'>|<locals>\.", "", written)


Container = TypeVar("Container", list[Any], dict[str, Any])

_EMPTY_MAPPING: Mapping[str, Any] = MappingProxyType({})


class EncodedArguments(NamedTuple):
    """Arguments as they are stored: two canonical JSON texts, split by position and name as the caller gave them.

    Reading them raises ValueError where somebody put other text in their place.
    """

    args_json: str
    kwargs_json: str

    @property
    def args(self) -> list[JsonValue]:
        return _parse_container(list, self.args_json)

    @property
    def kwargs(self) -> dict[str, JsonValue]:
        return _parse_container(dict, self.kwargs_json)

    @property
    def size_bytes(self) -> int:
        return len(self.args_json.encode()) + len(self.kwargs_json.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedArguments:
    """Typed arguments, ready for the function."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCodec:
    """Everything about a function's signature that sending and running it need, worked out once.

    Defaults are not stored: a parameter that the sender left out gets the default of the code that runs.
    """

    signature: CallSignature
    parameter_codecs: Mapping[str, ValueCodec]
    result_codec: ValueCodec
    plain_call_types: Collection[tuple[type, ...]] = ()
    """The types of arguments by position that are a complete call, and of which each is stored as it is: what most
    calls are, and all that has to be known of one."""

    @classmethod
    def of(cls, function: Callable[..., object]) -> Result[TaskCodec, tuple[SignatureFault, ...]]:
        """The codec of a function, or all that is wrong with its signature."""
        plain = inspect.unwrap(function)
        signature = inspect.signature(plain)
        found = {name: parameter_codec(plain, each) for name, each in signature.parameters.items()}
        ok = return_codec(plain, signature.return_annotation)
        faults = tuple(each.error for each in (*found.values(), ok) if isinstance(each, Err))
        if faults:
            return Err(faults)
        values = {name: each.unwrap() for name, each in found.items()}
        shape = CallSignature.of(signature)
        return Ok(
            cls(
                signature=shape,
                parameter_codecs=values,
                result_codec=ok.unwrap(),
                plain_call_types=frozenset(_find_plain_call_types(shape, values)),
            )
        )

    def encode(self, args: Sequence[object], kwargs: Mapping[str, object]) -> EncodedArguments:
        """Arguments in stored form; `PayloadRefused` names the first that is missing, unknown, doubled or unfit."""
        if not kwargs and (text := self._encode_plain_call(args)) is not None:
            return EncodedArguments(text, "{}")
        names = self.signature.bind_names(len(args), kwargs)
        by_position = list(map(self._dumped, names, args))
        return EncodedArguments(
            encode_document(by_position, map(self._document_part, names, by_position)) if args else "[]",
            self.encode_keywords(kwargs) if kwargs else "{}",
        )

    def encode_keywords(self, kwargs: Mapping[str, object]) -> str:
        """Keyword arguments in stored form, of a call that need not be complete yet; all of them must be known."""
        by_name = {key: self._dumped(self.signature.parameter_for(key), value) for key, value in kwargs.items()}
        return encode_document(by_name, self._keys_and_values(by_name))

    def decode(
        self,
        args_json: str | bytes,
        kwargs_json: str | bytes,
        *,
        results: Mapping[str, JsonValue] = _EMPTY_MAPPING,
        injected: Mapping[str, object] = _EMPTY_MAPPING,
    ) -> DecodedArguments:
        """Typed arguments from stored ones; `PayloadRefused` when they do not fit this function (any more).

        A workflow adds stored `results` of other nodes, and `injected` values that are passed on as they are.
        """
        args, kwargs = _parse_arguments(args_json), _parse_arguments(kwargs_json)
        if not isinstance(args, list) or not isinstance(kwargs, dict):
            raise PayloadError("stored arguments must be an array and an object")
        if results:
            kwargs = {**kwargs, **results}
        names = self.signature.bind_names(len(args), {**kwargs, **injected} if injected else kwargs)
        by_name = {key: self._loaded(self.signature.parameter_for(key), value) for key, value in kwargs.items()}
        return DecodedArguments(
            args=tuple(self._loaded(name, value) for name, value in zip(names, args, strict=True)),
            kwargs={**by_name, **injected} if injected else by_name,
        )

    def _encode_plain_call(self, args: Sequence[object]) -> str | None:
        try:
            return encode_short_scalars(args) if tuple(map(type, args)) in self.plain_call_types else None
        except TypeError:  # there are types that have no hash
            return None

    def _dumped(self, name: str, value: Any) -> JsonValue:
        codec = self.parameter_codecs[name]
        if type(value) is codec.passthrough_type:
            return value
        try:
            return codec.dump(codec.validate(value))
        except PayloadError as refused:
            raise PayloadError(refused.reason, parameter=name) from None

    def _loaded(self, name: str, stored: JsonValue) -> object:
        try:
            return self.parameter_codecs[name].load(stored)
        except PayloadError as refused:
            raise PayloadError(refused.reason, parameter=name) from None

    def _document_part(self, name: str, value: JsonValue) -> DocumentPart:
        return DocumentPart(value, self.parameter_codecs[name].max_depth, name)

    def _keys_and_values(self, by_name: dict[str, JsonValue]) -> Iterator[DocumentPart]:
        for key, value in by_name.items():
            yield DocumentPart(key, parameter=self.signature.parameter_for(key))
            yield self._document_part(self.signature.parameter_for(key), value)


def _find_plain_call_types(shape: CallSignature, values: Mapping[str, ValueCodec]) -> Iterator[tuple[type, ...]]:
    for count in range(len(shape.positional) + 1):
        given = shape.positional[:count]
        types = [kind for name in given if (kind := values[name].passthrough_type) is not None]
        if len(types) == count and set(shape.required) <= set(given):
            yield tuple(types)


# Most calls leave one of the two empty, and reading them costs more than running a short task.
_EMPTY: Mapping[str | bytes, Callable[[], JsonValue]] = {"[]": list, b"[]": list, "{}": dict, b"{}": dict}


def _parse_container(kind: type[Container], text: str) -> Container:
    value = parse_json(text)
    if not isinstance(value, kind):
        raise PayloadError("stored arguments must be an array and an object")
    return value


def _parse_arguments(text: str | bytes) -> JsonValue:
    if text in _EMPTY:
        return _EMPTY[text]()
    try:
        return parse_json(text)
    except ValueError:
        raise PayloadError("stored arguments are no JSON") from None
