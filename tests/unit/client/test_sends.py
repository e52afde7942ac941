"""Send methods of a task, up to the delivery: what is delivered and what is rejected before."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from horsies import (
    AppConfig,
    Err,
    Horsies,
    Ok,
    TaskError,
    TaskHandle,
    TaskResult,
    TaskSendError,
    TaskSendErrorCode,
    TaskSendPayload,
    TaskSendResult,
)
from horsies.model.send import BulkPayload
from horsies.registry import TaskDefinition

AnyHandle = TaskHandle[Any]


class FakeDelivery:
    """Keeps the payloads it gets, or fails as if the server were down."""

    def __init__(self) -> None:
        self.delivered: list[TaskSendPayload] = []
        self.is_down = False

    def deliver(self, task: TaskDefinition, payload: TaskSendPayload) -> TaskSendResult[AnyHandle]:
        return asyncio.run(self.deliver_async(task, payload, None))

    async def deliver_async(
        self,
        task: TaskDefinition,  # noqa: ARG002
        payload: TaskSendPayload,
        connection: object | None,  # noqa: ARG002
    ) -> TaskSendResult[AnyHandle]:
        if self.is_down:
            code = TaskSendErrorCode.ENQUEUE_FAILED
            return Err(TaskSendError(code=code, message="down", task_id=payload.task_id, payload=payload))
        self.delivered.append(payload)
        return Ok(TaskHandle[Any](payload.task_id, None))

    def deliver_many(self, task: TaskDefinition, bulk: BulkPayload) -> TaskSendResult[list[AnyHandle]]:
        return asyncio.run(self.deliver_many_async(task, bulk, None))

    async def deliver_many_async(
        self,
        task: TaskDefinition,  # noqa: ARG002
        bulk: BulkPayload,
        connection: object | None,  # noqa: ARG002
    ) -> TaskSendResult[list[AnyHandle]]:
        self.delivered.extend(bulk)
        return Ok([TaskHandle[Any](payload.task_id, None) for payload in bulk])


class Connection:
    """Passes the duck-type check for an asyncpg connection; never used."""

    transaction = is_in_transaction = fetch = None


@pytest.fixture
def delivery() -> FakeDelivery:
    return FakeDelivery()


@pytest.fixture
def app(delivery: FakeDelivery) -> Horsies:
    app = Horsies(AppConfig())
    app.delivery = delivery
    return app


def double(n: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=2 * n)


def error_code(result: TaskSendResult[Any]) -> TaskSendErrorCode:
    return result.unwrap_err().code


def test_schedule_sets_the_delay(app: Horsies, delivery: FakeDelivery) -> None:
    task = app.task("t")(double)
    task.schedule(2, 5).unwrap()
    task.with_options(priority=3).schedule(timedelta(seconds=3), n=5).unwrap()
    task.with_options(delay=4).send(5).unwrap()
    assert [payload.enqueue_delay_seconds for payload in delivery.delivered] == [2, 3, 4]


def test_delay_given_twice_is_rejected(app: Horsies) -> None:
    assert error_code(app.task("t")(double).with_options(delay=1).schedule(2, 5)) is TaskSendErrorCode.VALIDATION_FAILED


def test_schedule_without_a_delay_is_rejected(app: Horsies, delivery: FakeDelivery) -> None:
    task: Any = app.task("t")(double)
    for result in (task.schedule(None, 5), asyncio.run(task.with_options(priority=1).schedule_async(None, 5))):
        assert error_code(result) is TaskSendErrorCode.VALIDATION_FAILED
    assert delivery.delivered == []


def test_connection_is_rejected_by_blocking_sends(app: Horsies) -> None:
    options = app.task("t")(double).with_options(connection=object())
    assert error_code(options.send(5)) is TaskSendErrorCode.VALIDATION_FAILED
    assert error_code(options.send_many([(5,)])) is TaskSendErrorCode.VALIDATION_FAILED


def remind(self: str, delay: int) -> TaskResult[str, TaskError]:
    return TaskResult(ok=f"{self} {delay}")


def test_sends_accept_any_parameter_name(app: Horsies, delivery: FakeDelivery) -> None:
    task = app.task("remind")(remind)
    for sends in (task, task.with_options(priority=1)):
        sends.send(self="a", delay=5).unwrap()
        sends.schedule(1, self="a", delay=5).unwrap()
        asyncio.run(sends.send_async(self="a", delay=5)).unwrap()
        asyncio.run(sends.schedule_async(1, self="a", delay=5)).unwrap()
    task.send_many([task.bind(self="a", delay=5)]).unwrap()
    assert [payload.kwargs for payload in delivery.delivered] == ['{"delay":5,"self":"a"}'] * 9


def test_calls_and_nodes_accept_any_parameter_name(app: Horsies) -> None:
    task = app.task("remind")(remind)
    assert task(self="a", delay=5).ok_value == "a 5"
    assert task.node()(self="a", delay=5).kwargs == {"self": "a", "delay": 5}


def test_suppressed_sends_fail_before_validation(app: Horsies, monkeypatch: pytest.MonkeyPatch) -> None:
    task: Any = app.task("t")(double)
    app.suppress_sends(True)
    assert app.are_sends_suppressed()
    failed = TaskSendError(code=TaskSendErrorCode.ENQUEUE_FAILED, message="")
    for result in (
        task.send("wrong"),
        task.with_options(connection=object()).send(5),
        task.schedule(None),
        task.with_options(delay=1).schedule(2, 5),
        task.send_many([{}]),
        task.retry_send(failed),
    ):
        assert result.unwrap_err() == replace(result.unwrap_err(), task_id=None, payload=None)
        assert error_code(result) is TaskSendErrorCode.SEND_SUPPRESSED
    app.suppress_sends(False)
    assert task.send(5).is_ok()
    monkeypatch.setenv("HORSIES_SUPPRESS_SENDS", "1")
    assert error_code(task.send(5)) is TaskSendErrorCode.SEND_SUPPRESSED


async def test_blocking_send_inside_a_loop_can_be_retried_async(app: Horsies, delivery: FakeDelivery) -> None:
    task = app.task("t")(double)
    error = task.send(5).unwrap_err()
    assert (error.code, error.retryable) == (TaskSendErrorCode.ASYNC_CONTEXT, False)
    assert error_code(task.retry_send(error)) is TaskSendErrorCode.ASYNC_CONTEXT
    assert (await task.retry_send_async(error)).unwrap().task_id == error.task_id
    assert delivery.delivered == [error.payload]


async def test_blocking_send_inside_a_loop_names_the_async_method(app: Horsies) -> None:
    task = app.task("t")(double)
    failed = [task.send(5), task.schedule(1, 5), task.send_many([(5,)])]
    assert {error_code(result) for result in failed} == {TaskSendErrorCode.ASYNC_CONTEXT}
    single, delayed, many = (result.unwrap_err().message for result in failed)
    assert "retry_send_async" in single
    assert "retry_schedule_async" in delayed
    assert many.endswith("; await send_many_async instead")


def test_retry_sends_the_same_id_again(app: Horsies, delivery: FakeDelivery) -> None:
    task = app.task("t")(double)
    delivery.is_down = True
    immediate, delayed = task.send(5).unwrap_err(), task.schedule(9, 5).unwrap_err()
    delivery.is_down = False
    assert task.retry_send(immediate).unwrap().task_id == immediate.task_id
    assert task.retry_schedule(delayed).unwrap().task_id == delayed.task_id
    assert delivery.delivered == [immediate.payload, delayed.payload]
    assert error_code(task.retry_send(delayed)) is TaskSendErrorCode.VALIDATION_FAILED
    assert error_code(task.retry_schedule(immediate)) is TaskSendErrorCode.VALIDATION_FAILED


async def test_transactional_send_is_retried_only_on_a_connection(app: Horsies, delivery: FakeDelivery) -> None:
    task, connection = app.task("t")(double), Connection()
    delivery.is_down = True
    error = (await task.with_options(connection=connection).send_async(5)).unwrap_err()
    again = (await task.with_options(connection=connection).retry_send_async(error)).unwrap_err()
    delivery.is_down = False
    for result in (await task.retry_send_async(again), await task.with_options(priority=1).retry_send_async(again)):
        assert "with_options(connection=…).retry_send_async" in result.unwrap_err().message
    no_connection = await task.with_options(connection=object()).retry_send_async(again)
    assert error_code(no_connection) is TaskSendErrorCode.VALIDATION_FAILED
    assert delivery.delivered == []
    assert (await task.with_options(connection=connection).retry_send_async(again)).unwrap().task_id == error.task_id


def test_retry_rejects_errors_that_cannot_be_retried(app: Horsies, delivery: FakeDelivery) -> None:
    task, other_task = app.task("t")(double), app.task("other")(double)
    delivery.is_down = True
    failed = task.send(5).unwrap_err()
    assert failed.payload is not None
    nothing: Any = None
    for error in (
        nothing,
        other_task.send(5).unwrap_err(),
        replace(failed, payload=None),
        replace(failed, code=TaskSendErrorCode.PAYLOAD_MISMATCH),
    ):
        assert error_code(task.retry_send(error)) is TaskSendErrorCode.VALIDATION_FAILED


def test_retry_recomputes_the_fingerprint_of_a_changed_payload(app: Horsies, delivery: FakeDelivery) -> None:
    task = app.task("t")(double)
    delivery.is_down = True
    error = task.send(5).unwrap_err()
    delivery.is_down = False
    assert error.payload is not None
    task.retry_send(replace(error, payload=error.payload._replace(args="[6]"))).unwrap()
    assert delivery.delivered[0].enqueue_sha != error.payload.enqueue_sha


@pytest.mark.parametrize("args", ["[", "5"])
def test_retry_rejects_a_payload_with_invalid_arguments(app: Horsies, delivery: FakeDelivery, args: str) -> None:
    task = app.task("t")(double)
    delivery.is_down = True
    error = task.with_options(idempotency_key="k").send(5).unwrap_err()
    assert error.payload is not None
    damaged = replace(error, payload=error.payload._replace(args=args))
    assert error_code(task.retry_send(damaged)) is TaskSendErrorCode.VALIDATION_FAILED


def test_bulk_send_accepts_every_kind_of_item_in_order(app: Horsies, delivery: FakeDelivery) -> None:
    task = app.task("t")(double)
    handles = task.send_many([{"n": 1}, (2,), task.bind(3), task.bind(n=4)]).unwrap()
    assert [(payload.args, payload.kwargs) for payload in delivery.delivered] == [
        ("[]", '{"n":1}'),
        ("[2]", "{}"),
        ("[3]", "{}"),
        ("[]", '{"n":4}'),
    ]
    assert [handle.task_id for handle in handles] == [payload.task_id for payload in delivery.delivered]
    assert len({payload.sent_at for payload in delivery.delivered}) == 1


@pytest.mark.parametrize("invalid", [{"n": "x"}, {}, {"m": 1}, (1, 2), "text", 5, None])
def test_one_invalid_item_rejects_the_bulk_send(app: Horsies, delivery: FakeDelivery, invalid: Any) -> None:
    error = app.task("t")(double).send_many([(1,), (2,), invalid]).unwrap_err()
    assert error.code is TaskSendErrorCode.VALIDATION_FAILED
    assert "item 2" in error.message
    assert delivery.delivered == []


def test_error_for_an_invalid_item_lists_the_kinds(app: Horsies) -> None:
    item: Any = 5
    error = app.task("t")(double).send_many([item]).unwrap_err()
    assert error.message.endswith("must be a mapping, a tuple or a bind() value, got int")


def test_bulk_send_rejects_an_idempotency_key(app: Horsies) -> None:
    options = app.task("t")(double).with_options(idempotency_key="k")
    assert error_code(options.send_many([(1,)])) is TaskSendErrorCode.VALIDATION_FAILED


def test_bind_validates_the_arguments(app: Horsies) -> None:
    task: Any = app.task("t")(double)
    for args, kwargs in [((), {}), ((1, 2), {}), (("x",), {}), ((1,), {"n": 1}), ((), {"m": 1})]:
        with pytest.raises(ValueError, match="t: "):
            task.bind(*args, **kwargs)
