"""Type checks of the task API; checked by pyright, not run by pytest.

A line with an ignore must be an error: pyright reports ignores that are not needed.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from datetime import date, timedelta
from typing import assert_type

from horsies import (
    AppConfig,
    Err,
    Horsies,
    Ok,
    TaskError,
    TaskHandle,
    TaskInfo,
    TaskResult,
    TaskSendError,
    TaskSendErrorCode,
    is_err,
    is_ok,
)
from horsies.model.result import BrokerOperationError

app = Horsies(AppConfig())


@app.task("add")
def add(a: int, b: int = 0) -> TaskResult[int, TaskError]:
    return TaskResult(ok=a + b)


@app.task("days", priority=5)
async def days(start: date, *, count: int) -> TaskResult[list[date], TaskError]:
    if count < 0:
        return TaskResult(err=TaskError(error_code="NO_DAYS"))
    return TaskResult(ok=[start + timedelta(days=number) for number in range(count)])


def direct_call_returns_the_declared_result() -> None:
    assert_type(add(1, b=2), TaskResult[int, TaskError])
    assert_type(add(1).ok_value, int)


async def direct_call_of_an_async_task_is_awaited() -> None:
    assert_type(await days(date.min, count=3), TaskResult[list[date], TaskError])


def send_returns_a_handle_or_an_error() -> None:
    sent = add.send(1, 2)
    assert_type(sent, Ok[TaskHandle[int]] | Err[TaskSendError])
    if is_err(sent):
        assert_type(sent.error.code, TaskSendErrorCode)
        assert_type(add.retry_send(sent.error), Ok[TaskHandle[int]] | Err[TaskSendError])
    if is_ok(sent):
        assert_type(sent.value.get().ok_value, int)
        assert_type(sent.value.info(), Ok[TaskInfo | None] | Err[BrokerOperationError])


async def handle_has_the_type_of_its_result() -> None:
    handle = (await days.send_async(date.min, count=1)).unwrap()
    assert_type(handle, TaskHandle[list[date]])
    assert_type((await handle.get_async(1000)).ok_value, list[date])
    assert_type((await handle.get_async()).err_value, TaskError)


async def all_sends_keep_the_type() -> None:
    assert_type(add.schedule(1.5, 1, b=2).unwrap(), TaskHandle[int])
    assert_type((await add.schedule_async(timedelta(1), 1)).unwrap(), TaskHandle[int])
    assert_type(add.with_options(priority=1).send(1).unwrap(), TaskHandle[int])
    assert_type((await days.with_options(delay=1).send_async(date.min, count=1)).unwrap(), TaskHandle[list[date]])
    assert_type(add.with_options(flags=["a"]).schedule(1, 2).unwrap(), TaskHandle[int])
    assert_type(add.send_many([(1, 2), {"a": 1}, add.bind(1)]).unwrap(), list[TaskHandle[int]])
    assert_type((await add.send_many_async([])).unwrap(), list[TaskHandle[int]])


async def wrong_arguments_are_type_errors() -> None:
    add("1")  # pyright: ignore[reportArgumentType]
    add.send("1")  # pyright: ignore[reportArgumentType]
    add.send()  # pyright: ignore[reportCallIssue]
    add.send(1, 2, 3)  # pyright: ignore[reportCallIssue]
    add.send(1, c=2)  # pyright: ignore[reportCallIssue]
    add.bind(a="1")  # pyright: ignore[reportArgumentType]
    add.schedule("soon", 1)  # pyright: ignore[reportArgumentType]
    add.schedule(1, "1")  # pyright: ignore[reportArgumentType]
    add.with_options(priority=1).send("1")  # pyright: ignore[reportArgumentType]
    add.send_many([1, 2])  # pyright: ignore[reportArgumentType]
    add.with_options(priority=1).send_many("ab")  # pyright: ignore[reportArgumentType]
    add.with_options(colour="red")  # pyright: ignore[reportCallIssue]
    await days.send_async(date.min, 3)  # pyright: ignore[reportCallIssue]
    await days.send_async(date.min, count="3")  # pyright: ignore[reportArgumentType]


@app.task
def plain(a: int) -> str:
    return str(a)


@app.task()
async def plain_async(a: int) -> str:
    return str(a)


async def plain_tasks_return_their_value() -> None:
    assert_type(plain(1), str)
    assert_type(await plain_async(1), str)
    sent = plain.send(1).unwrap()
    assert_type(sent, TaskHandle[str])
    assert_type(sent.get(), TaskResult[str, TaskError])
    assert_type(sent.value(timeout_ms=5), str)
    assert_type(await sent.value_async(), str)
    plain("1")  # pyright: ignore[reportArgumentType]
