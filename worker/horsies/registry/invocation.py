"""Calling a task's function, so that whatever happens in it is a result."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from horsies.codec.canonical_json import PayloadRefused, parsed
from horsies.codec.results import AnyResult, InjectedValue, checked_result, result_of
from horsies.model.task_result import ExceptionRules, TaskResult, error_from
from horsies.model.workflow.views import (
    CONTEXT_PARAMETER,
    META_PARAMETER,
    SubWorkflowSummary,
    WorkflowContext,
    WorkflowMeta,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydantic import JsonValue

    from horsies.codec.arguments import Call, TaskCodec
    from horsies.codec.values import Value
    from horsies.model.task import TaskContext
    from horsies.model.workflow.plan import Reads
    from horsies.registry.definition import TaskDefinition


# What user code may raise and still have failed as a task: everything but the orders to this process to stop.
FAILURES = (Exception, SystemExit, asyncio.CancelledError)


def call(task: TaskDefinition, args: Sequence[Any], kwargs: Mapping[str, Any], *, app: ExceptionRules) -> AnyResult:
    """Run a `def` task here and now."""
    try:
        # The check is inside: validators, and whatever else it touches of the value, are the task's code as well.
        return checked_result(task.function(*args, **kwargs), task.codec.ok)
    except FAILURES as raised:
        return TaskResult(err=error_from(raised, task=task.exception_rules, app=app))


async def call_async(
    task: TaskDefinition, args: Sequence[Any], kwargs: Mapping[str, Any], *, app: ExceptionRules
) -> AnyResult:
    """Run an `async def` task on the running loop."""
    try:
        return checked_result(await task.function(*args, **kwargs), task.codec.ok)
    except FAILURES as raised:
        if isinstance(raised, asyncio.CancelledError) and _was_cancelled():
            raise
        return TaskResult(err=error_from(raised, task=task.exception_rules, app=app))


def _was_cancelled() -> bool:
    """Whether someone asked the running task to stop, as opposed to its code raising the error by itself."""
    running = asyncio.current_task()
    return running is not None and running.cancelling() > 0


# The task that is running here.

_RUNNING: ContextVar[Callable[[], TaskContext] | None] = ContextVar("horsies_running_task", default=None)


def current_task() -> TaskContext | None:
    """The task whose code asks; None outside a task."""
    told = _RUNNING.get()
    return None if told is None else told()


class running:  # noqa: N801  # reads as the statement that it is part of
    """Make the task that `told` tells of the current one for the code inside; most tasks never ask."""

    __slots__ = ("_token", "_told")

    def __init__(self, told: Callable[[], TaskContext]) -> None:
        self._told = told

    def __enter__(self) -> None:
        self._token = _RUNNING.set(self._told)

    def __exit__(self, *_: object) -> None:
        _RUNNING.reset(self._token)


# From the stored arguments of a task to its call, with what the workflow it belongs to adds.

if TYPE_CHECKING:
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
