"""Task results: encoded as a stored document and decoded to a `TaskResult` again.

A document is exactly `{"ok": value}` or `{"err": {...}}`. Bad data never raises here: the task has already run and
must finish, so an invalid result becomes an error result.
"""

from __future__ import annotations

import json
import types
import typing
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, cast

from pydantic import JsonValue, ValidationError

from horsies.codec.canonical_json import (
    MAX_PARSED_DEPTH,
    DocumentPart,
    PayloadError,
    canonical_json,
    encode_document,
    find_json_fault,
    parse_json,
    replace_unstorable,
)
from horsies.codec.values import PlainCodec, TypedCodec, ValueCodec, codec_for
from horsies.model.task_result import (
    BuiltInTaskCode,
    ContractCode,
    OperationalErrorCode,
    SubWorkflowError,
    TaskError,
    TaskResult,
    exception_to_record,
    safe_stringify,
)
from horsies.model.workflow.plan import ValueLoader
from horsies.model.workflow.views import CONTEXT_PARAMETER, META_PARAMETER, WorkflowContext, WorkflowMeta

AnyResult: TypeAlias = TaskResult[object, TaskError]

_ANY_CODEC = TypedCodec(Any)
# The error object adds one level around each field.
_MAX_FIELD_DEPTH = MAX_PARSED_DEPTH - 1


class EncodedResult(NamedTuple):
    """A result as canonical JSON, and its error if it has one."""

    document: str
    error: TaskError | None


def validate_result(returned: object, ok: ValueCodec, *, is_plain: bool = False) -> AnyResult:
    """Check a function's return value and convert its ok value to the declared type.

    `is_plain` if the function is declared to return a plain value, which is wrapped here.
    """
    if is_plain:
        if isinstance(returned, TaskResult):
            message = "the task returned a TaskResult, but it is declared to return a plain value"
            return _error_result(OperationalErrorCode.TASK_EXCEPTION, message)
        returned = TaskResult(ok=returned)
    if not isinstance(returned, TaskResult):
        kind = type(returned).__qualname__
        return _error_result(OperationalErrorCode.TASK_EXCEPTION, f"the task returned {kind}, not a TaskResult")
    result = cast("AnyResult", returned)
    if result.is_err():
        if isinstance(result.err_value, TaskError):
            return result
        kind = type(result.err_value).__qualname__
        message = f"the task returned {kind} as its error, not a TaskError"
        return _error_result(OperationalErrorCode.TASK_EXCEPTION, message)
    value = result.ok_value
    if type(value) is ok.passthrough_type:
        return result
    try:
        validated = ok.validate(value)
        return result if validated is value else TaskResult(ok=validated)
    except PayloadError as error:
        return _error_result(ContractCode.RETURN_TYPE_MISMATCH, f"the ok value is not of the declared type: {error}")


def encode_result(result: AnyResult, ok: ValueCodec) -> EncodedResult:
    """Encode a validated result; an ok value without a JSON form becomes WORKER_SERIALIZATION_ERROR."""
    if result.is_err():
        return EncodedResult(document=error_document(result.err_value), error=result.err_value)
    try:
        plain = ok.dump(result.ok_value)
        if plain is None:
            return _ENCODED_NONE
        return EncodedResult(document=encode_document({"ok": plain}, [DocumentPart(plain, ok.max_depth)]), error=None)
    except PayloadError as error:
        message = f"the ok value cannot be stored: {error}"
        # Recurses once: an error can always be encoded.
        return encode_result(_error_result(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message), ok)


_ENCODED_NONE = EncodedResult(document='{"ok":null}', error=None)
"""The result of a task that returns nothing."""


def error_document(error: TaskError) -> str:
    """The stored result of a task that ends with this error."""
    return canonical_json({"err": encode_task_error(error)})


def encode_task_error(error: TaskError) -> dict[str, JsonValue]:
    """Encode any error: values without a JSON form become their repr, characters that cannot be stored U+FFFD."""
    return {name: _encode_field(getattr(error, name)) for name in type(error).model_fields}


def _encode_field(value: object) -> JsonValue:
    if isinstance(value, str):
        return replace_unstorable(value)
    if isinstance(value, BaseException):
        return {name: replace_unstorable(text) for name, text in exception_to_record(value).items()}
    try:
        plain = _ANY_CODEC.dump(value)
        if find_json_fault(plain, max_depth=_MAX_FIELD_DEPTH) is None:
            return plain
    except PayloadError:
        pass
    return replace_unstorable(safe_stringify(repr, value))


def decode_result(document: str | bytes, ok: ValueLoader | None = None) -> AnyResult:
    """Decode a stored result; the ok value stays plain JSON without a codec for it."""
    try:
        stored = parse_json(document)
    except ValueError:
        stored = None
    return decode_document(stored, ok)


def decode_document(stored: JsonValue, ok: ValueLoader | None = None) -> AnyResult:
    """Decode a stored document that is already parsed."""
    match stored:
        case {"ok": value, **others} if not others:
            return _decode_ok(value, ok or PlainCodec())
        case {"err": dict(body), **others} if not others:
            return _decode_error(body)
        case _:
            message = "the stored document is not a task result"
            return _error_result(OperationalErrorCode.RESULT_DESERIALIZATION_ERROR, message)


def _decode_ok(value: JsonValue, ok: ValueLoader) -> AnyResult:
    try:
        return TaskResult(ok=ok.load(value))
    except PayloadError as error:
        message = f"the stored value does not match the declared type: {error}"
        return _error_result(ContractCode.PYDANTIC_HYDRATION_ERROR, message)


def _decode_error(body: dict[str, Any]) -> AnyResult:
    kind = SubWorkflowError if "sub_workflow_id" in body else TaskError
    known = {name: value for name, value in body.items() if name in kind.model_fields}
    try:
        # JSON mode tells the model's validators that the error codes come from storage.
        return TaskResult(err=kind.model_validate_json(json.dumps(known)))
    except ValidationError:
        message = "the stored error is not a TaskError"
        return _error_result(OperationalErrorCode.RESULT_DESERIALIZATION_ERROR, message)


def _error_result(code: BuiltInTaskCode, message: str) -> AnyResult:
    return TaskResult(err=TaskError(error_code=code, message=message))


# Codecs of parameters that a workflow fills: results of other nodes, and the injected context and metadata

_INJECTED: dict[str, type[object]] = {CONTEXT_PARAMETER: WorkflowContext, META_PARAMETER: WorkflowMeta}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResultCodec:
    """Codec of a `TaskResult[T, TaskError]` parameter, stored like a task's result."""

    ok_type: object
    ok_codec: ValueCodec
    is_optional: bool
    annotation: object = TaskResult
    max_depth: int = MAX_PARSED_DEPTH
    passthrough_type: type | None = None

    def validate(self, value: object) -> object:
        if value is None and self.is_optional:
            return None
        if not isinstance(value, TaskResult):
            raise PayloadError("must be a TaskResult")
        result = cast("TaskResult[object, object]", value)
        if result.is_ok():
            return TaskResult(ok=self.ok_codec.validate(result.ok_value))
        if not isinstance(result.err_value, TaskError):
            raise PayloadError("its error must be a TaskError")
        return result

    def dump(self, checked: Any) -> JsonValue:
        result = cast("TaskResult[object, TaskError] | None", checked)
        if result is None:
            return None
        return (
            {"ok": self.ok_codec.dump(result.ok_value)}
            if result.is_ok()
            else {"err": encode_task_error(result.err_value)}
        )

    def load(self, stored: JsonValue) -> object:
        return None if stored is None and self.is_optional else decode_document(stored, self.ok_codec)


@dataclass(frozen=True, slots=True)
class InjectedCodec:
    """Codec of a parameter that only a workflow fills: it is never sent or stored."""

    annotation: object = None
    max_depth: int = MAX_PARSED_DEPTH
    passthrough_type: type | None = None

    def validate(self, value: object) -> object:
        if value is None:
            return None
        raise PayloadError("cannot be sent: the workflow that runs the task fills it in")

    def dump(self, checked: object) -> JsonValue:
        del checked
        return None

    def load(self, stored: JsonValue) -> object:
        return self.validate(stored)


def workflow_parameter_codec(name: str, annotation: object) -> TaskResultCodec | InjectedCodec | None:
    """Return the codec of a parameter that a workflow fills, None for other parameters; raises like `codec_for`."""
    bare = _without_none(annotation)
    if name in _INJECTED and bare is _INJECTED[name]:
        return InjectedCodec()
    is_optional = bare is not annotation
    if bare is TaskResult:
        return TaskResultCodec(ok_type=Any, ok_codec=PlainCodec(), is_optional=is_optional)
    arguments = typing.get_args(bare)
    if typing.get_origin(bare) is TaskResult and len(arguments) == 2 and arguments[1] is TaskError:
        return TaskResultCodec(ok_type=arguments[0], ok_codec=codec_for(arguments[0]), is_optional=is_optional)
    return None


def _without_none(annotation: object) -> object:
    """Return X for `X | None`, any other annotation unchanged."""
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return annotation
    members = [member for member in typing.get_args(annotation) if member is not types.NoneType]
    return members[0] if len(members) == 1 else annotation
