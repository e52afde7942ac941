"""Sends as far as the queue: what is delivered, what is refused before."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
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
from horsies.client.delivery import AnyPayload
from horsies.model.send import to_full_payload
from horsies.registry import TaskDefinition

AnyHandle = TaskHandle[Any]


class Wire:
    """A delivery that keeps what it gets, or fails as if the server were away."""

    def __init__(self) -> None:
        self.delivered: list[TaskSendPayload] = []
        self.is_down = False

    def deliver(self, task: TaskDefinition, send: AnyPayload) -> TaskSendResult[AnyHandle]:
        return asyncio.run(self.deliver_async(task, send, None))

    async def deliver_async(
        self,
        task: TaskDefinition,  # noqa: ARG002  # a wire looks at payloads only
        send: AnyPayload,
        connection: object | None,  # noqa: ARG002
    ) -> TaskSendResult[AnyHandle]:
        payload = to_full_payload(send)
        if self.is_down:
            code = TaskSendErrorCode.ENQUEUE_FAILED
            return Err(TaskSendError(code=code, message="down", task_id=payload.task_id, payload=payload))
        self.delivered.append(payload)
        return Ok(TaskHandle[Any](payload.task_id, None))

    def deliver_many(
        self, task: TaskDefinition, payloads: Sequence[TaskSendPayload]
    ) -> TaskSendResult[list[AnyHandle]]:
        return asyncio.run(self.deliver_many_async(task, payloads, None))

    async def deliver_many_async(
        self,
        task: TaskDefinition,  # noqa: ARG002
        payloads: Sequence[TaskSendPayload],
        connection: object | None,  # noqa: ARG002
    ) -> TaskSendResult[list[AnyHandle]]:
        self.delivered.extend(payloads)
        return Ok([TaskHandle[Any](payload.task_id, None) for payload in payloads])


class Connection:
    """Looks like one of the driver's; nothing is asked of it."""

    transaction = is_in_transaction = fetch = None


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def app(wire: Wire) -> Horsies:
    app = Horsies(AppConfig())
    app.delivery = wire
    return app


def double(n: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=2 * n)


def code_of(result: TaskSendResult[Any]) -> TaskSendErrorCode:
    return result.unwrap_err().code


def test_a_schedule_brings_its_delay(app: Horsies, wire: Wire) -> None:
    task = app.task("t")(double)
    task.schedule(2, 5).unwrap()
    task.with_options(priority=3).schedule(timedelta(seconds=3), n=5).unwrap()
    task.with_options(delay=4).send(5).unwrap()
    assert [payload.enqueue_delay_seconds for payload in wire.delivered] == [2, 3, 4]


def test_a_delay_may_be_given_once(app: Horsies) -> None:
    assert code_of(app.task("t")(double).with_options(delay=1).schedule(2, 5)) is TaskSendErrorCode.VALIDATION_FAILED


def test_a_schedule_without_a_delay_is_refused(app: Horsies, wire: Wire) -> None:
    task: Any = app.task("t")(double)
    for refused in (task.schedule(None, 5), asyncio.run(task.with_options(priority=1).schedule_async(None, 5))):
        assert code_of(refused) is TaskSendErrorCode.VALIDATION_FAILED
    assert wire.delivered == []


def test_a_connection_is_for_asynchronous_sends(app: Horsies) -> None:
    options = app.task("t")(double).with_options(connection=object())
    assert code_of(options.send(5)) is TaskSendErrorCode.VALIDATION_FAILED
    assert code_of(options.send_many([(5,)])) is TaskSendErrorCode.VALIDATION_FAILED


def remind(self: str, delay: int) -> TaskResult[str, TaskError]:
    return TaskResult(ok=f"{self} {delay}")


def test_no_name_of_a_parameter_is_taken_by_a_send(app: Horsies, wire: Wire) -> None:
    task = app.task("remind")(remind)
    for sends in (task, task.with_options(priority=1)):
        sends.send(self="a", delay=5).unwrap()
        sends.schedule(1, self="a", delay=5).unwrap()
        asyncio.run(sends.send_async(self="a", delay=5)).unwrap()
        asyncio.run(sends.schedule_async(1, self="a", delay=5)).unwrap()
    task.send_many([task.bind(self="a", delay=5)]).unwrap()
    assert [payload.kwargs for payload in wire.delivered] == ['{"delay":5,"self":"a"}'] * 9


def test_no_name_of_a_parameter_is_taken_by_a_call_or_a_node(app: Horsies) -> None:
    task = app.task("remind")(remind)
    assert task(self="a", delay=5).ok_value == "a 5"
    assert task.node()(self="a", delay=5).kwargs == {"self": "a", "delay": 5}


def test_suppression_comes_before_everything_else(app: Horsies, monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert code_of(result) is TaskSendErrorCode.SEND_SUPPRESSED
    app.suppress_sends(False)
    assert task.send(5).is_ok()
    monkeypatch.setenv("HORSIES_SUPPRESS_SENDS", "1")
    assert code_of(task.send(5)) is TaskSendErrorCode.SEND_SUPPRESSED


async def test_a_blocking_send_inside_a_loop_can_be_finished_with_the_async_retry(app: Horsies, wire: Wire) -> None:
    task = app.task("t")(double)
    error = task.send(5).unwrap_err()
    assert (error.code, error.retryable) == (TaskSendErrorCode.ASYNC_CONTEXT, False)
    assert code_of(task.retry_send(error)) is TaskSendErrorCode.ASYNC_CONTEXT
    assert (await task.retry_send_async(error)).unwrap().task_id == error.task_id
    assert wire.delivered == [error.payload]


async def test_a_blocking_send_inside_a_loop_names_what_to_await_instead(app: Horsies) -> None:
    task = app.task("t")(double)
    failed = [task.send(5), task.schedule(1, 5), task.send_many([(5,)])]
    assert {code_of(each) for each in failed} == {TaskSendErrorCode.ASYNC_CONTEXT}
    one, delayed, many = (each.unwrap_err().message for each in failed)
    assert "retry_send_async" in one
    assert "retry_schedule_async" in delayed
    assert many.endswith("; await send_many_async instead")


def test_a_failed_send_is_replayed_under_its_id(app: Horsies, wire: Wire) -> None:
    task = app.task("t")(double)
    wire.is_down = True
    plain, delayed = task.send(5).unwrap_err(), task.schedule(9, 5).unwrap_err()
    wire.is_down = False
    assert task.retry_send(plain).unwrap().task_id == plain.task_id
    assert task.retry_schedule(delayed).unwrap().task_id == delayed.task_id
    assert wire.delivered == [plain.payload, delayed.payload]
    assert code_of(task.retry_send(delayed)) is TaskSendErrorCode.VALIDATION_FAILED
    assert code_of(task.retry_schedule(plain)) is TaskSendErrorCode.VALIDATION_FAILED


async def test_what_was_part_of_a_transaction_is_replayed_on_a_connection_only(app: Horsies, wire: Wire) -> None:
    task, connection = app.task("t")(double), Connection()
    wire.is_down = True
    error = (await task.with_options(connection=connection).send_async(5)).unwrap_err()
    again = (await task.with_options(connection=connection).retry_send_async(error)).unwrap_err()
    wire.is_down = False
    for refused in (await task.retry_send_async(again), await task.with_options(priority=1).retry_send_async(again)):
        assert "with_options(connection=…).retry_send_async" in refused.unwrap_err().message
    no_connection = await task.with_options(connection=object()).retry_send_async(again)
    assert code_of(no_connection) is TaskSendErrorCode.VALIDATION_FAILED
    assert wire.delivered == []
    assert (await task.with_options(connection=connection).retry_send_async(again)).unwrap().task_id == error.task_id


def test_only_what_can_be_sent_again_is_replayed(app: Horsies, wire: Wire) -> None:
    task, another = app.task("t")(double), app.task("other")(double)
    wire.is_down = True
    failed = task.send(5).unwrap_err()
    assert failed.payload is not None
    nothing: Any = None
    for error in (
        nothing,
        another.send(5).unwrap_err(),
        replace(failed, payload=None),
        replace(failed, code=TaskSendErrorCode.PAYLOAD_MISMATCH),
    ):
        assert code_of(task.retry_send(error)) is TaskSendErrorCode.VALIDATION_FAILED


def test_a_payload_that_was_changed_is_sealed_again(app: Horsies, wire: Wire) -> None:
    task = app.task("t")(double)
    wire.is_down = True
    error = task.send(5).unwrap_err()
    wire.is_down = False
    assert error.payload is not None
    task.retry_send(replace(error, payload=replace(error.payload, args="[6]"))).unwrap()
    assert wire.delivered[0].enqueue_sha != error.payload.enqueue_sha


@pytest.mark.parametrize("args", ["[", "5"])
def test_a_payload_whose_arguments_are_none_any_more_is_refused(app: Horsies, wire: Wire, args: str) -> None:
    task = app.task("t")(double)
    wire.is_down = True
    error = task.with_options(idempotency_key="k").send(5).unwrap_err()
    assert error.payload is not None
    damaged = replace(error, payload=replace(error.payload, args=args))
    assert code_of(task.retry_send(damaged)) is TaskSendErrorCode.VALIDATION_FAILED


def test_a_bulk_send_takes_every_kind_of_item_in_order(app: Horsies, wire: Wire) -> None:
    task = app.task("t")(double)
    handles = task.send_many([{"n": 1}, (2,), task.bind(3), task.bind(n=4)]).unwrap()
    assert [(each.args, each.kwargs) for each in wire.delivered] == [
        ("[]", '{"n":1}'),
        ("[2]", "{}"),
        ("[3]", "{}"),
        ("[]", '{"n":4}'),
    ]
    assert [handle.task_id for handle in handles] == [each.task_id for each in wire.delivered]
    assert len({each.sent_at for each in wire.delivered}) == 1


@pytest.mark.parametrize("bad", [{"n": "x"}, {}, {"m": 1}, (1, 2), "text", 5, None])
def test_one_bad_item_keeps_all_from_being_sent_and_is_named(app: Horsies, wire: Wire, bad: Any) -> None:
    error = app.task("t")(double).send_many([(1,), (2,), bad]).unwrap_err()
    assert error.code is TaskSendErrorCode.VALIDATION_FAILED
    assert "item 2" in error.message
    assert wire.delivered == []


def test_an_item_of_no_kind_hears_of_the_kinds(app: Horsies) -> None:
    item: Any = 5
    error = app.task("t")(double).send_many([item]).unwrap_err()
    assert error.message.endswith("must be a mapping, a tuple or a bind() value, got int")


def test_a_key_is_for_single_sends(app: Horsies) -> None:
    options = app.task("t")(double).with_options(idempotency_key="k")
    assert code_of(options.send_many([(1,)])) is TaskSendErrorCode.VALIDATION_FAILED


def test_binding_checks_the_call(app: Horsies) -> None:
    task: Any = app.task("t")(double)
    for args, kwargs in [((), {}), ((1, 2), {}), (("x",), {}), ((1,), {"n": 1}), ((), {"m": 1})]:
        with pytest.raises(ValueError, match="t: "):
            task.bind(*args, **kwargs)
