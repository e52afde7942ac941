"""Calling a task's function, so that whatever happens in it is a result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from pydantic import JsonValue

from horsies.codec.arguments import DecodedArguments, TaskCodec
from horsies.codec.canonical_json import PayloadError, parse_json
from horsies.codec.results import AnyResult, InjectedCodec, decode_document, validate_result
from horsies.codec.values import ValueCodec
from horsies.model.task import TaskContext
from horsies.model.task_result import ExceptionRules, TaskResult, task_error_from
from horsies.model.workflow.plan import ValueLoader
from horsies.model.workflow.views import (
    CONTEXT_PARAMETER,
    META_PARAMETER,
    SubWorkflowSummary,
    WorkflowContext,
    WorkflowMeta,
)
from horsies.registry.definition import TaskDefinition

# What user code may raise and still have failed as a task: everything but the orders to this process to stop.
TASK_EXCEPTIONS = (Exception, SystemExit, asyncio.CancelledError)


def call_task(
    task: TaskDefinition, args: Sequence[Any], kwargs: Mapping[str, Any], *, app: ExceptionRules
) -> AnyResult:
    """Run a `def` task here and now."""
    try:
        # The check is inside: validators, and whatever else it touches of the value, are the task's code as well.
        return validate_result(task.function(*args, **kwargs), task.codec.result_codec)
    except TASK_EXCEPTIONS as raised:
        return TaskResult(err=task_error_from(raised, task=task.exception_rules, app=app))


async def call_task_async(
    task: TaskDefinition, args: Sequence[Any], kwargs: Mapping[str, Any], *, app: ExceptionRules
) -> AnyResult:
    """Run an `async def` task on the running loop."""
    try:
        return validate_result(await task.function(*args, **kwargs), task.codec.result_codec)
    except TASK_EXCEPTIONS as raised:
        if isinstance(raised, asyncio.CancelledError) and _was_cancelled():
            raise
        return TaskResult(err=task_error_from(raised, task=task.exception_rules, app=app))


def _was_cancelled() -> bool:
    """Whether someone asked the running task to stop, as opposed to its code raising the error by itself."""
    running = asyncio.current_task()
    return running is not None and running.cancelling() > 0


# The task that is running here.

_CURRENT_TASK: ContextVar[Callable[[], TaskContext] | None] = ContextVar("horsies_running_task", default=None)


def current_task() -> TaskContext | None:
    """The task whose code asks; None outside a task."""
    told = _CURRENT_TASK.get()
    return None if told is None else told()


class bind_current_task:  # noqa: N801  # reads as the statement that it is part of
    """Make the task that `told` tells of the current one for the code inside; most tasks never ask."""

    __slots__ = ("_get_context", "_token")

    def __init__(self, get_context: Callable[[], TaskContext]) -> None:
        self._get_context = get_context

    def __enter__(self) -> None:
        self._token = _CURRENT_TASK.set(self._get_context)

    def __exit__(self, *_: object) -> None:
        _CURRENT_TASK.reset(self._token)


# From the stored arguments of a task to its call, with what the workflow it belongs to adds.

if TYPE_CHECKING:
    ResultCodecLookup = Callable[[str], ValueCodec | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredUpstreamNode:
    """A node that has ended, as the context of a task tells of it."""

    document: JsonValue
    result_codec: ValueLoader | None
    summary: SubWorkflowSummary | None

    def result(self, result_codec: ValueLoader | None) -> AnyResult | None:
        return None if self.document is None else decode_document(self.document, result_codec or self.result_codec)


def decode_arguments(
    codec: TaskCodec,
    args: str | bytes,
    kwargs: str | bytes,
    context: str | bytes | None,
    *,
    result_codec_for: ResultCodecLookup,
) -> DecodedArguments:
    """The call that stored arguments and the stored context of a task make; `PayloadRefused` when they make none.

    `ok_of` tells how the ok value of a task is read, by the task's name.
    """
    if context is None:
        return codec.decode(args, kwargs)
    told = _as_object(parse_json(context))
    return codec.decode(
        args,
        kwargs,
        results=_as_object(told.get("args_from")),
        injected=injected_arguments(codec, told, result_codec_for=result_codec_for),
    )


def injected_arguments(
    codec: TaskCodec, context: Mapping[str, JsonValue], *, result_codec_for: ResultCodecLookup
) -> dict[str, object]:
    """The parameters `workflow_ctx` and `workflow_meta`, where the function has them and the run tells of them."""
    meta = _meta(context)
    if meta is None:
        return {}
    found: dict[str, object] = {}
    if is_injected(codec, META_PARAMETER):
        found[META_PARAMETER] = meta
    if CONTEXT_PARAMETER in context and is_injected(codec, CONTEXT_PARAMETER):
        nodes = {
            node_id: _upstream(_as_object(each), result_codec_for)
            for node_id, each in _as_object(context[CONTEXT_PARAMETER]).items()
        }
        found[CONTEXT_PARAMETER] = WorkflowContext(
            workflow_id=meta.workflow_id, task_index=meta.task_index, task_name=meta.task_name, upstream=nodes
        )
    return found


def is_injected(codec: TaskCodec, parameter: str) -> bool:
    return isinstance(codec.parameter_codecs.get(parameter), InjectedCodec)


def _meta(told: Mapping[str, JsonValue]) -> WorkflowMeta | None:
    match told.get(META_PARAMETER):
        case {"workflow_id": str(workflow_id), "task_index": int(task_index), "task_name": str(task_name)}:
            return WorkflowMeta(workflow_id=workflow_id, task_index=task_index, task_name=task_name)
        case _:
            return None


def _upstream(told: Mapping[str, JsonValue], ok_of: ResultCodecLookup) -> StoredUpstreamNode:
    task_name, summary = told.get("task_name"), _summary(told.get("summary"))
    # The name of a sub-workflow may well be that of a task, too.
    reads = ok_of(task_name) if isinstance(task_name, str) and summary is None else None
    return StoredUpstreamNode(document=told.get("result"), result_codec=reads, summary=summary)


def _summary(stored: JsonValue) -> SubWorkflowSummary | None:
    if stored is None:
        return None
    try:
        return SubWorkflowSummary.of(_as_object(stored))
    except ValueError:
        raise PayloadError("the stored summary of a sub-workflow cannot be read") from None


def _as_object(told: JsonValue) -> dict[str, Any]:
    if told is None:
        return {}
    if not isinstance(told, dict):
        raise PayloadError("the stored context is no object")
    return cast("dict[str, Any]", told)
