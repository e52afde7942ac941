"""Sending once more what a failed send carries."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from horsies.client.sending import check_connection, refusal, resealed
from horsies.model.result import Err
from horsies.model.sending import TaskSendError, TaskSendErrorCode, TaskSendPayload

if TYPE_CHECKING:
    from horsies.registry import TaskDefinition

REPLAYED = frozenset({TaskSendErrorCode.ENQUEUE_FAILED, TaskSendErrorCode.ASYNC_CONTEXT})
SEND_ALL_AGAIN = "nothing is stored: call send_many again"


def replayable(
    error: TaskSendError, task: TaskDefinition, *, delayed: bool, connection: object | None
) -> TaskSendPayload | Err[TaskSendError]:
    """The payload that `task` may send again, as `retry_schedule` where it is `delayed`; else why it may not."""
    if not isinstance(cast("object", error), TaskSendError):
        return Err(refusal(f"what is sent again is a TaskSendError, got {type(error).__qualname__}"))
    payload = error.payload
    if payload is None and error.code is TaskSendErrorCode.ENQUEUE_FAILED:
        advice = SEND_ALL_AGAIN if error.task_id is None else look_for(error.task_id)
        return Err(refusal(f"this is the error of a send_many; {advice}"))
    if payload is None or error.code not in REPLAYED:
        return Err(refusal(f"{error.code} carries nothing that can be sent again"))
    if payload.task_name != task.name:
        return Err(refusal(f"the error is of task {payload.task_name!r}, not of {task.name!r}"))
    if (payload.enqueue_delay_seconds is not None) is not delayed:
        return Err(refusal("use retry_schedule for a delayed send, and retry_send for any other"))
    if error.needs_connection and connection is None:
        return Err(refusal(f"it was part of a transaction; use with_options(connection=…).{async_retry_of(payload)}"))
    try:
        check_connection(connection)
        return resealed(payload, task.codec.shape)
    except ValueError as refused:
        return Err(refusal(f"{task.name}: {refused}", exception=refused))


def async_retry_of(payload: TaskSendPayload) -> str:
    """The name of the method that sends it again."""
    return "retry_send_async" if payload.enqueue_delay_seconds is None else "retry_schedule_async"


def look_for(first: str) -> str:
    """What to do about a bulk of which nobody knows whether it is stored."""
    return f"look for task {first}, the first of them"
