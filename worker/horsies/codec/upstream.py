"""Parameters that a workflow fills: results of other nodes, and what the task is told of its run."""

from __future__ import annotations

import types
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from horsies.codec.failure import stored_error
from horsies.codec.result import result_of
from horsies.codec.value import PlainValue, value_of
from horsies.codec.wire import MAX_PARSED_DEPTH, PayloadRefused
from horsies.model.task_error import TaskError
from horsies.model.task_result import TaskResult
from horsies.model.workflow.context import CONTEXT_PARAMETER, META_PARAMETER, WorkflowContext, WorkflowMeta

if TYPE_CHECKING:
    from pydantic import JsonValue

    from horsies.codec.value import Value

_INJECTED: dict[str, type[object]] = {CONTEXT_PARAMETER: WorkflowContext, META_PARAMETER: WorkflowMeta}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultValue:
    """A parameter `TaskResult[T, TaskError]`, written as the document in which a result is stored."""

    ok_type: object
    ok: Value
    is_optional: bool
    max_depth: int = MAX_PARSED_DEPTH
    as_is: type | None = None

    def check(self, value: object) -> object:
        if value is None and self.is_optional:
            return None
        if not isinstance(value, TaskResult):
            raise PayloadRefused("must be a TaskResult")
        result = cast("TaskResult[object, object]", value)
        if result.is_ok():
            return TaskResult(ok=self.ok.check(result.ok_value))
        if not isinstance(result.err_value, TaskError):
            raise PayloadRefused("its error must be a TaskError")
        return result

    def dump(self, checked: Any) -> JsonValue:
        result = cast("TaskResult[object, TaskError] | None", checked)
        if result is None:
            return None
        return {"ok": self.ok.dump(result.ok_value)} if result.is_ok() else {"err": stored_error(result.err_value)}

    def load(self, stored: JsonValue) -> object:
        return None if stored is None and self.is_optional else result_of(stored, self.ok)


@dataclass(frozen=True, slots=True)
class InjectedValue:
    """A parameter that only a workflow fills: nothing is ever sent or stored for it."""

    max_depth: int = MAX_PARSED_DEPTH
    as_is: type | None = None

    def check(self, value: object) -> object:
        if value is None:
            return None
        raise PayloadRefused("is filled in by the workflow that runs the task, and cannot be sent")

    def dump(self, checked: object) -> JsonValue:
        del checked
        return None

    def load(self, stored: JsonValue) -> object:
        return self.check(stored)


def upstream_value(name: str, annotation: object) -> ResultValue | InjectedValue | None:
    """How a workflow fills the parameter; None for every other parameter. Raises what `value_of` raises."""
    bare = _without_none(annotation)
    if name in _INJECTED and bare is _INJECTED[name]:
        return InjectedValue()
    is_optional = bare is not annotation
    if bare is TaskResult:
        return ResultValue(ok_type=Any, ok=PlainValue(), is_optional=is_optional)
    arguments = typing.get_args(bare)
    if typing.get_origin(bare) is TaskResult and len(arguments) == 2 and arguments[1] is TaskError:
        return ResultValue(ok_type=arguments[0], ok=value_of(arguments[0]), is_optional=is_optional)
    return None


def _without_none(annotation: object) -> object:
    """The X of `X | None`."""
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return annotation
    others = [each for each in typing.get_args(annotation) if each is not types.NoneType]
    return others[0] if len(others) == 1 else annotation
