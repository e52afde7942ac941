"""Decorated tasks, to call in this process, send to a queue or use as workflow nodes; and handles of sent tasks."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from horsies.client.payload import (
    DEFAULT_OPTIONS,
    BoundCall,
    PayloadBuilder,
    SendItem,
    SendOptions,
    SendRejected,
    payload_to_resend,
    retry_method_name,
    with_delay,
)
from horsies.client.results import TaskReader, blocking, error_result, is_final, value_of
from horsies.client.workflow.nodes import AnyNode, ArgsFromNodeFactory, NodeFactory, NodeSettings, PartialCall
from horsies.codec.canonical_json import PayloadError
from horsies.codec.results import AnyResult, validate_result
from horsies.errors import BrokerErrorCode
from horsies.model.result import BrokerOperationError, BrokerResult, Err, Ok
from horsies.model.send import BulkPayload, TaskSendError, TaskSendErrorCode, TaskSendPayload, TaskSendResult
from horsies.model.settings import AppConfig
from horsies.model.task import TaskInfo
from horsies.model.task_result import ExceptionRules, OperationalErrorCode, TaskError, TaskResult
from horsies.registry import TaskDefinition, TaskOptions
from horsies.registry.invocation import call_task, call_task_async
from horsies.sync import BRIDGE, is_inside_event_loop

if TYPE_CHECKING:
    from horsies.client.broker import PostgresBroker
    from horsies.client.delivery import Delivery
    from horsies.client.workflow.spec import Group


P = ParamSpec("P")
T = TypeVar("T")
B = TypeVar("B")

SUPPRESS_VARIABLE = "HORSIES_SUPPRESS_SENDS"
NO_BROKER = "this handle has no broker"


class TaskApp(Protocol):
    """The parts of the app that tasks and workflows use."""

    @property
    def config(self) -> AppConfig: ...

    @cached_property
    def delivery(self) -> Delivery: ...

    @property
    def send_suppression(self) -> SendSuppression: ...

    def get_broker(self) -> PostgresBroker: ...


class TaskSender(Generic[P, T]):
    """The send methods of one task with fixed options.

    Every send has two steps: build the payload, then deliver it. Each `x_async` method builds it when it is called, not
    when it is awaited, so later changes to a mutable argument have no effect.
    """

    def __init__(
        self, app: TaskApp, definition: TaskDefinition, payload_builder: PayloadBuilder, options: SendOptions
    ) -> None:
        self.app = app
        self.definition = definition
        self.payload_builder = payload_builder
        self._options = options

    def send(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskSendResult[TaskHandle[T]]:
        """Store the task for a worker; `Ok` means that it is committed."""
        return self._deliver(self._build(lambda: self.payload_builder.build(self._options, args, kwargs)))

    def send_async(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, TaskSendResult[TaskHandle[T]]]:
        return self._deliver_async(self._build(lambda: self.payload_builder.build(self._options, args, kwargs)))

    def schedule(self, delay: float | timedelta, /, *args: P.args, **kwargs: P.kwargs) -> TaskSendResult[TaskHandle[T]]:
        """Store the task; it starts `delay` seconds from now at the earliest."""
        return self._deliver(
            self._build(lambda: self.payload_builder.build(with_delay(self._options, delay), args, kwargs))
        )

    def schedule_async(
        self, delay: float | timedelta, /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, TaskSendResult[TaskHandle[T]]]:
        return self._deliver_async(
            self._build(lambda: self.payload_builder.build(with_delay(self._options, delay), args, kwargs))
        )

    def send_many(self, items: Iterable[SendItem]) -> TaskSendResult[list[TaskHandle[T]]]:
        """Store one task per item (keyword arguments, a tuple, or a `bind` value), all or nothing."""
        built = self._build(lambda: self.payload_builder.build_many(self._options, items))
        if isinstance(built, Err):
            return built
        if error := self._blocking_error(None):
            return Err(error)
        return Ok([]) if built.value is None else self.app.delivery.deliver_many(self.definition, built.value)

    def send_many_async(self, items: Iterable[SendItem]) -> Coroutine[Any, Any, TaskSendResult[list[TaskHandle[T]]]]:
        return self._deliver_many_async(self._build(lambda: self.payload_builder.build_many(self._options, items)))

    def retry_send(self, error: TaskSendError) -> TaskSendResult[TaskHandle[T]]:
        """Send the payload of a failed send again under the same id, so it is stored at most once.

        Of the options only `connection` applies; the payload has the others. A send that used `connection=` needs one
        again: `with_options(connection=…).retry_send_async`.
        """
        return self._deliver(self._rebuild(error, delayed=False))

    def retry_send_async(self, error: TaskSendError) -> Coroutine[Any, Any, TaskSendResult[TaskHandle[T]]]:
        return self._deliver_async(self._rebuild(error, delayed=False))

    def retry_schedule(self, error: TaskSendError) -> TaskSendResult[TaskHandle[T]]:
        """Like `retry_send`, for a failed `schedule`; the delay counts from now."""
        return self._deliver(self._rebuild(error, delayed=True))

    def retry_schedule_async(self, error: TaskSendError) -> Coroutine[Any, Any, TaskSendResult[TaskHandle[T]]]:
        return self._deliver_async(self._rebuild(error, delayed=True))

    def _build(self, build: Callable[[], B]) -> TaskSendResult[B]:
        """Build payloads, unless sends are suppressed; `build` raises SendRejected if the call is invalid."""
        if self.app.send_suppression.is_on():
            return Err(TaskSendError(code=TaskSendErrorCode.SEND_SUPPRESSED, message="sends are suppressed"))
        try:
            return Ok(build())
        except SendRejected as rejected:
            return Err(self._rejection(rejected))

    def _rebuild(self, error: TaskSendError, *, delayed: bool) -> TaskSendResult[TaskSendPayload]:
        connection = self._options.connection
        return self._build(lambda: payload_to_resend(error, self.definition, delayed=delayed, connection=connection))

    def _rejection(self, rejected: SendRejected) -> TaskSendError:
        message = f"{self.definition.name}: {rejected}"
        return TaskSendError(code=rejected.code, message=message, exception=rejected.__cause__)

    def _deliver(self, built: TaskSendResult[TaskSendPayload]) -> TaskSendResult[TaskHandle[T]]:
        if isinstance(built, Err):
            return built
        if error := self._blocking_error(built.value):
            return Err(error)
        return self.app.delivery.deliver(self.definition, built.value)

    async def _deliver_async(self, built: TaskSendResult[TaskSendPayload]) -> TaskSendResult[TaskHandle[T]]:
        if isinstance(built, Err):
            return built
        connection = self._options.connection
        delivered = await self.app.delivery.deliver_async(self.definition, built.value, connection)
        # A retry without a connection would run outside of the caller's transaction.
        return delivered if connection is None else delivered.map_err(lambda e: replace(e, needs_connection=True))

    async def _deliver_many_async(
        self, built: TaskSendResult[BulkPayload | None]
    ) -> TaskSendResult[list[TaskHandle[T]]]:
        if isinstance(built, Err):
            return built
        if built.value is None:
            return Ok([])
        return await self.app.delivery.deliver_many_async(self.definition, built.value, self._options.connection)

    def _blocking_error(self, payload: TaskSendPayload | None) -> TaskSendError | None:
        """Why a blocking send is not possible here, None if it is; a bulk send has no single `payload`."""
        if self._options.connection is not None:
            return self._rejection(SendRejected("connection= requires an _async method"))
        if not is_inside_event_loop():
            return None
        advice = "await send_many_async instead"
        if payload is not None:
            advice = f"await the _async method, or pass this error to {retry_method_name(payload)}"
        return TaskSendError(
            code=TaskSendErrorCode.ASYNC_CONTEXT,
            message=f"blocking send inside a running event loop; {advice}",
            task_id=payload.task_id if payload else None,
            payload=payload,
        )


class TaskSendOptions(TaskSender[P, T]):
    """The value of `with_options`: the send methods of a task, with the options applied."""


class TaskFunction(TaskSender[P, T]):
    """A registered `def` task. Calling it runs it in this process; `send` stores it for a worker."""

    def __init__(self, app: TaskApp, definition: TaskDefinition) -> None:
        super().__init__(app, definition, PayloadBuilder(definition, app.config), DEFAULT_OPTIONS)
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
        """The declared type of the ok value: the T of `TaskResult[T, TaskError]`, or a plain return type."""
        return self.definition.ok_type

    @property
    def task_options(self) -> TaskOptions:
        return self.definition.options

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskResult[T, TaskError]:
        """Run the task in this process; an exception becomes an err result, as in a worker."""
        result = call_task(self.definition, args, kwargs, app=self._exception_rules())
        return cast("TaskResult[T, TaskError]", result)

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
        return TaskSendOptions(self.app, self.definition, self.payload_builder, options)

    def s(self, /, *args: Any, **kwargs: Any) -> PartialCall[T]:
        """This task with some of its arguments, for `chain` and `group`; they are validated when these are built."""
        return PartialCall(self, args, kwargs)

    def map(self, values: Iterable[Any], *, name: str | None = None, definition_key: str | None = None) -> Group:
        """A workflow that runs the task once for each value, in parallel; see `group`."""
        from horsies.client.workflow.spec import group  # here, because it imports this module

        return group([self.s(value) for value in values], name=name, definition_key=definition_key)

    @overload
    def node(self, **settings: Unpack[NodeSettings]) -> NodeFactory[P, T]: ...
    @overload
    def node(self, *, args_from: Mapping[str, AnyNode], **settings: Unpack[NodeSettings]) -> ArgsFromNodeFactory[T]: ...
    def node(
        self, *, args_from: Mapping[str, AnyNode] | None = None, **settings: Unpack[NodeSettings]
    ) -> NodeFactory[P, T] | ArgsFromNodeFactory[T]:
        """Return a factory that makes a workflow node: `add.node(waits_for=[x])(a=1, b=2)`."""
        return NodeFactory(self, settings) if args_from is None else ArgsFromNodeFactory(self, args_from, settings)

    def _exception_rules(self) -> ExceptionRules:
        config = self.app.config
        return ExceptionRules(mapper=config.exception_mapper, default=config.default_unhandled_error_code)

    def __repr__(self) -> str:
        return f"<task {self.task_name!r}>"


class PlainTaskFunction(TaskFunction[P, T]):
    """A registered `def` task that is declared to return a plain value. Calling it returns the value, or raises."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> T:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._checked(self.definition.function(*args, **kwargs))

    def _checked(self, returned: object) -> T:
        """The value as the declared type; raises TypeError for another one, which fails the task in a worker."""
        result = validate_result(returned, self.definition.codec.result_codec, is_plain=True)
        if result.is_err():
            raise TypeError(f"{self.task_name}: {result.err_value.message}")
        return cast("T", result.ok_value)


class AsyncPlainTaskFunction(PlainTaskFunction[P, T]):
    """A registered `async def` task that is declared to return a plain value."""

    async def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return self._checked(await self.definition.function(*args, **kwargs))


class AsyncTaskFunction(TaskFunction[P, T]):
    """A registered `async def` task; calling it returns a coroutine."""

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, TaskResult[T, TaskError]]:
        run: Callable[..., Any] = call_task_async
        return run(self.definition, args, kwargs, app=self._exception_rules())


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class TaskHandle(Generic[T]):
    """Waits for a task's result and reads its row. Caches the result once it is final."""

    task_id: str
    reader: TaskReader | None = None
    known: AnyResult | None = field(default=None, kw_only=True)
    """The result, once it is final."""

    def get(self, timeout_ms: int | None = None) -> TaskResult[T, TaskError]:
        """Wait for the result; None waits without limit, 0 checks once. Failures are err results too."""
        if self.known is not None:  # needs no bridge, so it also works inside an event loop
            return self._typed(self.known)
        return BRIDGE.run(self.get_async(timeout_ms))

    async def get_async(self, timeout_ms: int | None = None) -> TaskResult[T, TaskError]:
        if self.known is None:
            result = (
                error_result(OperationalErrorCode.BROKER_ERROR, NO_BROKER)
                if self.reader is None
                else await self.reader.result(self.task_id, timeout_ms)
            )
            if not is_final(result):
                return self._typed(result)
            self.known = result
        return self._typed(self.known)

    def value(self, timeout_ms: int | None = None) -> T:
        """Wait for the result and return its value.

        Raises `TimeoutError` if the task has not finished in time, and `ValueError`, with the exception of the task
        as its cause, if it failed.
        """
        return value_of(self.get(timeout_ms))

    async def value_async(self, timeout_ms: int | None = None) -> T:
        return value_of(await self.get_async(timeout_ms))

    async def info_async(
        self, *, include_result: bool = False, include_failed_reason: bool = False, include_attempts: bool = False
    ) -> BrokerResult[TaskInfo | None]:
        """The current state of the task; None if it does not exist."""
        if self.reader is None:
            return Err(BrokerOperationError(code=BrokerErrorCode.NO_BROKER, message=NO_BROKER))
        return await self.reader.info(
            self.task_id,
            include_result=include_result,
            include_failed_reason=include_failed_reason,
            include_attempts=include_attempts,
        )

    info = blocking(info_async)

    def __repr__(self) -> str:
        return f"TaskHandle({self.task_id!r})"

    def _typed(self, result: AnyResult) -> TaskResult[T, TaskError]:
        # Correct if the task is registered here: its value was decoded with the codec of the declared type.
        return cast("TaskResult[T, TaskError]", result)


# Send suppression


class SendSuppression:
    """Whether an app must not send: on request, by `HORSIES_SUPPRESS_SENDS=1`, or while modules are imported."""

    def __init__(self) -> None:
        self.is_requested = False

    def is_on(self) -> bool:
        return self.is_requested or bool(_IMPORTS_IN_PROGRESS) or os.environ.get(SUPPRESS_VARIABLE) == "1"


_IMPORTS_IN_PROGRESS: list[object] = []
"""One entry for each active `sends_suppressed` block; global, because imported code may send from other threads."""


@contextmanager
def sends_suppressed() -> Generator[None]:
    """Suppress the sends of every app in this process inside the block."""
    _IMPORTS_IN_PROGRESS.append(None)
    try:
        yield
    finally:
        _IMPORTS_IN_PROGRESS.pop()
