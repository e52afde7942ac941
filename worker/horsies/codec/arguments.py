"""Task arguments: checked against the function's signature, encoded as JSON, decoded again in the child."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple, TypeVar

from pydantic import JsonValue, PydanticSchemaGenerationError

from horsies.codec.canonical_json import DocumentPart, PayloadError, encode_document, parse_json, utf8_length
from horsies.codec.results import TaskResultCodec, decode_document, workflow_parameter_codec
from horsies.codec.values import PlainCodec, ValueCodec, codec_for
from horsies.errors import ErrorCode
from horsies.model.result import Err, Ok, Result
from horsies.model.task_result import TaskError, TaskResult

Container = TypeVar("Container", list[Any], dict[str, Any])

_EMPTY_MAPPING: Mapping[str, Any] = MappingProxyType({})


class EncodedArguments(NamedTuple):
    """Positional and keyword arguments in stored form: canonical JSON texts.

    `args` and `kwargs` raise PayloadError if the stored text is not a JSON array or object.
    """

    args_json: str
    kwargs_json: str

    @property
    def args(self) -> list[JsonValue]:
        return _parse_arguments(list, self.args_json)

    @property
    def kwargs(self) -> dict[str, JsonValue]:
        return _parse_arguments(dict, self.kwargs_json)

    @property
    def size_bytes(self) -> int:
        return utf8_length(self.args_json) + utf8_length(self.kwargs_json)


class DecodedArguments(NamedTuple):
    """Typed arguments to call the function with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCodec:
    """Encodes and decodes the arguments of one task function; built once when the task is registered.

    Defaults are not stored: a parameter the sender left out gets the default of the code that runs.
    """

    signature: CallSignature
    parameter_codecs: Mapping[str, ValueCodec]
    result_codec: ValueCodec
    is_plain: bool = False
    """Whether the function returns a plain value instead of a `TaskResult`."""

    @classmethod
    def of(cls, function: Callable[..., object]) -> Result[TaskCodec, tuple[SignatureFault, ...]]:
        """Build the codec of a function, or return every fault of its signature."""
        unwrapped = inspect.unwrap(function)  # a decorator's wrapper often takes (*args, **kwargs) only
        signature = inspect.signature(unwrapped)
        parameters = {name: parameter_codec(unwrapped, p) for name, p in signature.parameters.items()}
        returned = return_codec(unwrapped, signature.return_annotation)
        faults = tuple(codec.error for codec in (*parameters.values(), returned) if isinstance(codec, Err))
        if faults:
            return Err(faults)
        codecs = {name: codec.unwrap() for name, codec in parameters.items()}
        declared = _resolve_annotation(unwrapped, RETURN, signature.return_annotation)
        return Ok(
            cls(
                signature=CallSignature.of(signature),
                parameter_codecs=codecs,
                result_codec=returned.unwrap(),
                is_plain=not _mentions_task_result(declared.unwrap()),
            )
        )

    def encode(self, args: Sequence[object], kwargs: Mapping[str, object]) -> EncodedArguments:
        """Encode arguments; raises PayloadError for the first missing, unknown, duplicate or invalid one."""
        names = self.signature.bind(len(args), kwargs)
        by_position = list(map(self._dump, names, args))
        return EncodedArguments(
            encode_document(by_position, map(self._document_part, names, by_position)) if args else "[]",
            self.encode_keywords(kwargs) if kwargs else "{}",
        )

    def encode_keywords(self, kwargs: Mapping[str, object]) -> str:
        """Encode keyword arguments of a call that may still be incomplete; every keyword must be known."""
        by_name = {key: self._dump(self.signature.parameter_for(key), value) for key, value in kwargs.items()}
        return encode_document(by_name, self._keys_and_values(by_name))

    def decode(
        self,
        args_json: str | bytes,
        kwargs_json: str | bytes,
        *,
        results: Mapping[str, JsonValue] = _EMPTY_MAPPING,
        injected: Mapping[str, object] = _EMPTY_MAPPING,
    ) -> DecodedArguments:
        """Decode stored arguments; raises PayloadError if they do not match the function, which may have changed.

        A workflow adds stored `results` of other nodes, and `injected` values that are passed unchanged.
        """
        if args_json in _EMPTY_ARRAYS and kwargs_json in _EMPTY_OBJECTS and not results and not injected:
            self.signature.bind(0, ())
            return DecodedArguments((), {})
        args = _parse_arguments(list, args_json)
        kwargs = {} if kwargs_json in _EMPTY_OBJECTS else _parse_arguments(dict, kwargs_json)
        names = self.signature.bind(len(args), {**kwargs, **results, **injected} if results or injected else kwargs)
        by_name = {key: self._load(self.signature.parameter_for(key), value) for key, value in kwargs.items()}
        by_name |= {key: self._load_result(key, document) for key, document in results.items()}
        return DecodedArguments(
            args=tuple(map(self._load, names, args)),
            kwargs={**by_name, **injected} if injected else by_name,
        )

    def takes_any_result(self, keyword: str) -> bool:
        """Whether this keyword goes to a `**kwargs` without a type, which takes the result of any node."""
        codec = self.parameter_codecs[self.signature.parameter_for(keyword)]
        return keyword not in self.signature.keywords and codec.annotation is Any

    def _load_result(self, keyword: str, document: JsonValue) -> object:
        parameter = self.signature.parameter_for(keyword)
        if self.takes_any_result(keyword):
            return decode_document(document)
        if isinstance(self.parameter_codecs[parameter], TaskResultCodec):
            return self._load(parameter, document)
        # A parameter of a plain type takes the value; its node is skipped if the other node failed.
        if not isinstance(document, dict) or "ok" not in document:
            raise PayloadError("takes the value of a node that has none", parameter=parameter)
        return self._load(parameter, document["ok"])

    def _dump(self, name: str, value: Any) -> JsonValue:
        codec = self.parameter_codecs[name]
        if type(value) is codec.passthrough_type:  # most arguments; two calls less for each
            return value
        try:
            return codec.dump(codec.validate(value))
        except PayloadError as error:
            raise PayloadError(error.reason, parameter=name) from None

    def _load(self, name: str, stored: JsonValue) -> object:
        codec = self.parameter_codecs[name]
        if type(stored) is codec.passthrough_type:  # most arguments; two calls less for each
            return stored
        try:
            return codec.load(stored)
        except PayloadError as error:
            raise PayloadError(error.reason, parameter=name) from None

    def _document_part(self, name: str, value: JsonValue) -> DocumentPart:
        return DocumentPart(value, self.parameter_codecs[name].max_depth, name)

    def _keys_and_values(self, by_name: dict[str, JsonValue]) -> Iterator[DocumentPart]:
        for key, value in by_name.items():
            yield DocumentPart(key, parameter=self.signature.parameter_for(key))
            yield self._document_part(self.signature.parameter_for(key), value)


# Most calls have no arguments, and parsing empty texts would cost more than running a short task.
_EMPTY_ARRAYS = frozenset({"[]", b"[]"})
_EMPTY_OBJECTS = frozenset({"{}", b"{}"})


def _parse_arguments(kind: type[Container], text: str | bytes) -> Container:
    try:
        value = parse_json(text)
    except ValueError:
        raise PayloadError("stored arguments are not valid JSON") from None
    if not isinstance(value, kind):
        raise PayloadError("stored arguments must be an array and an object")
    return value


# Binding arguments to a signature

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSignature:
    """The parameters of a function, by the ways in which they can be passed."""

    positional: tuple[str, ...]
    keywords: frozenset[str]
    required: tuple[str, ...]
    var_positional: str | None
    """The name of `*args`, if the function has it."""
    var_keyword: str | None
    """The name of `**kwargs`, if the function has it."""
    _names_by_count: dict[int, tuple[str, ...]] = field(default_factory=dict["int", "tuple[str, ...]"], compare=False)

    @classmethod
    def of(cls, signature: inspect.Signature) -> CallSignature:
        parameters = signature.parameters.values()
        return cls(
            positional=tuple(p.name for p in parameters if p.kind in _BY_POSITION),
            keywords=frozenset(p.name for p in parameters if p.kind in _BY_KEYWORD),
            required=tuple(
                p.name for p in parameters if p.default is p.empty and p.kind in (*_BY_POSITION, *_BY_KEYWORD)
            ),
            var_positional=next((p.name for p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL), None),
            var_keyword=next((p.name for p in parameters if p.kind is inspect.Parameter.VAR_KEYWORD), None),
        )

    def check_call(self, count: int, keywords: Collection[str]) -> None:
        """Raise PayloadError if a call with `count` positional arguments and these keywords would not bind."""
        if count > len(self.positional) and self.var_positional is None:
            raise PayloadError(f"{count} positional arguments given, but the task takes at most {len(self.positional)}")
        filled = self.positional[:count]
        for name in keywords:
            if name in self.keywords:
                if name in filled:
                    raise PayloadError("given twice, by position and by name", parameter=name)
            elif not isinstance(name, str):
                raise PayloadError("keyword names must be strings")
            elif self.var_keyword is None:
                raise PayloadError("unknown", parameter=name)
        for name in self.required:
            if name not in filled and not (name in keywords and name in self.keywords):
                raise PayloadError("missing", parameter=name)

    def bind(self, count: int, keywords: Collection[str]) -> tuple[str, ...]:
        """Check a call and return the parameter of each positional argument.

        Calls without keywords are remembered: checking each row of a bulk send costs as much as encoding it.
        """
        names = self._names_by_count.get(count) if not keywords else None
        if names is None:
            self.check_call(count, keywords)
            names = self.positional_names(count)
            if not keywords and count <= len(self.positional):
                self._names_by_count[count] = names
        return names

    def positional_names(self, count: int) -> tuple[str, ...]:
        """Return the parameter that takes each of `count` positional arguments."""
        return self.positional[:count] + (self.var_positional or "",) * (count - len(self.positional))

    def prefer_keywords(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Turn positional arguments into keywords where possible, so that equal calls have the same form."""
        pairs = list(zip(self.positional_names(len(args)), args, strict=True))
        by_name = {name: value for name, value in pairs if name in self.keywords}
        return [value for name, value in pairs if name not in self.keywords], {**by_name, **kwargs}

    def parameter_for(self, keyword: str) -> str:
        """Return the parameter that takes this keyword: itself or `**kwargs`."""
        return keyword if keyword in self.keywords else self.var_keyword or ""


# Annotations, resolved one by one so that a fault names its parameter

RETURN = "return"
RETURN_HINT = "declare the return type, for example -> int or -> TaskResult[int, TaskError]"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureFault:
    """Why a function cannot be a task; `parameter` is None if the return type is at fault."""

    code: ErrorCode
    reason: str
    hint: str
    parameter: str | None = None


def parameter_codec(
    function: Callable[..., object], parameter: inspect.Parameter
) -> Result[ValueCodec, SignatureFault]:
    """Build the codec for arguments of this parameter."""
    if parameter.annotation is parameter.empty:
        return Ok(PlainCodec())
    name = parameter.name
    return (
        _resolve_annotation(function, name, parameter.annotation)
        .and_then(lambda annotation: _build_codec(annotation, name))
        .and_then(lambda codec: _check_default(codec, parameter))
    )


def return_codec(function: Callable[..., object], annotation: object) -> Result[ValueCodec, SignatureFault]:
    """Build the codec for the ok value that this function returns."""
    if annotation is inspect.Signature.empty:
        reason = "has no return annotation"
        return Err(SignatureFault(code=ErrorCode.TASK_NO_RETURN_TYPE, reason=reason, hint=RETURN_HINT))
    return (
        _resolve_annotation(function, RETURN, annotation)
        .and_then(_ok_type)
        .and_then(lambda ok_type: _build_codec(ok_type, None))
    )


def _ok_type(annotation: object) -> Result[object, SignatureFault]:
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is TaskResult and len(arguments) == 2 and arguments[1] is TaskError:
        return Ok(arguments[0])
    if not _mentions_task_result(annotation):
        return Ok(annotation)
    declared = _strip_modules(inspect.formatannotation(annotation)).replace("NoneType", "None")
    reason = f"must return TaskResult[T, TaskError], but returns {declared}"
    return Err(SignatureFault(code=ErrorCode.TASK_INVALID_RETURN_TYPE, reason=reason, hint=RETURN_HINT))


def _mentions_task_result(annotation: object) -> bool:
    kinds = (annotation, typing.get_origin(annotation))
    return TaskResult in kinds or any(map(_mentions_task_result, typing.get_args(annotation)))


def _check_default(codec: ValueCodec, parameter: inspect.Parameter) -> Result[ValueCodec, SignatureFault]:
    """Check the default against the annotation: defaults are not stored, so no send or run would check them."""
    if parameter.default is parameter.empty:
        return Ok(codec)
    try:
        codec.validate(parameter.default)
    except PayloadError as error:
        reason = f"its default does not match its annotation: {error.reason}"
        hint = "change the default or the annotation, for example limit: int | None = None"
        code = ErrorCode.TASK_STRICT_SIGNATURE_VIOLATION
        return Err(SignatureFault(code=code, reason=reason, hint=hint, parameter=parameter.name))
    return Ok(codec)


def _resolve_annotation(
    function: Callable[..., object], name: str, annotation: object
) -> Result[object, SignatureFault]:
    """Resolve forward references in the annotation against the function's module."""
    # `get_type_hints` resolves all annotations of an object; an object with only this one isolates the error.
    holder = SimpleNamespace(__annotations__={name: annotation})
    module_names = getattr(function, "__globals__", {})
    try:
        return Ok(typing.get_type_hints(holder, globalns=module_names, include_extras=True)[name])
    except Exception as error:  # noqa: BLE001 - evaluating an annotation runs user code
        return Err(_annotation_fault(name, error))


def _build_codec(annotation: object, name: str | None) -> Result[ValueCodec, SignatureFault]:
    try:
        workflow_codec = None if name is None else workflow_parameter_codec(name, annotation)
        return Ok(workflow_codec or codec_for(annotation))
    except Exception as error:  # noqa: BLE001 - a class may build its own pydantic schema, which is user code
        return Err(_annotation_fault(name, error))


def _annotation_fault(name: str | None, error: Exception) -> SignatureFault:
    reason = str(error).partition("\n")[0]
    hint = "use plain types, dataclasses or pydantic models"
    if isinstance(error, PydanticSchemaGenerationError):
        # Keep the type only: the rest of pydantic's message is advice about models.
        kind = reason.partition(" schema for ")[2].partition(". ")[0]
        reason = f"{_strip_modules(kind)} cannot be stored as JSON"
    elif isinstance(error, NameError) or getattr(error, "code", None) == "class-not-fully-defined":
        hint = "define the class above the task"
    return SignatureFault(
        code=ErrorCode.TASK_STRICT_SIGNATURE_VIOLATION,
        parameter=None if name == RETURN else name,
        reason=reason,
        hint=hint,
    )


def _strip_modules(annotation: str) -> str:
    return re.sub(r"\w+\.|<class '|'>|<locals>\.", "", annotation)
