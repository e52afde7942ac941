"""`Horsies`, the application object: settings, tasks, workflows, hooks and the connection to the database."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload
from uuid import UUID

from horsies.client.results import BrokerTaskReader, TaskReader, blocking
from horsies.client.task import (
    AsyncPlainTaskFunction,
    AsyncTaskFunction,
    PlainTaskFunction,
    SendSuppression,
    TaskFunction,
)
from horsies.client.workflow.definition import AppDefinitions
from horsies.client.workflow.nodes import AnyNode, SuccessPolicy
from horsies.client.workflow.spec import WorkflowSpec
from horsies.codec.values import ValueCodec
from horsies.config import LoadedSettings, load_settings
from horsies.errors import ConfigurationError, ErrorCode, HorsiesError, SourceLocation
from horsies.model.result import BrokerResult, DatabasePing, WorkerPong, WorkerStateSnapshot
from horsies.model.retry import RetryPolicy
from horsies.model.settings import AppConfig, TaskSchedule
from horsies.model.settings.patterns import SchedulePattern, invalid_schedule, parse_pattern
from horsies.model.task import DEFAULT_QUEUE, TaskInfo, queue_fault
from horsies.model.task_result import ExceptionMapper, TaskError, TaskResult
from horsies.model.workflow.plan import NodeRef, OnError
from horsies.recovery.hook_registry import InterruptedHook, RecoveryHook, RecoveryHooks, WorkersRecoveredHook
from horsies.registry import TaskRegistry, define_task
from horsies.registry.definition import default_task_name
from horsies.sync import BRIDGE
from horsies.task_modules import (
    DefinitionPlaceholder,
    expand_globs,
    import_modules,
    record_or_raise,
    require_list,
)

if TYPE_CHECKING:
    from horsies.client.broker import PostgresBroker, Role
    from horsies.client.delivery import Delivery
    from horsies.client.schedules import RuntimeSchedules
    from horsies.client.workers import WorkerMonitor

P = ParamSpec("P")
S = TypeVar("S", bound=WorkflowSpec[Any])
T = TypeVar("T")
AnyTask = TaskFunction[Any, Any]
# By whether the function is `async def`, and whether it returns a plain value.
_TASK_KINDS: dict[tuple[bool, bool], type[AnyTask]] = {
    (False, False): TaskFunction,
    (True, False): AsyncTaskFunction,
    (False, True): PlainTaskFunction,
    (True, True): AsyncPlainTaskFunction,
}
ScheduledTask = TypeVar("ScheduledTask", bound=TaskFunction[Any, Any])
ChildProcessStartHook: TypeAlias = Callable[[], None]

logger = logging.getLogger("horsies")


class TaskDecorator(Protocol):
    """Turns a function into a task with the same signature."""

    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]  # a TaskResult is not a plain value
        self, function: Callable[P, Coroutine[Any, Any, TaskResult[T, TaskError]]], /
    ) -> AsyncTaskFunction[P, T]: ...
    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]
        self, function: Callable[P, TaskResult[T, TaskError]], /
    ) -> TaskFunction[P, T]: ...
    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> AsyncPlainTaskFunction[P, T]: ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> PlainTaskFunction[P, T]: ...


class Horsies:
    """An application: created once, imported everywhere. It connects to the database on first use.

    Every `x_async` method has a blocking equivalent `x` for callers without an event loop.
    """

    def __init__(self, config: AppConfig | None = None) -> None:
        self.settings: LoadedSettings = load_settings(app_config=config, code=SourceLocation.calling_file())
        self.name = self.config.name or SourceLocation.calling_module()
        """Owns the app's schedules: `app.name`, else the name of the module that created the app."""
        self.logger = logger
        self._child_hooks: list[ChildProcessStartHook] = []
        self.recovery_hooks = RecoveryHooks()
        self.definitions = AppDefinitions(self, self._result_codec_for)
        self._schedules: list[TaskSchedule] = []
        self._builders: dict[Callable[..., Any], WorkflowBuilder] = {}
        self._tasks: TaskRegistry[AnyTask] = TaskRegistry()
        self._modules: list[str] = list(self.settings.modules)
        self.send_suppression = SendSuppression()
        self._broker: PostgresBroker  # set by `get_broker`

    # The broker, its readers and the delivery are created on first use: they import the store and the driver, which
    # take 5 MB, and most child processes neither send nor read. `task_reader` and `delivery` are public, because
    # `horsies.testing` replaces them to run tasks inline.

    @cached_property
    def task_reader(self) -> TaskReader:
        return BrokerTaskReader(self.get_broker())

    @cached_property
    def delivery(self) -> Delivery:
        from horsies.client.delivery import BrokerDelivery

        broker = self.get_broker()
        return BrokerDelivery(broker, BrokerTaskReader(broker), resends=self.config.resend_on_transient_err)

    @property
    def _monitoring(self) -> WorkerMonitor:
        from horsies.client.workers import WorkerMonitor

        return WorkerMonitor(self.get_broker())

    @property
    def config(self) -> AppConfig:
        """The settings in use, merged from code, files and environment."""
        return self.settings.app

    @property
    def child_hooks(self) -> tuple[ChildProcessStartHook, ...]:
        """The functions that run in each child process after its imports, in registration order."""
        return tuple(self._child_hooks)

    @property
    def tasks(self) -> TaskRegistry[AnyTask]:
        """The registered tasks by name."""
        return self._tasks

    @overload
    def task(  # pyright: ignore[reportOverlappingOverload]  # as in TaskDecorator
        self, task_name: Callable[P, Coroutine[Any, Any, TaskResult[T, TaskError]]], /
    ) -> AsyncTaskFunction[P, T]: ...
    @overload
    def task(  # pyright: ignore[reportOverlappingOverload]
        self, task_name: Callable[P, TaskResult[T, TaskError]], /
    ) -> TaskFunction[P, T]: ...
    @overload
    def task(  # pyright: ignore[reportOverlappingOverload]
        self, task_name: Callable[P, Coroutine[Any, Any, T]], /
    ) -> AsyncPlainTaskFunction[P, T]: ...
    @overload
    def task(self, task_name: Callable[P, T], /) -> PlainTaskFunction[P, T]: ...
    @overload
    def task(
        self,
        task_name: str | None = None,
        *,
        queue_name: str | None = None,
        priority: int | None = None,
        retry_policy: RetryPolicy | None = None,
        exception_mapper: ExceptionMapper | None = None,
        default_unhandled_error_code: str | None = None,
        timeout_ms: int | None = None,
        flags: Iterable[str] | Mapping[str, bool] = (),
        **unknown: Any,
    ) -> TaskDecorator: ...
    def task(
        self,
        task_name: str | Callable[..., Any] | None = None,
        *,
        queue_name: str | None = None,
        priority: int | None = None,
        retry_policy: RetryPolicy | None = None,
        exception_mapper: ExceptionMapper | None = None,
        default_unhandled_error_code: str | None = None,
        timeout_ms: int | None = None,
        flags: Iterable[str] | Mapping[str, bool] = (),
        **unknown: Any,
    ) -> Any:
        """Register a function as a task, by default under its own name; raises all faults of its definition together.

        `@app.task` without parentheses passes the function as `task_name`.
        """
        location = SourceLocation.of_caller()
        options = {
            "queue_name": queue_name,
            "priority": priority,
            "retry_policy": retry_policy,
            "exception_mapper": exception_mapper,
            "default_unhandled_error_code": default_unhandled_error_code,
            "timeout_ms": timeout_ms,
            "flags": flags,
            **unknown,
        }

        def register(function: Callable[..., Any], /) -> AnyTask:
            try:
                name = default_task_name(function) if task_name is None or callable(task_name) else task_name
                definition = define_task(name, function, options, queues=self._custom_queues(), location=location)
                kind = _TASK_KINDS[definition.is_async, definition.codec.is_plain]
                return self._tasks.register(kind(self, definition))
            except HorsiesError as error:
                return cast("AnyTask", record_or_raise(error))

        return register(task_name) if callable(task_name) else register

    def scheduled(
        self, pattern: SchedulePattern | Mapping[str, Any] | str, *, name: str | None = None, **options: Any
    ) -> Callable[[ScheduledTask], ScheduledTask]:
        """Send a task at the times of `pattern`; put it above `@app.task`. `options` are the fields of TaskSchedule.

        The schedule has the name of the task, unless `name` is given.
        """

        def register(task: ScheduledTask) -> ScheduledTask:
            if isinstance(task, DefinitionPlaceholder):
                return task
            try:
                if not isinstance(cast("object", task), TaskFunction):
                    raise invalid_schedule("@app.scheduled needs a task", hint="put @app.scheduled above @app.task")
                schedule = TaskSchedule(
                    name=name or task.task_name, task_name=task.task_name, pattern=parse_pattern(pattern), **options
                )
            except HorsiesError as error:
                return cast("ScheduledTask", record_or_raise(error))
            self.add_schedules([schedule])
            return task

        return register

    def add_schedules(self, schedules: Iterable[TaskSchedule]) -> None:
        """Define more schedules in code; a sync stores them when a worker or scheduler starts."""
        # A module that is imported again defines its schedules again.
        self._schedules += [schedule for schedule in schedules if schedule not in self._schedules]

    @cached_property
    def schedules(self) -> RuntimeSchedules:
        """Creates, changes and deletes schedules at run time."""
        # Imported here: it needs the store, which children that send nothing do not load.
        from horsies.client.schedules import RuntimeSchedules

        return RuntimeSchedules(self)

    def get_schedules(self) -> list[TaskSchedule]:
        """Return the schedules of the settings and of `@app.scheduled`."""
        config = self.config.schedule
        return [*(config.schedules if config else ()), *self._schedules]

    @overload
    def workflow(
        self,
        name: str,
        tasks: Sequence[AnyNode],
        on_error: OnError = ...,
        output: None = None,
        success_policy: SuccessPolicy | None = None,
        *,
        definition_key: str,
    ) -> WorkflowSpec[dict[str, TaskResult[Any, TaskError]]]: ...
    @overload
    def workflow(
        self,
        name: str,
        tasks: Sequence[AnyNode],
        on_error: OnError = ...,
        output: NodeRef[T] = ...,  # pyright: ignore[reportInvalidTypeVarUse]  # given, see above
        success_policy: SuccessPolicy | None = None,
        *,
        definition_key: str,
    ) -> WorkflowSpec[T]: ...
    def workflow(
        self,
        name: str,
        tasks: Sequence[AnyNode],
        on_error: OnError = OnError.FAIL,
        output: Any = None,
        success_policy: SuccessPolicy | None = None,
        *,
        definition_key: str | None = None,
    ) -> WorkflowSpec[Any]:
        """Build a workflow from nodes; raises all its faults together."""
        # A node of an invalid task, whose error is recorded already: checking the graph would only repeat it.
        if any(isinstance(node, DefinitionPlaceholder) for node in tasks):
            return cast("Any", DefinitionPlaceholder())
        try:
            return WorkflowSpec(name, tasks, on_error, output, success_policy, definition_key, app=self)
        except HorsiesError as error:
            return cast("Any", record_or_raise(error))

    def workflow_builder(
        self, *, cases: Sequence[Mapping[str, Any]] | None = None
    ) -> Callable[[Callable[P, S]], Callable[P, S]]:
        """Register a function that returns a spec, so that `check` calls it: once per case, or without arguments."""

        def register(function: Callable[P, S]) -> Callable[P, S]:
            code = inspect.unwrap(function).__code__
            location = SourceLocation(code.co_filename, code.co_firstlineno)
            self._builders.setdefault(function, WorkflowBuilder(function=function, cases=cases, location=location))
            return function

        return register

    def get_workflow_builders(self) -> list[WorkflowBuilder]:
        return list(self._builders.values())

    def list_tasks(self) -> list[str]:
        return sorted(self._tasks)

    def get_valid_queue_names(self) -> list[str]:
        queues = self._custom_queues()
        return [DEFAULT_QUEUE] if queues is None else sorted(queues)

    def validate_queue_name(self, queue_name: str | None) -> str:
        """Return the queue for this `queue_name`; raises HRS-200 or HRS-103 if it is invalid."""
        if fault := queue_fault(queue_name, self._custom_queues()):
            raise fault
        return queue_name or DEFAULT_QUEUE

    def discover_tasks(self, modules: Sequence[str]) -> None:
        """Set the modules that define tasks, as dotted names or `.py` paths; does not import them yet."""
        names = require_list(modules, parameter="modules")
        if self._modules and names != self._modules:
            logger.warning("discover_tasks replaces modules %s with %s", self._modules, names)
        self._modules = names

    def expand_module_globs(self, patterns: Sequence[str], exclude: Sequence[str] | None = None) -> list[str]:
        return expand_globs(patterns, exclude)

    def get_discovered_task_modules(self) -> list[str]:
        return list(self._modules)

    def import_task_modules(self, modules: Sequence[str] | None = None) -> list[ModuleType]:
        """Import the given modules, or those of `discover_tasks`; sends are suppressed meanwhile."""
        return import_modules(self._modules if modules is None else modules)

    def check(self, *, live: bool = False) -> list[HorsiesError]:
        """Return every error of the first validation phase that fails; `live` also checks the database."""
        from horsies.check import first_failed_phase

        failed = first_failed_phase(self, live=live)
        return list(failed.errors) if failed else []

    def suppress_sends(self, suppressed: bool) -> None:  # noqa: FBT001  # the documented signature
        self.send_suppression.is_requested = suppressed

    def are_sends_suppressed(self) -> bool:
        return self.send_suppression.is_on()

    @property
    def role(self) -> Role:
        return self.get_broker().role

    def set_role(self, role: Role) -> None:
        """Set the role of this process, which decides its pool size; call before the first use of the broker."""
        self.get_broker().role = role

    def on_child_process_start(self, hook: ChildProcessStartHook) -> ChildProcessStartHook:
        """Call `hook` once in each child process, after its imports."""
        if fault := _hook_fault(hook):
            raise ConfigurationError(
                fault,
                code=ErrorCode.CONFIG_INVALID_CHILD_HOOK,
                hint="use a plain function without parameters",
                location=SourceLocation.of_caller(),
            )
        if hook not in self._child_hooks:
            self._child_hooks.append(hook)
        return hook

    def on_recovery(self, hook: RecoveryHook) -> RecoveryHook:
        """Call `hook` before a stale task is recovered; it may change the decision."""
        return self.recovery_hooks.recovery.add(hook)

    def on_interrupted(self, hook: InterruptedHook) -> InterruptedHook:
        """Call `hook` for each interrupted task, after the interruption is stored."""
        return self.recovery_hooks.interrupted.add(hook)

    def on_workers_recovered(self, hook: WorkersRecoveredHook) -> WorkersRecoveredHook:
        """Call `hook` once after each sweep that recovered something."""
        return self.recovery_hooks.workers_recovered.add(hook)

    def get_broker(self) -> PostgresBroker:
        """Return the broker of this process; it connects on first use."""
        if "_broker" not in vars(self):
            from horsies.client.broker import PostgresBroker, RecoveryDependencies
            from horsies.recovery.hooks import HookCaller

            dependencies = RecoveryDependencies(
                local_config=self.config.recovery,
                hooks=lambda: HookCaller(self.recovery_hooks),
                definitions=self.definitions,
            )
            broker = PostgresBroker(
                self.config.broker, result_codec_for=self._result_codec_for, recovery_dependencies=dependencies
            )
            # Atomic, so that threads that call this at the same time get the same broker.
            vars(self).setdefault("_broker", broker)
        return self._broker

    def get_result(self, task_id: str | UUID, timeout_ms: int | None = None) -> TaskResult[Any, TaskError]:
        return BRIDGE.run(self.get_result_async(task_id, timeout_ms))

    async def get_result_async(self, task_id: str | UUID, timeout_ms: int | None = None) -> TaskResult[Any, TaskError]:
        return await self.task_reader.result(task_id, timeout_ms)

    async def get_raw_result_async(self, task_id: str | UUID) -> BrokerResult[dict[str, object] | None]:
        return await self.task_reader.raw_result(task_id)

    get_raw_result = blocking(get_raw_result_async)

    async def get_task_info_async(
        self,
        task_id: str | UUID,
        *,
        include_result: bool = False,
        include_failed_reason: bool = False,
        include_attempts: bool = False,
    ) -> BrokerResult[TaskInfo | None]:
        return await self.task_reader.info(
            task_id,
            include_result=include_result,
            include_failed_reason=include_failed_reason,
            include_attempts=include_attempts,
        )

    get_task_info = blocking(get_task_info_async)

    async def ping_database_async(self) -> BrokerResult[DatabasePing]:
        return await self._monitoring.ping_database()

    ping_database = blocking(ping_database_async)

    async def ping_workers_async(
        self, *, target_worker_id: str | None = None, timeout_seconds: float = 2.0, min_responses: int | None = None
    ) -> BrokerResult[list[WorkerPong]]:
        """Ping workers and return the answers; returns early after the target's answer or `min_responses` answers."""
        return await self._monitoring.ping(
            target_worker_id=target_worker_id, timeout_seconds=timeout_seconds, min_responses=min_responses
        )

    ping_workers = blocking(ping_workers_async)

    async def list_worker_states_async(self) -> BrokerResult[list[WorkerStateSnapshot]]:
        """Return the newest snapshot of each worker."""
        return await self._monitoring.states()

    list_worker_states = blocking(list_worker_states_async)

    async def get_worker_state_async(self, worker_id: str) -> BrokerResult[WorkerStateSnapshot | None]:
        """Return the newest snapshot of one worker; None if it has none."""
        return await self._monitoring.state(worker_id)

    get_worker_state = blocking(get_worker_state_async)

    async def get_worker_state_history_async(
        self, worker_id: str, *, limit: int | None = None
    ) -> BrokerResult[list[WorkerStateSnapshot]]:
        """Return the snapshots of one worker, newest first."""
        return await self._monitoring.history(worker_id, limit)

    get_worker_state_history = blocking(get_worker_state_history_async)

    def close(self) -> None:
        """Close this process's connections; may be called twice. A later call reconnects."""
        if "_broker" in vars(self):
            self._broker.close_blocking()

    async def close_async(self) -> None:
        if "_broker" in vars(self):
            await self._broker.close()

    def _custom_queues(self) -> dict[str, int] | None:
        queues = self.config.custom_queues
        return None if queues is None else {queue.name: queue.priority for queue in queues}

    def _result_codec_for(self, task_name: str) -> ValueCodec | None:
        task = self._tasks.get(task_name)  # looked up at each call: tasks are registered after the app is created
        return None if task is None else task.definition.codec.result_codec


def _hook_fault(hook: object) -> str | None:
    if not callable(hook):
        return f"a child hook must be a function, got {type(hook).__qualname__}"
    if inspect.iscoroutinefunction(hook):
        return "a child hook must not be async"
    if any(map(is_required, inspect.signature(hook).parameters.values())):
        return "a child hook must not have required parameters"
    return None


def is_required(parameter: inspect.Parameter) -> bool:
    """Whether a call must pass an argument for this parameter."""
    optional_kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and parameter.kind not in optional_kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowBuilder:
    """A function that returns a spec; `check` calls it once with each case's keyword arguments."""

    function: Callable[..., Any]
    cases: Sequence[Mapping[str, Any]] | None
    location: SourceLocation | None

    @property
    def name(self) -> str:
        return self.function.__qualname__
