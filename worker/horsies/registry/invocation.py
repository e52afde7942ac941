"""Calls a task's function with its stored arguments and turns every outcome into a `TaskResult`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from pydantic import JsonValue

from horsies.codec.arguments import DecodedArguments, TaskCodec
from horsies.codec.canonical_json import PayloadError, parse_json
from horsies.codec.results import AnyResult, InjectedCodec, decode_document, validate_result
from horsies.codec.values import ValueCodec
from horsies.model.task import TaskContext
from horsies.model.task_result import ExceptionRules, TaskError, TaskResult, task_error_from
from horsies.model.workflow.plan import ValueLoader
from horsies.model.workflow.views import (
    CONTEXT_PARAMETER,
    META_PARAMETER,
    SubWorkflowSummary,
    WorkflowContext,
    WorkflowMeta,
)
from horsies.registry.definition import TaskDefinition

OnRaised: TypeAlias = "Callable[[TaskDefinition, BaseException], None]"


def call_task(
    task: TaskDefinition,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    app: ExceptionRules,
    on_raised: OnRaised | None = None,
) -> AnyResult:
    """Run a `def` task in this thread; `on_raised` is called with the exception if it raises."""
    try:
        # Validation is inside the try, because validators are user code too.
        returned = task.function(*args, **kwargs)
        return validate_result(returned, task.codec.result_codec, is_plain=task.codec.is_plain)
    except BaseException as raised:
        if not isinstance(raised, Exception | SystemExit) and not _is_cancelled_error(raised):
            raise
        return _failure(raised, task, app, on_raised)


async def call_task_async(
    task: TaskDefinition,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    app: ExceptionRules,
    on_raised: OnRaised | None = None,
) -> AnyResult:
    """Run an `async def` task on the running loop; `on_raised` is called with the exception if it raises."""
    from asyncio import current_task as current_asyncio_task

    try:
        returned = await task.function(*args, **kwargs)
        return validate_result(returned, task.codec.result_codec, is_plain=task.codec.is_plain)
    except BaseException as raised:
        if not isinstance(raised, Exception | SystemExit):
            running = current_asyncio_task()
            # Propagate a real cancellation of the asyncio task; a CancelledError raised by user code is a failure.
            if not _is_cancelled_error(raised) or (running is not None and running.cancelling() > 0):
                raise
        return _failure(raised, task, app, on_raised)


def _is_cancelled_error(raised: BaseException) -> bool:
    """Whether an exception fails the task like an Exception; KeyboardInterrupt and others stop the process instead."""
    from asyncio import CancelledError  # here, because children that run no coroutines do without asyncio

    return isinstance(raised, CancelledError)


def _failure(
    raised: BaseException, task: TaskDefinition, app: ExceptionRules, on_raised: OnRaised | None
) -> TaskResult[Any, TaskError]:
    trace = raised.__traceback__
    if trace is not None and trace.tb_next is not None:
        # Without the frame of the call, which is ours. Called on the class, because a subclass may forbid attributes.
        BaseException.with_traceback(raised, trace.tb_next)
    if on_raised is not None:
        on_raised(task, raised)
    return TaskResult(err=task_error_from(raised, task=task.exception_rules, app=app))


# The current task


class RunningTask(Protocol):
    """A task that is running; its context is built only if the task asks for it."""

    def context(self) -> TaskContext: ...


CURRENT_TASK: ContextVar[RunningTask | None] = ContextVar("horsies_current_task", default=None)
"""Set by whatever runs a task, for the time of the attempt."""


def current_task() -> TaskContext | None:
    """Return the context of the task that is running this code; None outside a task."""
    task = CURRENT_TASK.get()
    return None if task is None else task.context()


# Decoding of stored arguments, with the values that a workflow injects

if TYPE_CHECKING:
    ResultCodecLookup = Callable[[str], ValueCodec | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredUpstreamNode:
    """A finished node in the stored workflow context of a task."""

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
    """Decode the stored arguments and workflow context of a task; raises PayloadError if they are invalid.

    `result_codec_for` returns the codec of a task's ok value by task name.
    """
    if context is None:
        return codec.decode(args, kwargs)
    stored = _as_object(parse_json(context))
    return codec.decode(
        args,
        kwargs,
        results=_as_object(stored.get("args_from")),
        injected=injected_arguments(codec, stored, result_codec_for=result_codec_for),
    )


def injected_arguments(
    codec: TaskCodec, context: Mapping[str, JsonValue], *, result_codec_for: ResultCodecLookup
) -> dict[str, object]:
    """Build `workflow_ctx` and `workflow_meta` if the function has them and the context contains them."""
    meta = _decode_meta(context)
    if meta is None:
        return {}
    injected: dict[str, object] = {}
    if is_injected(codec, META_PARAMETER):
        injected[META_PARAMETER] = meta
    if CONTEXT_PARAMETER in context and is_injected(codec, CONTEXT_PARAMETER):
        nodes = {
            node_id: _decode_upstream_node(_as_object(node), result_codec_for)
            for node_id, node in _as_object(context[CONTEXT_PARAMETER]).items()
        }
        injected[CONTEXT_PARAMETER] = WorkflowContext(
            workflow_id=meta.workflow_id, task_index=meta.task_index, task_name=meta.task_name, upstream=nodes
        )
    return injected


def is_injected(codec: TaskCodec, parameter: str) -> bool:
    return isinstance(codec.parameter_codecs.get(parameter), InjectedCodec)


def _decode_meta(context: Mapping[str, JsonValue]) -> WorkflowMeta | None:
    match context.get(META_PARAMETER):
        case {"workflow_id": str(workflow_id), "task_index": int(task_index), "task_name": str(task_name)}:
            return WorkflowMeta(workflow_id=workflow_id, task_index=task_index, task_name=task_name)
        case _:
            return None


def _decode_upstream_node(node: Mapping[str, JsonValue], result_codec_for: ResultCodecLookup) -> StoredUpstreamNode:
    task_name, summary = node.get("task_name"), _decode_summary(node.get("summary"))
    # Only for tasks: a sub-workflow may have the same name as a task.
    result_codec = result_codec_for(task_name) if isinstance(task_name, str) and summary is None else None
    return StoredUpstreamNode(document=node.get("result"), result_codec=result_codec, summary=summary)


def _decode_summary(stored: JsonValue) -> SubWorkflowSummary | None:
    if stored is None:
        return None
    try:
        return SubWorkflowSummary.of(_as_object(stored))
    except ValueError:
        raise PayloadError("the stored summary of a sub-workflow is invalid") from None


def _as_object(stored: JsonValue) -> dict[str, Any]:
    if stored is None:
        return {}
    if not isinstance(stored, dict):
        raise PayloadError("the stored context is not a JSON object")
    return cast("dict[str, Any]", stored)
