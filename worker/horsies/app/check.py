"""Validating an app in phases: what a later phase looks at makes sense only where the earlier ones found nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from horsies.app.modules import is_missing_file
from horsies.app.workflow_checks import builder_faults, definition_faults, undecorated_builders
from horsies.errors import (
    ConfigurationError,
    ErrorCode,
    HorsiesError,
    ValidationReport,
)
from horsies.model.mapping import ExceptionRules, mapping_faults, reserved_codes
from horsies.sync import BRIDGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from horsies.app.application import Horsies
    from horsies.errors import SourceLocation
    from horsies.model.settings import TaskSchedule


def first_failed_phase(app: Horsies, *, live: bool = False) -> ValidationReport | None:
    """All errors of the first phase that has any; None where the app is sound. `live` also asks the database."""
    phases = {**PHASES, "live": _live} if live else PHASES
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


def _settings(app: Horsies) -> Iterable[HorsiesError]:
    # Each setting was checked when the app was made; a worker's queues are held against the app's only here.
    return _raised_by(app.settings.worker_config)


def _imports(app: Horsies) -> Iterator[HorsiesError]:
    for name in app.get_discovered_task_modules():
        if is_missing_file(name):
            # A worker skips it with a warning; whoever checks wants to know that tasks will be missing.
            yield ConfigurationError(
                f"task module {name} does not exist",
                code=ErrorCode.CLI_INVALID_ARGS,
                hint="correct app.modules, or what discover_tasks is given",
            )
        else:
            yield from _raised_by(lambda name=name: app.import_task_modules([name]))


def _mappers(app: Horsies) -> Iterator[HorsiesError]:
    config = app.config
    rules = ExceptionRules(mapper=config.exception_mapper, default=config.default_unhandled_error_code)
    yield from _rule_faults(rules, whose="of the app", location=None)
    for name, task in app.tasks.items():
        definition = task.definition
        yield from _rule_faults(definition.exception_rules, whose=f"of task {name!r}", location=definition.location)


def _rule_faults(rules: ExceptionRules, *, whose: str, location: SourceLocation | None) -> Iterator[ConfigurationError]:
    for fault in (*mapping_faults(rules), *reserved_codes(rules)):
        fault.notes = (whose,)
        fault.location = location
        yield fault


def _schedules(app: Horsies) -> Iterator[HorsiesError]:
    schedules = app.config.schedule.schedules if app.config.schedule else ()
    for schedule in schedules:
        for fault in _schedule_faults(app, schedule):
            fault.notes = (f"in schedule {schedule.name!r}",)
            fault.location = app.settings.origin_of(("app", "schedule", "schedules")).location
            yield fault


def _schedule_faults(app: Horsies, schedule: TaskSchedule) -> Iterator[HorsiesError]:
    if schedule.queue_name is not None:
        yield from _raised_by(lambda: app.validate_queue_name(schedule.queue_name))
    if unknown := _raised_by(lambda: app.tasks.find(schedule.task_name)):
        yield from unknown
        return
    try:
        app.tasks[schedule.task_name].bind(*schedule.args, **schedule.kwargs)
    except ValueError as error:
        yield ConfigurationError(
            f"arguments do not fit {error}",
            code=ErrorCode.CONFIG_INVALID_SCHEDULE,
            hint="args and kwargs of a schedule are those of the task",
        )


def _live(app: Horsies) -> Iterable[HorsiesError]:
    from horsies.app.live import live_faults

    return BRIDGE.run(live_faults(app.get_broker()))


PHASES: Final[Mapping[str, Callable[[Horsies], Iterable[HorsiesError]]]] = {
    "settings": _settings,
    "imports": _imports,
    "workflow definitions": definition_faults,
    "workflow builders": builder_faults,
    "undecorated builders": undecorated_builders,
    "mappers": _mappers,
    "schedules": _schedules,
}
