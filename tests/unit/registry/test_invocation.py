"""A direct call of a task always returns a result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from horsies import AppConfig, ContractCode, Horsies, OperationalErrorCode, TaskError, TaskResult


class Declined(Exception):
    pass


class DeclinedPermanently(Declined):
    pass


@pytest.fixture
def app() -> Horsies:
    return Horsies(AppConfig(exception_mapper={KeyError: "NO_KEY", Declined: "BY_APP"}))


def raising(error: BaseException) -> Callable[[], TaskResult[int, TaskError]]:
    def run() -> TaskResult[int, TaskError]:
        raise error

    return run


def returning(value: Any) -> Any:
    def run() -> TaskResult[int, TaskError]:
        return value

    return run


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError("x"), OperationalErrorCode.UNHANDLED_EXCEPTION),
        (SystemExit(3), OperationalErrorCode.UNHANDLED_EXCEPTION),
        (asyncio.CancelledError(), OperationalErrorCode.UNHANDLED_EXCEPTION),
        (KeyError("k"), "NO_KEY"),
        (Declined(), "BY_TASK"),
        (DeclinedPermanently(), OperationalErrorCode.UNHANDLED_EXCEPTION),
    ],
)
def test_exception_becomes_its_mapped_code(app: Horsies, error: BaseException, code: str) -> None:
    task = app.task("t", exception_mapper={Declined: "BY_TASK"})(raising(error))
    result = task()
    assert result.err_value.error_code is code or result.err_value.error_code == code
    assert result.err_value.exception is error


def test_default_code_of_the_task_overrides_the_app(app: Horsies) -> None:
    task = app.task("t", default_unhandled_error_code="OOPS")(raising(RuntimeError()))
    assert task().err_value.error_code == "OOPS"


def test_keyboard_interrupt_is_raised(app: Horsies) -> None:
    with pytest.raises(KeyboardInterrupt):
        app.task("t")(raising(KeyboardInterrupt()))()


@pytest.mark.parametrize(
    ("returned", "code"),
    [
        (None, OperationalErrorCode.TASK_EXCEPTION),
        (5, OperationalErrorCode.TASK_EXCEPTION),
        (TaskResult[Any, Any](err="no TaskError"), OperationalErrorCode.TASK_EXCEPTION),
        (TaskResult[Any, Any](ok="no number"), ContractCode.RETURN_TYPE_MISMATCH),
    ],
)
def test_wrong_return_value_is_an_error_result(app: Horsies, returned: Any, code: object) -> None:
    assert app.task("t")(returning(returned))().err_value.error_code is code


def test_returned_error_is_unchanged(app: Horsies) -> None:
    error = TaskError(error_code="CARD_DECLINED", data={"card": 1})
    assert app.task("t")(returning(TaskResult[int, TaskError](err=error)))().err_value is error


def test_wrong_arguments_are_an_error_result(app: Horsies) -> None:
    @app.task("t")
    def takes_one_argument(n: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=n)

    result = cast("Any", takes_one_argument)()
    assert result.err_value.error_code is OperationalErrorCode.UNHANDLED_EXCEPTION


def async_task(app: Horsies, error: BaseException | None) -> Any:
    @app.task("t")
    async def run() -> TaskResult[int, TaskError]:
        if error is not None:
            raise error
        await asyncio.Event().wait()
        return TaskResult(ok=1)

    return run


@pytest.mark.parametrize("error", [RuntimeError(), SystemExit(1), asyncio.CancelledError()])
async def test_async_task_that_raises_is_an_error_result(app: Horsies, error: BaseException) -> None:
    result = await async_task(app, error)()
    assert result.err_value.error_code is OperationalErrorCode.UNHANDLED_EXCEPTION


async def test_cancelled_async_call_raises_cancelled_error(app: Horsies) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await async_task(app, None)()
