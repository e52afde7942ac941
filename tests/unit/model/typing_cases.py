"""Static typing tests: checked by pyright, not run by pytest."""

from __future__ import annotations

from typing import assert_never, assert_type

from horsies.model.result import Err, Ok, Result, is_err, is_ok
from horsies.model.task_result import TaskError, TaskResult


def guards_narrow_both_ways(found: Result[int, str]) -> None:
    if is_ok(found):
        assert_type(found, Ok[int])
    else:
        assert_type(found, Err[str])
    if is_err(found):
        assert_type(found.error, str)
    else:
        assert_type(found.value, int)


def match_is_exhaustive(found: Result[int, str]) -> int:
    match found:
        case Ok(value):
            assert_type(value, int)
            return value
        case Err(error):
            assert_type(error, str)
            return len(error)
        case _:
            assert_never(found)


def unwrap_and_unwrap_err_have_the_declared_types(found: Result[int, str]) -> None:
    assert_type(found.ok(), int | None)
    assert_type(found.err(), str | None)
    assert_type(found.unwrap_or(0.5), int | float)
    assert_type(found.unwrap_or_else(len), int)
    assert_type(found.map_or("none", str), str)
    assert_type(found.unwrap_or_raise(ValueError), int)


def unwrap_has_the_value_type(found: Result[int, str]) -> None:
    assert_type(found.unwrap(), int)


def ok_value_has_the_value_type(found: Result[int, str]) -> None:
    assert_type(found.ok_value, int)


def map_changes_one_type_only(found: Result[int, str]) -> None:
    assert_type(found.map(lambda number: number / 2), Ok[float] | Err[str])
    assert_type(found.map_err(lambda text: text.encode()), Ok[int] | Err[bytes])


def and_then_combines_error_types(found: Result[int, str]) -> None:
    def halve(number: int) -> Result[float, ZeroDivisionError]:
        return Ok(number / 2) if number else Err(ZeroDivisionError())

    assert_type(found.and_then(halve), Ok[float] | Err[ZeroDivisionError] | Err[str])


def result_is_covariant(found: Result[bool, str]) -> Result[int, object]:
    return found


def task_may_return_ok_or_err() -> TaskResult[list[float], TaskError]:
    if __debug__:
        return TaskResult(ok=[1, 2])
    return TaskResult(err=TaskError(error_code="NO_NUMBERS"))


def task_result_is_typed(found: TaskResult[int, TaskError]) -> None:
    assert_type(found.ok, int | None)
    assert_type(found.err, TaskError | None)
    assert_type(found.ok_value, int)
    assert_type(found.unwrap_err(), TaskError)


def none_is_a_valid_ok() -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)


def types_are_inferred_without_annotation() -> None:
    made = TaskResult(ok=5)
    assert_type(made.ok_value, int)
    failed = TaskResult(err=TaskError(message="no"))
    assert_type(failed.err_value, TaskError)
