"""A task as its author and its senders hold it: call it here, or send it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from horsies.client.payload import (
    DEFAULT_OPTIONS,
    BoundCall,
    BulkSend,
    PayloadBuilder,
    SendItem,
    SendOptions,
    payload_to_resend,
    retry_method_name,
    validation_error,
    with_delay,
)
from horsies.client.workflow.nodes import AnyNode, ArgsFromNodeFactory, NodeFactory, NodeSettings
from horsies.codec.canonical_json import PayloadError
from horsies.model.result import Err
from horsies.model.send import TaskSendError, TaskSendErrorCode, TaskSendPayload, TaskSendResult, to_full_payload
from horsies.model.settings import AppConfig
from horsies.model.task_result import ExceptionRules, TaskError, TaskResult
from horsies.registry import TaskDefinition, TaskOptions
from horsies.registry.invocation import call_task, call_task_async
from horsies.sync import is_inside_event_loop

if TYPE_CHECKING:
    from horsies.client.broker import PostgresBroker
    from horsies.client.delivery import AnyPayload, Delivery
    from horsies.client.results import TaskHandle


# A task together with the options of its next sends.

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
        return await self._task.resend_with_async(self._options, error, delayed=False)

    async def retry_schedule_async(self, error: TaskSendError) -> TaskSendResult[TaskHandle[T]]:
        """The same for a failed `schedule_async`; the delay counts from now."""
        return await self._task.resend_with_async(self._options, error, delayed=True)


H = TypeVar("H")

CONNECTION_IS_ASYNC_ONLY = "connection= works with the async sends only"


class TaskApp(Protocol):
    """What a task, or a workflow of tasks, needs of its app."""

    @property
    def config(self) -> AppConfig: ...

    @property
    def delivery(self) -> Delivery: ...

    def get_broker(self) -> PostgresBroker: ...

    def are_sends_suppressed(self) -> bool: ...


class TaskFunction(Generic[P, T]):
    """A registered `def` task. Calling it runs it here; `send` and its kin put it into the queue."""

    def __init__(self, app: TaskApp, definition: TaskDefinition) -> None:
        self.definition = definition
        self.app = app
        self.payload_builder = PayloadBuilder(definition, app.config)
        self.__name__ = getattr(definition.function, "__name__", definition.name)
        self.__doc__ = definition.function.__doc__
        self.__wrapped__ = definition.function
        self.__module__ = definition.function.__module__

    @property
    def task_name(self) -> str:
        return self.definition.name

    @property
    def task_queue_name(self) -> str:
        return self.definition.queue_name

    @cached_property
    def task_ok_type(self) -> object:
        """The T of the declared `TaskResult[T, TaskError]`."""
        return self.definition.ok_type

    @property
    def task_options(self) -> TaskOptions:
        return self.definition.options

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskResult[T, TaskError]:
        """Run it in this process, without the queue; an exception becomes an err result, as in a worker."""
        result = call_task(self.definition, args, kwargs, app=self._exception_rules())
        return cast("TaskResult[T, TaskError]", result)

    def send(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskSendResult[TaskHandle[T]]:
        """Store the task; `Ok` means that it is committed."""
        return self.send_with(DEFAULT_OPTIONS, args, kwargs)

    def send_async(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, TaskSendResult[TaskHandle[T]]]:
        # No coroutine of its own, and the short way first: each step between a call and the driver is felt in the rate
        # of sends one by one.
        if (
            not kwargs
            and not self.app.are_sends_suppressed()
            and (send := self.payload_builder.try_build_compact(args)) is not None
        ):
            return self.app.delivery.deliver_async(self.definition, send, None)
        return self.send_with_async(DEFAULT_OPTIONS, args, kwargs)

    def schedule(self, delay: float | timedelta, /, *args: P.args, **kwargs: P.kwargs) -> TaskSendResult[TaskHandle[T]]:
        """Store the task, to be started `delay` seconds from now at the earliest."""
        return self.schedule_with(DEFAULT_OPTIONS, delay, args, kwargs)

    async def schedule_async(
        self, delay: float | timedelta, /, *args: P.args, **kwargs: P.kwargs
    ) -> TaskSendResult[TaskHandle[T]]:
        return await self.schedule_with_async(DEFAULT_OPTIONS, delay, args, kwargs)

    def send_many(self, items: Iterable[SendItem]) -> TaskSendResult[list[TaskHandle[T]]]:
        """Store a task for each item (keyword arguments, a tuple, or a `bind` value): all of them or none."""
        return self.send_many_with(DEFAULT_OPTIONS, items)

    async def send_many_async(self, items: Iterable[SendItem]) -> TaskSendResult[list[TaskHandle[T]]]:
        return await self.send_many_with_async(DEFAULT_OPTIONS, items)

    def bind(self, /, *args: P.args, **kwargs: P.kwargs) -> BoundCall:
        """Arguments for `send_many`, checked now; `ValueError` names the one that does not fit."""
        try:
            self.definition.codec.encode(args, kwargs)
        except PayloadError as refused:
            raise ValueError(f"{self.task_name}: {refused}") from None
        return BoundCall(args, kwargs)

    def with_options(
        self,
        *,
        good_until: datetime | None = None,
        delay: float | timedelta | None = None,
        idempotency_key: str | None = None,
        flags: Iterable[str] | Mapping[str, bool] | None = None,
        priority: int | None = None,
        connection: object | None = None,
    ) -> TaskSendOptions[P, T]:
        """The same task, sent with these options; nothing is checked before the send."""
        options = SendOptions(
            good_until=good_until,
            delay=delay,
            idempotency_key=idempotency_key,
            flags=flags,
            priority=priority,
            connection=connection,
        )
        return TaskSendOptions(self, options)

    @overload
    def node(self, **settings: Unpack[NodeSettings]) -> NodeFactory[P, T]: ...
    @overload
    def node(self, *, args_from: Mapping[str, AnyNode], **settings: Unpack[NodeSettings]) -> ArgsFromNodeFactory[T]: ...
    def node(
        self, *, args_from: Mapping[str, AnyNode] | None = None, **settings: Unpack[NodeSettings]
    ) -> NodeFactory[P, T] | ArgsFromNodeFactory[T]:
        """A node of a workflow, once called with the arguments of the task: `add.node(waits_for=[x])(a=1, b=2)`."""
        return NodeFactory(self, settings) if args_from is None else ArgsFromNodeFactory(self, args_from, settings)

    def retry_send(self, error: TaskSendError) -> TaskSendResult[TaskHandle[T]]:
        """Send what a failed send carries once more, under the same id: it is stored at most once.

        What was sent with `connection=` is sent again with one: `with_options(connection=…).retry_send_async`.
        """
        return self._resend(error, delayed=False)

    async def retry_send_async(self, error: TaskSendError) -> TaskSendResult[TaskHandle[T]]:
        return await self.resend_with_async(DEFAULT_OPTIONS, error, delayed=False)

    def retry_schedule(self, error: TaskSendError) -> TaskSendResult[TaskHandle[T]]:
        """The same for a failed `schedule`; the delay counts from now."""
        return self._resend(error, delayed=True)

    async def retry_schedule_async(self, error: TaskSendError) -> TaskSendResult[TaskHandle[T]]:
        return await self.resend_with_async(DEFAULT_OPTIONS, error, delayed=True)

    def send_with(
        self, options: SendOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> TaskSendResult[TaskHandle[T]]:
        prepared = self._build(options, args, kwargs)
        if isinstance(prepared, Err):
            return prepared
        if options.connection is not None:
            return Err(validation_error(f"{self.task_name}: {CONNECTION_IS_ASYNC_ONLY}"))
        return self._deliver(prepared)

    def send_with_async(
        self, options: SendOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Coroutine[Any, Any, TaskSendResult[TaskHandle[T]]]:
        prepared = self._build(options, args, kwargs)
        if isinstance(prepared, Err):
            return _known(prepared)
        if options.connection is not None:
            return self._deliver_async(prepared, options.connection)
        return self.app.delivery.deliver_async(self.definition, prepared, None)

    def schedule_with(
        self, options: SendOptions, delay: float | timedelta, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> TaskSendResult[TaskHandle[T]]:
        delayed = self._delayed(options, delay)
        return delayed if isinstance(delayed, Err) else self.send_with(delayed, args, kwargs)

    async def schedule_with_async(
        self, options: SendOptions, delay: float | timedelta, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> TaskSendResult[TaskHandle[T]]:
        delayed = self._delayed(options, delay)
        return delayed if isinstance(delayed, Err) else await self.send_with_async(delayed, args, kwargs)

    async def resend_with_async(
        self, options: SendOptions, error: TaskSendError, *, delayed: bool
    ) -> TaskSendResult[TaskHandle[T]]:
        """Send again what the error carries, on the connection of the options; their others were for new sends."""
        payload = self._payload_to_resend(error, delayed=delayed, connection=options.connection)
        return payload if isinstance(payload, Err) else await self._deliver_async(payload, options.connection)

    def send_many_with(self, options: SendOptions, items: Iterable[SendItem]) -> TaskSendResult[list[TaskHandle[T]]]:
        prepared = self._build_many(options, items)
        if isinstance(prepared, Err):
            return prepared
        if options.connection is not None:
            return Err(validation_error(f"{self.task_name}: {CONNECTION_IS_ASYNC_ONLY}"))
        if is_inside_event_loop():
            return Err(_async_context("await send_many_async instead"))
        return self.app.delivery.deliver_many(self.definition, prepared.value)

    async def send_many_with_async(
        self, options: SendOptions, items: Iterable[SendItem]
    ) -> TaskSendResult[list[TaskHandle[T]]]:
        prepared = self._build_many(options, items)
        if isinstance(prepared, Err):
            return prepared
        return await self.app.delivery.deliver_many_async(self.definition, prepared.value, options.connection)

    def _delayed(self, options: SendOptions, delay: float | timedelta) -> SendOptions | Err[TaskSendError]:
        if self.app.are_sends_suppressed():
            return Err(_suppressed())
        try:
            return with_delay(options, delay)
        except ValueError as refused:
            return Err(validation_error(f"{self.task_name}: {refused}"))

    def _build(
        self, options: SendOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> AnyPayload | Err[TaskSendError]:
        if self.app.are_sends_suppressed():
            return Err(_suppressed())
        return self.payload_builder.build(options, args, kwargs)

    def _build_many(self, options: SendOptions, items: Iterable[SendItem]) -> TaskSendResult[BulkSend]:
        if self.app.are_sends_suppressed():
            return Err(_suppressed())
        return self.payload_builder.build_many(options, items)

    def _deliver(self, send: AnyPayload) -> TaskSendResult[TaskHandle[T]]:
        if is_inside_event_loop():
            payload = to_full_payload(send)
            return Err(_async_context(f"await the _async twin, or {retry_method_name(payload)} this error", payload))
        return self.app.delivery.deliver(self.definition, send)

    def _deliver_async(
        self, send: AnyPayload, connection: object | None
    ) -> Coroutine[Any, Any, TaskSendResult[TaskHandle[T]]]:
        delivered = self.app.delivery.deliver_async(self.definition, send, connection)
        return delivered if connection is None else _within_transaction(delivered)

    def _resend(self, error: TaskSendError, *, delayed: bool) -> TaskSendResult[TaskHandle[T]]:
        payload = self._payload_to_resend(error, delayed=delayed, connection=None)
        return payload if isinstance(payload, Err) else self._deliver(payload)

    def _payload_to_resend(
        self, error: TaskSendError, *, delayed: bool, connection: object | None
    ) -> TaskSendPayload | Err[TaskSendError]:
        if self.app.are_sends_suppressed():
            return Err(_suppressed())
        return payload_to_resend(error, self.definition, delayed=delayed, connection=connection)

    def _exception_rules(self) -> ExceptionRules:
        config = self.app.config
        return ExceptionRules(mapper=config.exception_mapper, default=config.default_unhandled_error_code)

    def __repr__(self) -> str:
        return f"<task {self.task_name!r}>"


class AsyncTaskFunction(TaskFunction[P, T]):
    """A registered `async def` task; calling it gives a coroutine."""

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, TaskResult[T, TaskError]]:
        run: Callable[..., Any] = call_task_async
        return run(self.definition, args, kwargs, app=self._exception_rules())


async def _within_transaction(delivered: Coroutine[Any, Any, TaskSendResult[H]]) -> TaskSendResult[H]:
    return (await delivered).map_err(lambda error: replace(error, needs_connection=True))


async def _known(refused: Err[TaskSendError]) -> Err[TaskSendError]:
    return refused


def _suppressed() -> TaskSendError:
    return TaskSendError(code=TaskSendErrorCode.SEND_SUPPRESSED, message="sends are suppressed in this process")


def _async_context(advice: str, payload: TaskSendPayload | None = None) -> TaskSendError:
    return TaskSendError(
        code=TaskSendErrorCode.ASYNC_CONTEXT,
        message=f"a blocking send inside a running event loop; {advice}",
        task_id=payload.task_id if payload else None,
        payload=payload,
    )
