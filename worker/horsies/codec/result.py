"""Results: from what a function returned to the stored document, and back to a `TaskResult`.

A document holds exactly `{"ok": value}` or `{"err": {...}}`. Nothing here raises on bad data: a result that does not
fit becomes the error that says so, for the task has run and must come to an end.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from pydantic import JsonValue, ValidationError

from horsies.codec.failure import stored_error
from horsies.codec.value import PlainValue
from horsies.codec.wire import Part, PayloadRefused, canonical, parsed, stored_text
from horsies.model.codes import BuiltInTaskCode, ContractCode, OperationalErrorCode
from horsies.model.task_error import SubWorkflowError, TaskError
from horsies.model.task_result import TaskResult

if TYPE_CHECKING:
    from horsies.codec.value import Value
    from horsies.model.workflow.names import Reads

AnyResult: TypeAlias = TaskResult[object, TaskError]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResult:
    """A result in stored form, canonical JSON, and the error in it."""

    document: str
    error: TaskError | None


def checked_result(returned: object, ok: Value) -> AnyResult:
    """What the function returned, its ok value as the declared type wants it."""
    if not isinstance(returned, TaskResult):
        kind = type(returned).__qualname__
        return _failed(OperationalErrorCode.TASK_EXCEPTION, f"the task returned {kind}, not a TaskResult")
    result = cast("AnyResult", returned)
    if result.is_err():
        return _checked_error(result)
    try:
        return TaskResult(ok=ok.check(result.ok_value))
    except PayloadRefused as refused:
        return _failed(ContractCode.RETURN_TYPE_MISMATCH, f"the ok value is not of the declared type: {refused}")


def stored_result(result: AnyResult, ok: Value) -> StoredResult:
    """A checked result as it is stored; a value without a JSON form is replaced by the error that says so."""
    if result.is_err():
        return StoredResult(document=canonical({"err": stored_error(result.err_value)}), error=result.err_value)
    try:
        return StoredResult(document=_document(result.ok_value, ok), error=None)
    except PayloadRefused as refused:
        message = f"the ok value cannot be stored: {refused}"
        return stored_result(_failed(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message), ok)


def read_result(document: str | bytes, ok: Reads | None = None) -> AnyResult:
    """The stored result, typed where the declared type is known here, plain JSON otherwise."""
    try:
        stored = parsed(document)
    except ValueError:
        stored = None
    return result_of(stored, ok)


def result_of(stored: JsonValue, ok: Reads | None = None) -> AnyResult:
    """The same for a document that is parsed already."""
    match stored:
        case {"ok": value, **others} if not others:
            return _read_ok(value, ok or PlainValue())
        case {"err": dict(body), **others} if not others:
            return _read_error(body)
        case _:
            return _failed(OperationalErrorCode.RESULT_DESERIALIZATION_ERROR, "the stored document is no result")


def _document(value: object, ok: Value) -> str:
    plain = ok.dump(value)
    return stored_text({"ok": plain}, [Part(plain, ok.max_depth)])


def _checked_error(result: AnyResult) -> AnyResult:
    if isinstance(result.err_value, TaskError):
        return result
    kind = type(result.err_value).__qualname__
    return _failed(OperationalErrorCode.TASK_EXCEPTION, f"the task returned {kind} as its error, not a TaskError")


def _read_ok(value: JsonValue, ok: Reads) -> AnyResult:
    try:
        return TaskResult(ok=ok.load(value))
    except PayloadRefused as refused:
        message = f"the stored value does not fit the declared type: {refused}"
        return _failed(ContractCode.PYDANTIC_HYDRATION_ERROR, message)


def _read_error(body: dict[str, Any]) -> AnyResult:
    kind = SubWorkflowError if "sub_workflow_id" in body else TaskError
    known = {name: value for name, value in body.items() if name in kind.model_fields}
    try:
        # Read as text, which tells the model that the codes come from storage.
        return TaskResult(err=kind.model_validate_json(json.dumps(known)))
    except ValidationError:
        return _failed(OperationalErrorCode.RESULT_DESERIALIZATION_ERROR, "the stored error is no TaskError")


def _failed(code: BuiltInTaskCode, message: str) -> AnyResult:
    return TaskResult(err=TaskError(error_code=code, message=message))
