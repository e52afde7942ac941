"""Schedules of an app: validation and encoding of their calls, and schedules made at run time."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from horsies.client.payload import SendOptions, SendRejected
from horsies.client.task import TaskApp, TaskFunction
from horsies.client.workflow.definition import DEFINITIONS, WorkflowDefinition
from horsies.client.workflow.spec import WorkflowSpec
from horsies.codec.canonical_json import canonical_json
from horsies.errors import HorsiesError, raise_together
from horsies.model.schedule.decide import ScheduleDefinition, SchedulePolicy
from horsies.model.settings.patterns import invalid_schedule
from horsies.model.settings.schedule import TaskSchedule
from horsies.model.task import effective_priority
from horsies.scheduler.firing import encode_plan
from horsies.scheduler.service import ScheduleSet
from horsies.scheduler.sync import CreatedMeanwhile, store_definitions
from horsies.store.database import Executor
from horsies.store.endpoint import savepoint
from horsies.store.schedules import LockedSchedule, ScheduleInfo, ScheduleStore
from horsies.sync import BRIDGE

if TYPE_CHECKING:
    from horsies.registry import TaskRegistry

A = TypeVar("A")


class ScheduleApp(TaskApp, Protocol):
    """The parts of the app that schedules use."""

    @property
    def name(self) -> str: ...

    @property
    def tasks(self) -> TaskRegistry[TaskFunction[Any, Any]]: ...

    def validate_queue_name(self, queue_name: str | None) -> str: ...


# Encoding


def encode_schedules(app: ScheduleApp, schedules: list[TaskSchedule]) -> ScheduleSet:
    """Validate and encode the schedules of an app; raises all their faults together."""
    definitions: list[ScheduleDefinition] = []
    faults: list[HorsiesError] = []
    names: set[str] = set()
    for schedule in schedules:
        try:
            if schedule.name in names:
                raise invalid_schedule("the name is used twice", hint="give each schedule a unique name")
            names.add(schedule.name)
            definitions.append(encode_schedule(app, schedule))
        except HorsiesError as error:
            for fault in error.faults:
                fault.notes = (*fault.notes, f"in schedule {schedule.name!r}")
                faults.append(fault)
    raise_together("schedules", faults)
    config = app.config.schedule
    interval_s = 1.0 if config is None else float(config.check_interval_seconds)
    return ScheduleSet(owner=app.name, definitions=definitions, check_interval_s=interval_s)


def encode_schedule(app: ScheduleApp, schedule: TaskSchedule) -> ScheduleDefinition:
    """Validate and encode one schedule: its task or workflow must exist and accept the arguments."""
    call = _encode_task(app, schedule) if schedule.workflow is None else _encode_workflow(app, schedule)
    is_enabled = app.config.schedule is None or app.config.schedule.enabled
    return ScheduleDefinition(
        name=schedule.name,
        policy=SchedulePolicy.of(schedule),
        call=canonical_json(call),
        enabled=schedule.enabled and is_enabled,
        source=schedule.source,
    )


def _encode_task(app: ScheduleApp, schedule: TaskSchedule) -> dict[str, Any]:
    faults: list[HorsiesError] = []
    for check in (
        lambda: schedule.queue_name is not None and app.validate_queue_name(schedule.queue_name),
        lambda: app.tasks.find(schedule.task_name or ""),
    ):
        try:
            check()
        except HorsiesError as error:
            faults.append(error)
    raise_together("schedule", faults)
    task = app.tasks[schedule.task_name or ""]
    try:
        payload = task.payload_builder.build(SendOptions(priority=schedule.priority), schedule.args, schedule.kwargs)
    except SendRejected as rejected:
        hint = "correct args and kwargs of the schedule to match the task's parameters"
        raise invalid_schedule(f"invalid arguments: {task.task_name}: {rejected}", hint=hint) from rejected
    queue_name, priority = payload.queue_name, payload.priority
    if schedule.queue_name is not None:
        queue_name = schedule.queue_name
        queues = {queue.name: queue.priority for queue in app.config.custom_queues or ()}
        priority = effective_priority(
            sent_with=schedule.priority, task=task.definition.options.priority, queue=queues.get(queue_name)
        )
    return {
        "task_name": payload.task_name,
        "queue_name": queue_name,
        "priority": priority,
        "args": json.loads(payload.args),
        "kwargs": json.loads(payload.kwargs),
        "task_options": json.loads(payload.task_options),
        "flags": json.loads(payload.flags),
        "max_retries": payload.max_retries,
    }


def _encode_workflow(app: ScheduleApp, schedule: TaskSchedule) -> dict[str, Any]:
    spec = _build_spec(app, schedule.workflow, schedule.kwargs)
    return {"workflow": spec.name, "plan": encode_plan(spec.plan())}


def _build_spec(app: ScheduleApp, workflow: Any, kwargs: Mapping[str, Any]) -> WorkflowSpec[Any]:
    if isinstance(workflow, str):
        definition = DEFINITIONS.find(workflow)
        if definition is None:
            raise invalid_schedule(f"no workflow definition with the key {workflow!r}", hint="import its module first")
        workflow = definition
    if isinstance(workflow, type) and issubclass(workflow, WorkflowDefinition):
        definition = cast("type[WorkflowDefinition[Any]]", workflow)
        try:
            return definition.build_with(app, **kwargs)
        except TypeError as error:
            raise invalid_schedule(f"invalid arguments of workflow {definition.__qualname__}: {error}") from error
    if not isinstance(workflow, WorkflowSpec):
        kind = type(cast("object", workflow)).__qualname__
        raise invalid_schedule(f"workflow must be a definition, its key or a WorkflowSpec, got {kind}")
    if kwargs:
        raise invalid_schedule("kwargs cannot be given to a WorkflowSpec, which is built already")
    return cast("WorkflowSpec[Any]", workflow)


# Schedules at run time


class RuntimeSchedules:
    """Creates, changes and deletes schedules at run time: `app.schedules`.

    Errors in a definition raise HRS-205 before anything is stored. With `connection=`, an asyncpg connection, a change
    belongs to the caller's transaction.
    """

    def __init__(self, app: ScheduleApp) -> None:
        self._app = app

    async def create_async(self, schedule: TaskSchedule, *, connection: object | None = None) -> ScheduleInfo:
        """Store a new schedule; raises HRS-205 if the name is taken. It starts at the first slot after now."""

        async def create(executor: Executor) -> ScheduleInfo:
            exists = invalid_schedule(f"schedule {schedule.name!r} exists", hint="change it with app.schedules.update")
            if await ScheduleStore(executor).info(schedule.name) is not None:
                raise exists
            try:
                return await self._write(executor, schedule)
            except CreatedMeanwhile as cause:
                raise exists from cause

        return await self._run(create, connection)

    async def update_async(self, schedule: TaskSchedule, *, connection: object | None = None) -> ScheduleInfo:
        """Change a schedule that was made at run time; the next slot is kept unless its times change."""

        async def update(executor: Executor) -> ScheduleInfo:
            self._require_dynamic(await ScheduleStore(executor).info(schedule.name), schedule.name)
            return await self._write(executor, schedule)

        return await self._run(update, connection)

    async def delete_async(self, name: str, *, connection: object | None = None) -> bool:
        """Delete a schedule that was made at run time, with its history; False if there is none."""

        async def delete(executor: Executor) -> bool:
            locked = await ScheduleStore(executor).locked(name)
            if locked is None:
                return False
            self._require_dynamic(locked, name)
            return await ScheduleStore(executor).forget(name)

        return await self._run(delete, connection)

    async def get_async(self, name: str, *, connection: object | None = None) -> ScheduleInfo | None:
        """Return a stored schedule of any owner; None if there is none."""
        return await self._run(lambda executor: ScheduleStore(executor).info(name), connection)

    def create(self, schedule: TaskSchedule) -> ScheduleInfo:
        return BRIDGE.run(self.create_async(schedule))

    def update(self, schedule: TaskSchedule) -> ScheduleInfo:
        return BRIDGE.run(self.update_async(schedule))

    def delete(self, name: str) -> bool:
        return BRIDGE.run(self.delete_async(name))

    def get(self, name: str) -> ScheduleInfo | None:
        return BRIDGE.run(self.get_async(name))

    async def _write(self, executor: Executor, schedule: TaskSchedule) -> ScheduleInfo:
        definition = encode_schedule(self._app, schedule.model_copy(update={"source": "dynamic"}))
        # Forced: a run-time change has no older process behind it that could repeat a superseded definition.
        await store_definitions(executor, self._app.name, [definition], force=True)
        info = await ScheduleStore(executor).info(schedule.name)
        if info is None:  # new and disabled
            raise invalid_schedule(
                f"schedule {schedule.name!r} is new and disabled", hint="create it with enabled=True"
            )
        return info

    def _require_dynamic(self, info: ScheduleInfo | LockedSchedule | None, name: str) -> None:
        if info is None:
            raise invalid_schedule(f"no schedule {name!r}", hint="create it with app.schedules.create")
        if info.owner != self._app.name:
            message = f"schedule {name!r} belongs to app {info.owner!r}, not to {self._app.name!r}"
            raise invalid_schedule(message, hint="change it with that app")
        if info.source != "dynamic":
            raise invalid_schedule(f"schedule {name!r} is defined by app {info.owner!r}", hint="change it there")

    async def _run(self, work: Callable[[Executor], Awaitable[A]], connection: object | None) -> A:
        broker = self._app.get_broker()
        session = await broker.session()
        if connection is None:
            return await session.database.run(work)
        timeout_s = broker.settings.pool_timeout
        async with savepoint(connection, session.database.connection_spec, timeout_s=timeout_s) as transaction:
            return await work(transaction)
