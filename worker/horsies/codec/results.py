"""Results: from what a function returned to the stored document, and back to a `TaskResult`.

A document holds exactly `{"ok": value}` or `{"err": {...}}`. Nothing here raises on bad data: a result that does not
fit becomes the error that says so, for the task has run and must come to an end.
"""

from __future__ import annotations

import json
import types
import typing
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

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

# Errors on their way into a row. They are always stored, whatever they carry.

_ANY_CODEC = TypedCodec(Any)
# The body of an error is itself one level around what it carries.
_MAX_DEPTH = MAX_PARSED_DEPTH - 1


def encode_task_error(error: TaskError) -> dict[str, JsonValue]:
    """The error as plain JSON: what has no JSON form is replaced by its repr, what no text may hold by U+FFFD."""
    return {name: _encode_field(getattr(error, name)) for name in type(error).model_fields}


def _encode_field(value: object) -> JsonValue:
    if isinstance(value, str):
        return replace_unstorable(value)
    if isinstance(value, BaseException):
        return {name: replace_unstorable(text) for name, text in exception_to_record(value).items()}
    try:
        plain = _ANY_CODEC.dump(value)
    except PayloadError:
        return replace_unstorable(safe_stringify(repr, value))
    return (
        plain
        if find_json_fault(plain, max_depth=_MAX_DEPTH) is None
        else replace_unstorable(safe_stringify(repr, value))
    )


AnyResult: TypeAlias = TaskResult[object, TaskError]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedResult:
    """A result in stored form, canonical JSON, and the error in it."""

    document: str
    error: TaskError | None


def validate_result(returned: object, ok: ValueCodec) -> AnyResult:
    """What the function returned, its ok value as the declared type wants it."""
    if not isinstance(returned, TaskResult):
        kind = type(returned).__qualname__
        return _error_result(OperationalErrorCode.TASK_EXCEPTION, f"the task returned {kind}, not a TaskResult")
    result = cast("AnyResult", returned)
    if result.is_err():
        return _checked_error(result)
    try:
        return TaskResult(ok=ok.validate(result.ok_value))
    except PayloadError as refused:
        return _error_result(ContractCode.RETURN_TYPE_MISMATCH, f"the ok value is not of the declared type: {refused}")


def encode_result(result: AnyResult, ok: ValueCodec) -> EncodedResult:
    """A checked result as it is stored; a value without a JSON form is replaced by the error that says so."""
    if result.is_err():
        return EncodedResult(
            document=canonical_json({"err": encode_task_error(result.err_value)}), error=result.err_value
        )
    try:
        return EncodedResult(document=_encode_ok(result.ok_value, ok), error=None)
    except PayloadError as refused:
        message = f"the ok value cannot be stored: {refused}"
        return encode_result(_error_result(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message), ok)


def decode_result(document: str | bytes, ok: ValueLoader | None = None) -> AnyResult:
    """The stored result, typed where the declared type is known here, plain JSON otherwise."""
    try:
        stored = parse_json(document)
    except ValueError:
        stored = None
    return decode_document(stored, ok)


def decode_document(stored: JsonValue, ok: ValueLoader | None = None) -> AnyResult:
    """The same for a document that is parsed already."""
    match stored:
        case {"ok": value, **others} if not others:
            return _read_ok(value, ok or PlainCodec())
        case {"err": dict(body), **others} if not others:
            return _read_error(body)
        case _:
            return _error_result(OperationalErrorCode.RESULT_DESERIALIZATION_ERROR, "the stored document is no result")


def _encode_ok(value: object, ok: ValueCodec) -> str:
    plain = ok.dump(value)
    return encode_document({"ok": plain}, [DocumentPart(plain, ok.max_depth)])


def _checked_error(result: AnyResult) -> AnyResult:
    if isinstance(result.err_value, TaskError):
        return result
    kind = type(result.err_value).__qualname__
    return _error_result(OperationalErrorCode.TASK_EXCEPTION, f"the task returned {kind} as its error, not a TaskError")


def _read_ok(value: JsonValue, ok: ValueLoader) -> AnyResult:
    try:
        return TaskResult(ok=ok.load(value))
    except PayloadError as refused:
        message = f"the stored value does not fit the declared type: {refused}"
        return _error_result(ContractCode.PYDANTIC_HYDRATION_ERROR, message)


def _read_error(body: dict[str, Any]) -> AnyResult:
    kind = SubWorkflowError if "sub_workflow_id" in body else TaskError
    known = {name: value for name, value in body.items() if name in kind.model_fields}
    try:
        # Read as text, which tells the model that the codes come from storage.
        return TaskResult(err=kind.model_validate_json(json.dumps(known)))
    except ValidationError:
        return _error_result(OperationalErrorCode.RESULT_DESERIALIZATION_ERROR, "the stored error is no TaskError")


def _error_result(code: BuiltInTaskCode, message: str) -> AnyResult:
    return TaskResult(err=TaskError(error_code=code, message=message))


# Parameters that a workflow fills: results of other nodes, and what the task is told of its run.

_INJECTED: dict[str, type[object]] = {CONTEXT_PARAMETER: WorkflowContext, META_PARAMETER: WorkflowMeta}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResultCodec:
    """A parameter `TaskResult[T, TaskError]`, written as the document in which a result is stored."""

    ok_type: object
    ok_codec: ValueCodec
    is_optional: bool
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
    """A parameter that only a workflow fills: nothing is ever sent or stored for it."""

    max_depth: int = MAX_PARSED_DEPTH
    passthrough_type: type | None = None

    def validate(self, value: object) -> object:
        if value is None:
            return None
        raise PayloadError("is filled in by the workflow that runs the task, and cannot be sent")

    def dump(self, checked: object) -> JsonValue:
        del checked
        return None

    def load(self, stored: JsonValue) -> object:
        return self.validate(stored)


def workflow_parameter_codec(name: str, annotation: object) -> TaskResultCodec | InjectedCodec | None:
    """How a workflow fills the parameter; None for every other parameter. Raises what `value_of` raises."""
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
    """The X of `X | None`."""
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return annotation
    others = [each for each in typing.get_args(annotation) if each is not types.NoneType]
    return others[0] if len(others) == 1 else annotation
