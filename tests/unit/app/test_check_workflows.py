"""Errors that `check` finds in workflows."""

from __future__ import annotations

from typing import Any

import pytest

from horsies import (
    ErrorCode,
    Horsies,
    TaskError,
    TaskFunction,
    TaskResult,
    WorkflowDefinition,
    WorkflowSpec,
)
from horsies.check import first_failed_phase
from horsies.task_modules import import_module_or_file
from tests.support.cli import Project


def app_with_task() -> tuple[Horsies, TaskFunction[Any, int]]:
    app = Horsies()

    @app.task("add")
    def add(a: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=a)

    return app, add


def failed_phase(app: Horsies) -> tuple[str, list[object]]:
    failed = first_failed_phase(app)
    assert failed is not None
    return failed.phase, [error.code for error in failed.errors]


def test_definition_without_a_key_is_reported() -> None:
    app, add = app_with_task()

    class Keyless(WorkflowDefinition[Any]):
        name = "keyless"
        one = add.node()(a=1)

    assert failed_phase(app) == ("workflow definitions", [ErrorCode.WORKFLOW_NO_DEFINITION_KEY])
    assert app.check()[0].location == Keyless.__location__


def test_definition_that_cannot_be_built_is_reported() -> None:
    app, add = app_with_task()

    class Wrong(WorkflowDefinition[Any]):
        name = "wrong"
        definition_key = "tests.check.wrong"
        one = add.node()(a="x")

    assert failed_phase(app) == ("workflow builders", [ErrorCode.WORKFLOW_KWARGS_NOT_SERIALIZABLE])
    assert app.check()[0].location == Wrong.__location__


def test_builders_run_once_per_case_with_sends_suppressed() -> None:
    app, add = app_with_task()
    seen: list[tuple[int, bool]] = []

    @app.workflow_builder(cases=[{"count": 1}, {"count": 2}])
    def fan(count: int) -> WorkflowSpec[Any]:
        seen.append((count, app.are_sends_suppressed()))
        return app.workflow("fan", [add.node()(a=number) for number in range(count)], definition_key="fan")

    assert app.check() == []
    assert seen == [(1, True), (2, True)]
    assert len(fan(3).tasks) == 3
    assert [builder.function for builder in app.get_workflow_builders()] == [fan]


def test_builder_without_parameters_needs_no_cases() -> None:
    app, add = app_with_task()

    @app.workflow_builder()
    def one() -> WorkflowSpec[Any]:
        return app.workflow("", [add.node()(a=1)], definition_key="one")

    found = app.check()
    assert [error.code for error in found] == [ErrorCode.WORKFLOW_NO_NAME]
    assert one.__qualname__ in found[0].notes[-1]


def test_builder_with_parameters_needs_matching_cases() -> None:
    app, _ = app_with_task()

    @app.workflow_builder()
    def without_cases(count: int) -> WorkflowSpec[Any]: ...  # pyright: ignore[reportReturnType]

    @app.workflow_builder(cases=[])
    def with_empty_cases(count: int) -> WorkflowSpec[Any]: ...  # pyright: ignore[reportReturnType]

    @app.workflow_builder(cases=[{"size": 1}, {}, 5])  # pyright: ignore[reportArgumentType]
    def mismatching(count: int) -> WorkflowSpec[Any]: ...  # pyright: ignore[reportReturnType]

    del without_cases, with_empty_cases, mismatching
    assert failed_phase(app) == (
        "workflow builders",
        [*[ErrorCode.WORKFLOW_CHECK_CASES_REQUIRED] * 2, *[ErrorCode.WORKFLOW_CHECK_CASE_INVALID] * 3],
    )


def test_builder_that_raises_or_returns_no_spec_is_reported() -> None:
    app, _ = app_with_task()

    @app.workflow_builder()
    def raises() -> WorkflowSpec[Any]:
        raise ZeroDivisionError("by zero")

    @app.workflow_builder()
    def exits() -> WorkflowSpec[Any]:
        raise SystemExit(0)

    @app.workflow_builder()  # pyright: ignore[reportArgumentType]
    def returns_nothing() -> None: ...

    del raises, exits, returns_nothing
    assert failed_phase(app) == ("workflow builders", [ErrorCode.WORKFLOW_CHECK_BUILDER_EXCEPTION] * 3)


BUILDERS = """
    from horsies import Horsies, TaskError, TaskResult, WorkflowSpec

    app = Horsies()

    @app.task("add")
    def add(a: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=a)

    @app.workflow_builder()
    def known() -> WorkflowSpec[int]:
        node = add.node()(a=1)
        return app.workflow("known", [node], output=node, definition_key="known")

    def forgotten() -> "WorkflowSpec[int]":
        return known()

    def another() -> int:
        return 1
"""


@pytest.mark.parametrize("is_named", [True, False])
def test_undecorated_builder_is_reported(project: Project, is_named: bool) -> None:
    path = project.write("building.py", BUILDERS)
    app: Horsies = import_module_or_file(str(path)).app
    app.discover_tasks([str(path)] if is_named else [])
    assert failed_phase(app) == ("undecorated builders", [ErrorCode.WORKFLOW_CHECK_UNDECORATED_BUILDER])
    (error,) = app.check()
    assert "forgotten" in error.message
    assert error.location is not None
    assert error.location.line == 15


WRONG = """
    from horsies import Horsies, TaskError, TaskResult

    app = Horsies()

    @app.task("bare")
    def bare() -> TaskResult:
        return 1

    @app.task("fine")
    def fine(a: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=a)

    one = bare.node()()
    app.workflow("of an invalid task", [one, fine.node(waits_for=[one])(a=1)], definition_key="a")
    app.workflow("nameless", [], definition_key="b")
    app.workflow("unlucky", [fine.node()(b=1)], definition_key="c")
"""


def test_every_invalid_workflow_of_a_module_is_reported(project: Project) -> None:
    project.write("wrong_flows.py", WRONG)
    app = Horsies()
    app.discover_tasks(["wrong_flows.py"])
    assert failed_phase(app) == (
        "imports",
        [
            ErrorCode.TASK_INVALID_RETURN_TYPE,
            ErrorCode.WORKFLOW_NO_NODES,
            ErrorCode.WORKFLOW_INVALID_KWARG_KEY,
            ErrorCode.WORKFLOW_MISSING_REQUIRED_PARAMS,
        ],
    )
