"""Exceptions of tasks: which out-of-memory errors end the child, and how many tracebacks are logged."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from horsies import AppConfig, Horsies, TaskError, TaskResult
from horsies.engine.child.runner import MAX_TRACEBACKS, Attempt, TaskExecutor, TracebackLimit
from tests.support.pool import assignment


def raise_memory_error() -> TaskResult[None, TaskError]:
    raise MemoryError


async def raise_memory_error_async() -> TaskResult[None, TaskError]:
    raise MemoryError


def catch_memory_error() -> TaskResult[None, TaskError]:
    try:
        raise MemoryError
    except MemoryError as error:
        return TaskResult(err=TaskError(error_code="TOO_MUCH", message="too much", exception=error))


DEFAULT: dict[str, Any] = {"default_unhandled_error_code": "UNKNOWN_ERROR"}
MAPPED: dict[str, Any] = {"exception_mapper": {MemoryError: "TOO_MUCH"}}

RULES: list[tuple[dict[str, Any], dict[str, Any]]] = [({}, {}), (DEFAULT, {}), ({}, DEFAULT), (DEFAULT, DEFAULT)]
"""Options of the task and settings of the app that map no MemoryError."""


@pytest.mark.parametrize(("options", "settings"), RULES)
def test_unmapped_memory_error_is_raised(options: dict[str, Any], settings: dict[str, Any]) -> None:
    app = Horsies(AppConfig(**settings))
    app.task("t", **options)(raise_memory_error)
    with pytest.raises(MemoryError):
        TaskExecutor(app).run(Attempt(assignment("t"), "a worker"))


@pytest.mark.parametrize(("options", "settings"), RULES)
async def test_unmapped_memory_error_of_a_coroutine_is_raised(
    options: dict[str, Any], settings: dict[str, Any]
) -> None:
    app = Horsies(AppConfig(**settings))
    app.task("t", **options)(raise_memory_error_async)
    with pytest.raises(MemoryError):
        await TaskExecutor(app).run_async(Attempt(assignment("t"), "a worker"))


@pytest.mark.parametrize(("options", "settings"), [(MAPPED, {}), ({}, MAPPED), (MAPPED, DEFAULT), (DEFAULT, MAPPED)])
def test_mapped_memory_error_fails_the_task(options: dict[str, Any], settings: dict[str, Any]) -> None:
    app = Horsies(AppConfig(**settings))
    app.task("t", **options)(raise_memory_error)
    assert TaskExecutor(app).run(Attempt(assignment("t"), "a worker")).error_code == "TOO_MUCH"


def test_memory_error_that_the_task_caught_fails_the_task() -> None:
    app = Horsies(AppConfig(**DEFAULT))
    app.task("t")(catch_memory_error)
    assert TaskExecutor(app).run(Attempt(assignment("t"), "a worker")).error_code == "TOO_MUCH"


def test_next_minute_says_how_many_exceptions_were_not_logged() -> None:
    now = 0.0
    tracebacks = TracebackLimit(clock=lambda: now)
    admitted = [tracebacks.admit("t", "LookupError") for _ in range(MAX_TRACEBACKS + 7)]
    assert admitted == [0] * MAX_TRACEBACKS + [None] * 7
    assert tracebacks.admit("t", "ValueError") == tracebacks.admit("u", "LookupError") == 0
    now = 60.0
    assert [tracebacks.admit("t", "LookupError") for _ in range(2)] == [7, 0]
    now = 180.0
    assert tracebacks.admit("t", "LookupError") == 0


@dataclass(frozen=True)
class Declined(Exception):
    """Its instances forbid to set any attribute, also `__traceback__`."""

    card: str


def decline() -> TaskResult[None, TaskError]:
    raise Declined("1234")


async def decline_async() -> TaskResult[None, TaskError]:
    raise Declined("1234")


@pytest.mark.parametrize("function", [decline, decline_async])
async def test_stored_traceback_begins_in_the_code_of_the_task(function: Any) -> None:
    app = Horsies()
    app.task("t")(function)
    attempt, executor = Attempt(assignment("t"), "a worker"), TaskExecutor(app)
    outcome = await executor.run_async(attempt) if function is decline_async else executor.run(attempt)
    lines = json.loads(outcome.document)["err"]["exception"]["traceback"].splitlines()
    assert [f"in {function.__name__}" in line for line in lines if line.startswith("  File ")] == [True]
