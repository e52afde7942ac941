"""A task together with the options of its next sends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable
    from datetime import timedelta

    from horsies.client.handle import TaskHandle
    from horsies.client.sending import SendItem, SendOptions
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
        return self._task.schedule_with(self._options, delay, args, kwargs)

    async def schedule_async(
        self, delay: float | timedelta, /, *args: P.args, **kwargs: P.kwargs
    ) -> TaskSendResult[TaskHandle[T]]:
        return await self._task.schedule_with_async(self._options, delay, args, kwargs)

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
