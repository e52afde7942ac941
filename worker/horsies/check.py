"""Validates an app in phases; a phase runs only if the earlier ones found no errors."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from types import FunctionType
from typing import Final

from horsies.app import Horsies, WorkflowBuilder, is_required
from horsies.client.broker import BrokerSession, PostgresBroker
from horsies.client.schedules import encode_schedules
from horsies.client.task import sends_suppressed
from horsies.client.workflow.definition import DEFINITIONS
from horsies.client.workflow.spec import WorkflowSpec
from horsies.errors import (
    BrokerError,
    ConfigurationError,
    DatabaseUnreachable,
    ErrorCode,
    HorsiesError,
    SourceLocation,
    ValidationReport,
    WorkflowValidationError,
)
from horsies.model.schedule.slots import times_in_gaps
from horsies.model.settings.patterns import load_zone
from horsies.model.task_result import ExceptionRules, reserved_code_faults
from horsies.store.listen import is_notify_delivered
from horsies.store.migrate import SCHEMA, schema_state
from horsies.sync import BRIDGE
from horsies.task_modules import is_missing_file


def first_failed_phase(app: Horsies, *, live: bool = False) -> ValidationReport | None:
    """Return all errors of the first phase that fails, None if the app is valid; `live` also checks the database."""
    phases = dict(PHASES)
    if live:
        phases["live"] = lambda app: BRIDGE.run(live_faults(app.get_broker()))
    for name, errors_of in phases.items():
        if errors := tuple(errors_of(app)):
            return ValidationReport(phase=name, errors=errors)
    return None


def _raised_by(call: Callable[[], object]) -> tuple[HorsiesError, ...]:
    try:
        call()
    except HorsiesError as error:
        return error.faults
    return ()


def _check_imports(app: Horsies) -> Iterator[HorsiesError]:
    for name in app.get_discovered_task_modules():
        if is_missing_file(name):
            # A worker only warns about it, but its tasks would be missing.
            yield ConfigurationError(
                f"task module {name} does not exist",
                code=ErrorCode.CLI_INVALID_ARGS,
                hint="correct app.modules in horsies.toml or the argument of discover_tasks",
            )
        else:
            yield from _raised_by(lambda name=name: app.import_task_modules([name]))


# Workflow definitions and builders


def definition_faults(app: Horsies) -> Iterator[HorsiesError]:
    """Yield HRS-016 for definitions without a key, which stored runs could not be matched with."""
    for definition in DEFINITIONS.without_key():
        if app.definitions.belongs_to_app(definition):
            yield WorkflowValidationError(
                f"workflow definition {definition.__qualname__} has no definition_key",
                code=ErrorCode.WORKFLOW_NO_DEFINITION_KEY,
                hint='set a key that stays the same if the class is renamed: definition_key = "billing.v1"',
                location=definition.__location__,
            )


def builder_faults(app: Horsies) -> Iterator[HorsiesError]:
    """Build every workflow with sends suppressed and yield the errors (HRS-027, 028, 029, and those of specs)."""
    with sends_suppressed():
        for definition in app.definitions.known():
            if not definition.is_parametrised():
                yield from _raised_by(lambda definition=definition: definition.build(app))
        for builder in app.get_workflow_builders():
            yield from _check_builder(builder)


def undecorated_builder_faults(app: Horsies) -> Iterator[HorsiesError]:
    """Yield HRS-030 for functions that are annotated to return a spec but are not registered as builders."""
    known = {inspect.unwrap(builder.function) for builder in app.get_workflow_builders()}
    for function in _task_module_functions(app):
        if function not in known and _returns_spec(function):
            yield WorkflowValidationError(
                f"{function.__qualname__} returns a WorkflowSpec but is not checked",
                code=ErrorCode.WORKFLOW_CHECK_UNDECORATED_BUILDER,
                hint="decorate it with @app.workflow_builder(), with cases if it has parameters",
                location=SourceLocation(function.__code__.co_filename, function.__code__.co_firstlineno),
            )


def _check_builder(builder: WorkflowBuilder) -> Iterator[HorsiesError]:
    signature = inspect.signature(builder.function)
    if not builder.cases and any(map(is_required, signature.parameters.values())):
        text = f"builder {builder.name} has required parameters but no cases"
        hint = "give arguments to check it with: @app.workflow_builder(cases=[{...}])"
        yield _builder_error(builder, text, ErrorCode.WORKFLOW_CHECK_CASES_REQUIRED, hint=hint)
        return
    for number, case in enumerate(builder.cases or [{}]):
        try:
            arguments = _bind_case(signature, case)
        except TypeError as error:
            text = f"builder {builder.name}: case {number} is invalid: {error}"
            yield _builder_error(builder, text, ErrorCode.WORKFLOW_CHECK_CASE_INVALID)
        else:
            yield from _check_case(builder, f"case {number} of builder {builder.name}", arguments)


def _check_case(builder: WorkflowBuilder, where: str, arguments: inspect.BoundArguments) -> Iterator[HorsiesError]:
    try:
        built = builder.function(*arguments.args, **arguments.kwargs)
    except HorsiesError as error:
        for fault in error.faults:
            fault.notes = (*fault.notes, f"in {where}")
            yield fault
        return
    except KeyboardInterrupt:
        raise
    except BaseException as raised:  # noqa: BLE001  # user code may raise anything, including SystemExit
        text = f"{where} raised {type(raised).__qualname__}: {raised}"
        yield _builder_error(builder, text, ErrorCode.WORKFLOW_CHECK_BUILDER_EXCEPTION)
        return
    if not isinstance(built, WorkflowSpec):
        text = f"{where} returned {type(built).__qualname__}, not a WorkflowSpec"
        yield _builder_error(builder, text, ErrorCode.WORKFLOW_CHECK_BUILDER_EXCEPTION)


def _bind_case(signature: inspect.Signature, case: object) -> inspect.BoundArguments:
    if not isinstance(case, Mapping):
        raise TypeError(f"a case must be a dict of arguments, not {type(case).__qualname__}")
    return signature.bind(**case)


def _task_module_functions(app: Horsies) -> Iterable[FunctionType]:
    """Yield the functions of the app's task modules and of all modules that define one of its tasks."""
    names = {module.__name__ for module in app.import_task_modules()}
    names |= {task.definition.function.__module__ for task in app.tasks.values()}
    for name in sorted(names & sys.modules.keys()):
        for value in tuple(vars(sys.modules[name]).values()):
            if inspect.isfunction(value) and value.__module__ == name:
                yield inspect.unwrap(value)


def _returns_spec(function: FunctionType) -> bool:
    declared = function.__annotations__.get("return")
    if isinstance(declared, str):  # not resolved: its names may be imported for type checkers only
        return declared.partition("[")[0].rpartition(".")[2] == WorkflowSpec.__name__
    return declared is WorkflowSpec or typing.get_origin(declared) is WorkflowSpec


def _builder_error(builder: WorkflowBuilder, text: str, code: ErrorCode, *, hint: str | None = None) -> HorsiesError:
    return WorkflowValidationError(text, code=code, hint=hint, location=builder.location)


def _check_mappers(app: Horsies) -> Iterator[HorsiesError]:
    """Yield HRS-212 for built-in codes; all other rules of mappers were checked with the settings and tasks."""
    config = app.config
    rules = ExceptionRules(mapper=config.exception_mapper, default=config.default_unhandled_error_code)
    for fault in reserved_code_faults(rules):
        fault.notes = ("in the app's settings",)
        yield fault
    for name, task in app.tasks.items():
        for fault in reserved_code_faults(task.definition.exception_rules):
            fault.notes, fault.location = (f"in task {name!r}",), task.definition.location
            yield fault


def _check_schedules(app: Horsies) -> Iterator[HorsiesError]:
    for fault in _raised_by(lambda: encode_schedules(app, app.get_schedules())):
        fault.location = app.settings.origin_of(("app", "schedule", "schedules")).location
        yield fault


def schedule_warnings(app: Horsies) -> Iterator[str]:
    """Yield a warning for each schedule with a local time that does not exist on some day of the next year."""
    for schedule in app.get_schedules():
        gaps = times_in_gaps(schedule.pattern, load_zone(schedule.timezone), datetime.now(UTC))
        if gaps:
            effect = "is skipped" if schedule.dst_gap == "skip" else "runs at the end of the gap"
            zone, at = schedule.timezone, f"{gaps[0]:%Y-%m-%d %H:%M}"
            yield f"schedule {schedule.name!r}: {at} does not exist in {zone}; it {effect}"


# The live phase: connection, schema and LISTEN of the configured database

LISTEN_PROBE_TIMEOUT_S = 5.0


async def live_faults(broker: PostgresBroker) -> list[HorsiesError]:
    """Check connection, schema and LISTEN; without a connection the others are skipped."""
    try:
        session = await broker.session()
        await session.database.execute(SCHEMA.server_version)
    except HorsiesError as error:
        return [_to_configuration_error(error)]
    faults: list[HorsiesError] = []
    for check in (_check_schema, _check_listen):
        try:
            await check(session)
        except HorsiesError as error:
            faults.append(_to_configuration_error(error))
    return faults


async def _check_schema(session: BrokerSession) -> None:
    (await schema_state(session.database)).check_current()


async def _check_listen(session: BrokerSession) -> None:
    direct = session.database.connection_spec.direct
    if not await is_notify_delivered(session.database, direct, within_s=LISTEN_PROBE_TIMEOUT_S):
        raise ConfigurationError(
            f"no notification received from {direct.masked_url} within {LISTEN_PROBE_TIMEOUT_S:.0f} s",
            code=ErrorCode.BROKER_INIT_FAILED,
            hint="LISTEN does not work through a transaction pooler: set broker.session_database_url to a direct URL",
        )


def _to_configuration_error(error: HorsiesError) -> HorsiesError:
    """Convert a database error to HRS-203 if its URL must be corrected, otherwise to HRS-211."""
    if not isinstance(error, BrokerError):
        return error
    is_wrong_url = isinstance(error, DatabaseUnreachable) and not error.retryable
    code = ErrorCode.BROKER_INVALID_URL if is_wrong_url else ErrorCode.BROKER_INIT_FAILED
    return ConfigurationError(error.message, code=code, hint=error.help_text, notes=error.notes)


PHASES: Final[Mapping[str, Callable[[Horsies], Iterable[HorsiesError]]]] = {
    # Single settings were validated with the app; this checks that the worker's queues exist.
    "settings": lambda app: _raised_by(app.settings.worker_config),
    "imports": _check_imports,
    "workflow definitions": definition_faults,
    "workflow builders": builder_faults,
    "undecorated builders": undecorated_builder_faults,
    "mappers": _check_mappers,
    "schedules": _check_schedules,
}
