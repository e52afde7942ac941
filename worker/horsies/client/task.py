"""The decorated task: call it in this process, send it to the queue, or make it a workflow node."""

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


P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H")

CONNECTION_IS_ASYNC_ONLY = "connection= requires an _async method"


class TaskApp(Protocol):
    """The parts of the app that tasks and workflows use."""

    @property
    def config(self) -> AppConfig: ...

    @property
    def delivery(self) -> Delivery: ...

    def get_broker(self) -> PostgresBroker: ...

    def are_sends_suppressed(self) -> bool: ...


class TaskFunction(Generic[P, T]):
    """A registered `def` task. Calling it runs it in this process; `send` stores it for a worker.

    The `*_with` methods are the implementation shared with `TaskSendOptions`.
    """

    def __init__(self, app: TaskApp, definition: TaskDefinition) -> None:
        self.definition = definition
        self.app = app
        self.payload_builder = PayloadBuilder(definition, app.config)
        # What `functools.wraps` sets, so that help() and inspect show the function.
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

    @cached_property  # resolving annotations is slow
    def task_ok_type(self) -> object:
        """The T in the declared return type `TaskResult[T, TaskError]`."""
        return self.definition.ok_type

    @property
    def task_options(self) -> TaskOptions:
        return self.definition.options

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskResult[T, TaskError]:
        """Run the task in this process; an exception becomes an err result, as in a worker."""
        result = call_task(self.definition, args, kwargs, app=self._exception_rules())
        return cast("TaskResult[T, TaskError]", result)

    def send(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskSendResult[TaskHandle[T]]:
        """Store the task for a worker; `Ok` means that it is committed."""
        return self.send_with(DEFAULT_OPTIONS, args, kwargs)

    def send_async(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, TaskSendResult[TaskHandle[T]]]:
        # Returns the delivery's coroutine instead of wrapping it, and tries the fast path first: every extra call
        # lowers the rate of single sends.
        if (
            not kwargs
            and not self.app.are_sends_suppressed()
            and (send := self.payload_builder.try_build_compact(args)) is not None
        ):
            return self.app.delivery.deliver_async(self.definition, send, None)
        return self.send_with_async(DEFAULT_OPTIONS, args, kwargs)

    def schedule(self, delay: float | timedelta, /, *args: P.args, **kwargs: P.kwargs) -> TaskSendResult[TaskHandle[T]]:
        """Store the task; it starts `delay` seconds from now at the earliest."""
        return self.schedule_with(DEFAULT_OPTIONS, delay, args, kwargs)

    async def schedule_async(
        self, delay: float | timedelta, /, *args: P.args, **kwargs: P.kwargs
    ) -> TaskSendResult[TaskHandle[T]]:
        return await self.schedule_with_async(DEFAULT_OPTIONS, delay, args, kwargs)

    def send_many(self, items: Iterable[SendItem]) -> TaskSendResult[list[TaskHandle[T]]]:
        """Store one task per item (keyword arguments, a tuple, or a `bind` value), all or nothing."""
        return self.send_many_with(DEFAULT_OPTIONS, items)

    async def send_many_async(self, items: Iterable[SendItem]) -> TaskSendResult[list[TaskHandle[T]]]:
        return await self.send_many_with_async(DEFAULT_OPTIONS, items)

    def bind(self, /, *args: P.args, **kwargs: P.kwargs) -> BoundCall:
        """Arguments for `send_many`, validated now; raises ValueError naming an invalid one."""
        try:
            self.definition.codec.encode(args, kwargs)
        except PayloadError as error:
            raise ValueError(f"{self.task_name}: {error}") from None
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
        """The send methods of this task with these options, which are validated when it is sent."""
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
        """Return a factory that makes a workflow node: `add.node(waits_for=[x])(a=1, b=2)`."""
        return NodeFactory(self, settings) if args_from is None else ArgsFromNodeFactory(self, args_from, settings)

    def retry_send(self, error: TaskSendError) -> TaskSendResult[TaskHandle[T]]:
        """Send the payload of a failed send again under the same id, so it is stored at most once.

        A send that used `connection=` needs one again: `with_options(connection=…).retry_send_async`.
        """
        return self._resend(error, delayed=False)

    async def retry_send_async(self, error: TaskSendError) -> TaskSendResult[TaskHandle[T]]:
        return await self.resend_with_async(DEFAULT_OPTIONS, error, delayed=False)

    def retry_schedule(self, error: TaskSendError) -> TaskSendResult[TaskHandle[T]]:
        """Like `retry_send`, for a failed `schedule`; the delay counts from now."""
        return self._resend(error, delayed=True)

    async def retry_schedule_async(self, error: TaskSendError) -> TaskSendResult[TaskHandle[T]]:
        return await self.resend_with_async(DEFAULT_OPTIONS, error, delayed=True)

    def send_with(
        self, options: SendOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> TaskSendResult[TaskHandle[T]]:
        payload = self._build(options, args, kwargs)
        if isinstance(payload, Err):
            return payload
        if options.connection is not None:
            return Err(validation_error(f"{self.task_name}: {CONNECTION_IS_ASYNC_ONLY}"))
        return self._deliver(payload)

    def send_with_async(
        self, options: SendOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Coroutine[Any, Any, TaskSendResult[TaskHandle[T]]]:
        # Not `async def`: the arguments are encoded now, so the caller may change them before awaiting the result.
        payload = self._build(options, args, kwargs)
        if isinstance(payload, Err):
            return _completed(payload)
        return self._deliver_async(payload, options.connection)

    def schedule_with(
        self, options: SendOptions, delay: float | timedelta, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> TaskSendResult[TaskHandle[T]]:
        delayed_options = self._with_delay(options, delay)
        if isinstance(delayed_options, Err):
            return delayed_options
        return self.send_with(delayed_options, args, kwargs)

    async def schedule_with_async(
        self, options: SendOptions, delay: float | timedelta, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> TaskSendResult[TaskHandle[T]]:
        delayed_options = self._with_delay(options, delay)
        if isinstance(delayed_options, Err):
            return delayed_options
        return await self.send_with_async(delayed_options, args, kwargs)

    async def resend_with_async(
        self, options: SendOptions, error: TaskSendError, *, delayed: bool
    ) -> TaskSendResult[TaskHandle[T]]:
        """Send the payload of the error again. Only `connection` of the options is used; the payload has the others."""
        payload = self._payload_to_resend(error, delayed=delayed, connection=options.connection)
        return payload if isinstance(payload, Err) else await self._deliver_async(payload, options.connection)

    def send_many_with(self, options: SendOptions, items: Iterable[SendItem]) -> TaskSendResult[list[TaskHandle[T]]]:
        bulk = self._build_many(options, items)
        if isinstance(bulk, Err):
            return bulk
        if options.connection is not None:
            return Err(validation_error(f"{self.task_name}: {CONNECTION_IS_ASYNC_ONLY}"))
        if is_inside_event_loop():
            return Err(_async_context_error("await send_many_async instead"))
        return self.app.delivery.deliver_many(self.definition, bulk.value)

    async def send_many_with_async(
        self, options: SendOptions, items: Iterable[SendItem]
    ) -> TaskSendResult[list[TaskHandle[T]]]:
        bulk = self._build_many(options, items)
        if isinstance(bulk, Err):
            return bulk
        return await self.app.delivery.deliver_many_async(self.definition, bulk.value, options.connection)

    def _with_delay(self, options: SendOptions, delay: float | timedelta) -> SendOptions | Err[TaskSendError]:
        if self.app.are_sends_suppressed():
            return Err(_suppressed_error())
        try:
            return with_delay(options, delay)
        except ValueError as error:
            return Err(validation_error(f"{self.task_name}: {error}"))

    def _build(
        self, options: SendOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> AnyPayload | Err[TaskSendError]:
        if self.app.are_sends_suppressed():
            return Err(_suppressed_error())
        return self.payload_builder.build(options, args, kwargs)

    def _build_many(self, options: SendOptions, items: Iterable[SendItem]) -> TaskSendResult[BulkSend]:
        if self.app.are_sends_suppressed():
            return Err(_suppressed_error())
        return self.payload_builder.build_many(options, items)

    def _deliver(self, send: AnyPayload) -> TaskSendResult[TaskHandle[T]]:
        # Checked only now, because the error carries the finished payload, which `retry_send_async` can send.
        if is_inside_event_loop():
            payload = to_full_payload(send)
            advice = f"await the _async method, or pass this error to {retry_method_name(payload)}"
            return Err(_async_context_error(advice, payload))
        return self.app.delivery.deliver(self.definition, send)

    def _deliver_async(
        self, send: AnyPayload, connection: object | None
    ) -> Coroutine[Any, Any, TaskSendResult[TaskHandle[T]]]:
        delivered = self.app.delivery.deliver_async(self.definition, send, connection)
        return delivered if connection is None else _mark_needs_connection(delivered)

    def _resend(self, error: TaskSendError, *, delayed: bool) -> TaskSendResult[TaskHandle[T]]:
        payload = self._payload_to_resend(error, delayed=delayed, connection=None)
        return payload if isinstance(payload, Err) else self._deliver(payload)

    def _payload_to_resend(
        self, error: TaskSendError, *, delayed: bool, connection: object | None
    ) -> TaskSendPayload | Err[TaskSendError]:
        if self.app.are_sends_suppressed():
            return Err(_suppressed_error())
        return payload_to_resend(error, self.definition, delayed=delayed, connection=connection)

    def _exception_rules(self) -> ExceptionRules:
        config = self.app.config
        return ExceptionRules(mapper=config.exception_mapper, default=config.default_unhandled_error_code)

    def __repr__(self) -> str:
        return f"<task {self.task_name!r}>"


class AsyncTaskFunction(TaskFunction[P, T]):
    """A registered `async def` task; calling it returns a coroutine."""

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, TaskResult[T, TaskError]]:
        run: Callable[..., Any] = call_task_async
        return run(self.definition, args, kwargs, app=self._exception_rules())


class TaskSendOptions(Generic[P, T]):
    """Returned by `with_options`: the send methods of a task, with the options applied."""

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
        """Send the payload of a failed send again, unchanged, on the connection of these options."""
        return await self._task.resend_with_async(self._options, error, delayed=False)

    async def retry_schedule_async(self, error: TaskSendError) -> TaskSendResult[TaskHandle[T]]:
        """Like `retry_send_async`, for a failed `schedule_async`; the delay counts from now."""
        return await self._task.resend_with_async(self._options, error, delayed=True)


async def _mark_needs_connection(delivered: Coroutine[Any, Any, TaskSendResult[H]]) -> TaskSendResult[H]:
    """Mark the error of a send on the caller's connection: a retry without one would run outside its transaction."""
    return (await delivered).map_err(lambda error: replace(error, needs_connection=True))


async def _completed(error: Err[TaskSendError]) -> Err[TaskSendError]:
    """Wrap an error in a coroutine."""
    return error


def _suppressed_error() -> TaskSendError:
    return TaskSendError(code=TaskSendErrorCode.SEND_SUPPRESSED, message="sends are suppressed in this process")


def _async_context_error(advice: str, payload: TaskSendPayload | None = None) -> TaskSendError:
    return TaskSendError(
        code=TaskSendErrorCode.ASYNC_CONTEXT,
        message=f"blocking send inside a running event loop; {advice}",
        task_id=payload.task_id if payload else None,
        payload=payload,
    )
