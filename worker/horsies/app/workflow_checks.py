"""The phases of a check that look at workflows: definitions, and the functions that build them."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from horsies.app.suppression import sends_suppressed
from horsies.client.workflow.imported import DEFINITIONS
from horsies.client.workflow.spec import WorkflowSpec
from horsies.errors import ErrorCode, HorsiesError, SourceLocation, WorkflowValidationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FunctionType

    from horsies.app.application import Horsies
    from horsies.app.workflows import WorkflowBuilder
    from horsies.client.workflow.definition import WorkflowDefinition


def definition_faults(app: Horsies) -> Iterator[HorsiesError]:
    """Definitions that could not be found again, for they have no key (HRS-016)."""
    for definition in DEFINITIONS.without_key():
        if app.definitions.is_ours(definition):
            yield WorkflowValidationError(
                f"workflow definition {definition.__qualname__} has no definition_key",
                code=ErrorCode.WORKFLOW_NO_DEFINITION_KEY,
                hint='a text that stays the same when the class is renamed: definition_key = "billing.v1"',
                location=definition.__location__,
            )


def builder_faults(app: Horsies) -> Iterator[HorsiesError]:
    """What goes wrong when each workflow is built, with sends suppressed (HRS-027, 028, 029, and those of a spec)."""
    with sends_suppressed():
        for definition in app.definitions.known():
            if not definition.is_parametrised():
                yield from _faults_of_definition(definition, app)
        for builder in app.get_workflow_builders():
            yield from _faults_of(builder)


def undecorated_builders(app: Horsies) -> Iterator[HorsiesError]:
    """Functions that say they return a spec and that no check has called (HRS-030)."""
    known = {inspect.unwrap(builder.function) for builder in app.get_workflow_builders()}
    for function in _functions_of(app):
        if function not in known and _returns_spec(function):
            yield WorkflowValidationError(
                f"{function.__qualname__} returns a WorkflowSpec, and no check looks at it",
                code=ErrorCode.WORKFLOW_CHECK_UNDECORATED_BUILDER,
                hint="put @app.workflow_builder() above it, with cases where it has parameters",
                location=SourceLocation(function.__code__.co_filename, function.__code__.co_firstlineno),
            )


def _faults_of_definition(definition: type[WorkflowDefinition[Any]], app: Horsies) -> tuple[HorsiesError, ...]:
    try:
        definition.build(app)
    except HorsiesError as error:
        return error.faults
    return ()


def _faults_of(builder: WorkflowBuilder) -> Iterator[HorsiesError]:
    signature = inspect.signature(builder.function)
    if not builder.cases and any(_is_required(each) for each in signature.parameters.values()):
        text = f"builder {builder.name} has parameters and no cases"
        hint = "@app.workflow_builder(cases=[{...}]) gives the arguments with which it is checked"
        yield _fault(builder, text, ErrorCode.WORKFLOW_CHECK_CASES_REQUIRED, hint=hint)
        return
    for number, case in enumerate(builder.cases or [{}]):
        try:
            arguments = _bound(signature, case)
        except TypeError as refused:
            text = f"builder {builder.name}: case {number} does not fit: {refused}"
            yield _fault(builder, text, ErrorCode.WORKFLOW_CHECK_CASE_INVALID)
        else:
            yield from _faults_of_case(builder, f"case {number} of builder {builder.name}", arguments)


def _faults_of_case(builder: WorkflowBuilder, where: str, arguments: inspect.BoundArguments) -> Iterator[HorsiesError]:
    try:
        built = builder.function(*arguments.args, **arguments.kwargs)
    except HorsiesError as error:
        for fault in error.faults:
            fault.notes = (*fault.notes, f"in {where}")
            yield fault
        return
    except KeyboardInterrupt:
        raise
    except BaseException as raised:  # noqa: BLE001  # user code may raise anything, an exit too
        text = f"{where} raised {type(raised).__qualname__}: {raised}"
        yield _fault(builder, text, ErrorCode.WORKFLOW_CHECK_BUILDER_EXCEPTION)
        return
    if not isinstance(built, WorkflowSpec):
        text = f"{where} returned {type(built).__qualname__}, not a WorkflowSpec"
        yield _fault(builder, text, ErrorCode.WORKFLOW_CHECK_BUILDER_EXCEPTION)


def _bound(signature: inspect.Signature, case: object) -> inspect.BoundArguments:
    if not isinstance(case, Mapping):
        raise TypeError(f"a case is a mapping of arguments by name, not {type(case).__qualname__}")
    return signature.bind(**case)


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in (
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.VAR_KEYWORD,
    )


def _functions_of(app: Horsies) -> Iterable[FunctionType]:
    """The functions of the modules in which the app's tasks are: those that were named, and those that have one."""
    names = {module.__name__ for module in app.import_task_modules()}
    names |= {task.definition.function.__module__ for task in app.tasks.values()}
    for name in sorted(names & sys.modules.keys()):
        for value in tuple(vars(sys.modules[name]).values()):
            if inspect.isfunction(value) and value.__module__ == name:
                yield inspect.unwrap(value)


def _returns_spec(function: FunctionType) -> bool:
    declared = function.__annotations__.get("return")
    if isinstance(declared, str):
        return declared.partition("[")[0].rpartition(".")[2] == WorkflowSpec.__name__
    return declared is WorkflowSpec or typing.get_origin(declared) is WorkflowSpec


def _fault(builder: WorkflowBuilder, text: str, code: ErrorCode, *, hint: str | None = None) -> HorsiesError:
    return WorkflowValidationError(text, code=code, hint=hint, location=builder.location)
