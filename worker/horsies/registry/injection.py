"""From the stored arguments of a task to its call, with what the workflow it belongs to adds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from horsies.codec.result import AnyResult, result_of
from horsies.codec.upstream import InjectedValue
from horsies.codec.wire import PayloadRefused, parsed
from horsies.model.workflow.context import CONTEXT_PARAMETER, META_PARAMETER, WorkflowContext, WorkflowMeta
from horsies.model.workflow.info import SubWorkflowSummary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydantic import JsonValue

    from horsies.codec.task import Call, TaskCodec
    from horsies.codec.value import Value
    from horsies.model.workflow.names import Reads

    OkOf = Callable[[str], Value | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredUpstream:
    """A node that has ended, as the context of a task tells of it."""

    document: JsonValue
    reads: Reads | None
    summary: SubWorkflowSummary | None

    def result(self, reads: Reads | None) -> AnyResult | None:
        return None if self.document is None else result_of(self.document, reads or self.reads)


def decoded(
    codec: TaskCodec, args: str | bytes, kwargs: str | bytes, context: str | bytes | None, *, ok_of: OkOf
) -> Call:
    """The call that stored arguments and the stored context of a task make; `PayloadRefused` when they make none.

    `ok_of` tells how the ok value of a task is read, by the task's name.
    """
    if context is None:
        return codec.decode(args, kwargs)
    told = _part(parsed(context))
    return codec.decode(args, kwargs, results=_part(told.get("args_from")), injected=injected(codec, told, ok_of=ok_of))


def injected(codec: TaskCodec, told: Mapping[str, JsonValue], *, ok_of: OkOf) -> dict[str, object]:
    """The parameters `workflow_ctx` and `workflow_meta`, where the function has them and the run tells of them."""
    meta = _meta(told)
    if meta is None:
        return {}
    found: dict[str, object] = {}
    if is_injected(codec, META_PARAMETER):
        found[META_PARAMETER] = meta
    if CONTEXT_PARAMETER in told and is_injected(codec, CONTEXT_PARAMETER):
        nodes = {node_id: _upstream(_part(each), ok_of) for node_id, each in _part(told[CONTEXT_PARAMETER]).items()}
        found[CONTEXT_PARAMETER] = WorkflowContext(
            workflow_id=meta.workflow_id, task_index=meta.task_index, task_name=meta.task_name, upstream=nodes
        )
    return found


def is_injected(codec: TaskCodec, parameter: str) -> bool:
    return isinstance(codec.values.get(parameter), InjectedValue)


def _meta(told: Mapping[str, JsonValue]) -> WorkflowMeta | None:
    match told.get(META_PARAMETER):
        case {"workflow_id": str(workflow_id), "task_index": int(task_index), "task_name": str(task_name)}:
            return WorkflowMeta(workflow_id=workflow_id, task_index=task_index, task_name=task_name)
        case _:
            return None


def _upstream(told: Mapping[str, JsonValue], ok_of: OkOf) -> StoredUpstream:
    task_name, summary = told.get("task_name"), _summary(told.get("summary"))
    # The name of a sub-workflow may well be that of a task, too.
    reads = ok_of(task_name) if isinstance(task_name, str) and summary is None else None
    return StoredUpstream(document=told.get("result"), reads=reads, summary=summary)


def _summary(stored: JsonValue) -> SubWorkflowSummary | None:
    if stored is None:
        return None
    try:
        return SubWorkflowSummary.of(_part(stored))
    except ValueError:
        raise PayloadRefused("the stored summary of a sub-workflow cannot be read") from None


def _part(told: JsonValue) -> dict[str, Any]:
    if told is None:
        return {}
    if not isinstance(told, dict):
        raise PayloadRefused("the stored context is no object")
    return cast("dict[str, Any]", told)
