"""A task together with the options of its next sends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from horsies.client.sending import SendItem, SendOptions, refusal, with_delay
from horsies.model.result import Err

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable
    from datetime import timedelta

    from horsies.client.handle import TaskHandle
    from horsies.client.task_function import TaskFunction
    from horsies.model.sending import TaskSendError, TaskSendResult

P = ParamSpec("P")
T = TypeVar("T")


class TaskSendOptions(Generic[P, T]):
    """What `with_options` returns: the same sends, with the options added."""

    def __init__(self, task: TaskFunction[P, T], options: SendOptions) -> None:
        self._task = task
        self._options = options

    def send(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskSendResult[TaskHandle[T]]:
        return self._task.send_with(self._options, args, kwargs)

    def send_async(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, TaskSendResult[TaskHandle[T]]]:
        return self._task.send_with_async(self._options, args, kwargs)

    def schedule(self, delay: float | timedelta, /, *args: P.args, **kwargs: P.kwargs) -> TaskSendResult[TaskHandle[T]]:
        delayed = self._delayed(delay)
        return delayed if isinstance(delayed, Err) else self._task.send_with(delayed, args, kwargs)

    async def schedule_async(
        self, delay: float | timedelta, /, *args: P.args, **kwargs: P.kwargs
    ) -> TaskSendResult[TaskHandle[T]]:
        delayed = self._delayed(delay)
        return delayed if isinstance(delayed, Err) else await self._task.send_with_async(delayed, args, kwargs)

    def send_many(self, items: Iterable[SendItem]) -> TaskSendResult[list[TaskHandle[T]]]:
        return self._task.send_many_with(self._options, items)

    async def send_many_async(self, items: Iterable[SendItem]) -> TaskSendResult[list[TaskHandle[T]]]:
        return await self._task.send_many_with_async(self._options, items)

    async def retry_send_async(self, error: TaskSendError) -> TaskSendResult[TaskHandle[T]]:
        """Send what a failed send carries once more on the connection given here; all else is as it was first sent."""
        return await self._task.replay_with_async(self._options, error, delayed=False)

    async def retry_schedule_async(self, error: TaskSendError) -> TaskSendResult[TaskHandle[T]]:
        """The same for a failed `schedule_async`; the delay counts from now."""
        return await self._task.replay_with_async(self._options, error, delayed=True)

    def _delayed(self, delay: float | timedelta) -> SendOptions | Err[TaskSendError]:
        try:
            return with_delay(self._options, delay)
        except ValueError as twice:
            return Err(refusal(f"{self._task.task_name}: {twice}"))
