"""`inline`: sends run their task immediately, without a server."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from pydantic import BaseModel, model_serializer, model_validator

from horsies import (
    AppConfig,
    ContractCode,
    Horsies,
    OperationalErrorCode,
    OutcomeCode,
    RetrievalCode,
    RetryPolicy,
    TaskAttemptOutcome,
    TaskContext,
    TaskError,
    TaskResult,
    TaskSendErrorCode,
    TaskStatus,
    current_task,
)
from horsies.testing import inline


@dataclass(frozen=True)
class Invoice:
    number: int
    total: Decimal


class ExitsOnCodec(BaseModel):
    """Raises SystemExit when it is decoded or encoded."""

    when: str

    @model_validator(mode="after")
    def _on_decode(self) -> ExitsOnCodec:
        if self.when == "decoded" and current_task() is not None:
            raise SystemExit
        return self

    @model_serializer
    def _on_encode(self) -> dict[str, str]:
        if self.when == "encoded":
            raise SystemExit
        return {"when": self.when}


@pytest.fixture
def app() -> Horsies:
    return Horsies(AppConfig(exception_mapper={TimeoutError: "SLOW"}))


def test_send_runs_task_and_returns_result(app: Horsies) -> None:
    @app.task("double")
    def double(number: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=2 * number)

    with inline(app):
        assert double.send(21).unwrap().get().ok_value == 42


def test_exit_during_decoding_or_encoding_fails_the_task(app: Horsies) -> None:
    @app.task("read")
    def read(leaving: ExitsOnCodec) -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    @app.task("write")
    def write() -> TaskResult[ExitsOnCodec, TaskError]:
        return TaskResult(ok=ExitsOnCodec(when="encoded"))

    with inline(app):
        failed = [read.send(ExitsOnCodec(when="decoded")).unwrap().get(), write.send().unwrap().get()]
    assert {result.err_value.error_code for result in failed} == {OperationalErrorCode.WORKER_SERIALIZATION_ERROR}


def test_arguments_and_results_are_encoded_and_decoded(app: Horsies) -> None:
    seen: list[Invoice] = []

    @app.task("bill")
    def bill(invoice: Invoice) -> TaskResult[Invoice, TaskError]:
        seen.append(invoice)
        return TaskResult(ok=invoice)

    sent = Invoice(1, Decimal("9.90"))
    with inline(app):
        result = bill.send(sent).unwrap().get().ok_value
    assert seen == [sent] == [result]
    assert result is not seen[0] is not sent


def test_unencodable_arguments_are_rejected_as_usual(app: Horsies) -> None:
    @app.task("double")
    def double(number: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=2 * number)

    with inline(app) as ended:
        refused = double.send("many")  # pyright: ignore[reportArgumentType]
    assert refused.unwrap_err().code is TaskSendErrorCode.VALIDATION_FAILED
    assert ended == []


def test_blocking_send_runs_task_in_calling_thread(app: Horsies) -> None:
    @app.task("where")
    def where() -> TaskResult[int, TaskError]:
        return TaskResult(ok=threading.get_ident())

    with inline(app):
        assert where.send().unwrap().get().ok_value == threading.get_ident()


def test_async_task_can_be_sent_without_event_loop(app: Horsies) -> None:
    @app.task("later")
    async def later() -> TaskResult[str, TaskError]:
        await asyncio.sleep(0)
        return TaskResult(ok="now")

    with inline(app):
        assert later.send().unwrap().get().ok_value == "now"


async def test_async_task_runs_on_the_senders_loop(app: Horsies) -> None:
    @app.task("loop")
    async def loop() -> TaskResult[int, TaskError]:
        return TaskResult(ok=id(asyncio.get_running_loop()))

    with inline(app):
        handle = (await loop.send_async()).unwrap()
    assert (await handle.get_async()).ok_value == id(asyncio.get_running_loop())


async def test_sync_task_sent_from_loop_may_send_blocking(app: Horsies) -> None:
    @app.task("inner")
    def inner() -> TaskResult[str, TaskError]:
        return TaskResult(ok="inner")

    @app.task("outer")
    def outer() -> TaskResult[str, TaskError]:
        return inner.send().unwrap().get()

    with inline(app) as ended:
        handle = (await outer.send_async()).unwrap()
    assert handle.get().ok_value == "inner"
    assert [task.task_name for task in ended] == ["inner", "outer"]


async def test_blocking_send_inside_loop_is_rejected_as_usual(app: Horsies) -> None:
    @app.task("noop")
    def noop() -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    with inline(app):
        refused = noop.send().unwrap_err()
        assert refused.code is TaskSendErrorCode.ASYNC_CONTEXT
        assert (await noop.retry_send_async(refused)).unwrap().get().is_ok()


def test_exception_is_mapped_as_in_a_worker(app: Horsies) -> None:
    @app.task("slow")
    def slow() -> TaskResult[None, TaskError]:
        raise TimeoutError("no answer")

    with inline(app):
        error = slow.send().unwrap().get().err_value
    assert (error.error_code, error.message) == ("SLOW", "TimeoutError: no answer")
    assert isinstance(error.exception, dict)


def test_retries_run_immediately_and_are_counted(app: Horsies) -> None:
    attempts: list[TaskContext | None] = []

    @app.task("flaky", retry_policy=RetryPolicy.fixed([60, 300], auto_retry_for=["SLOW"]))
    def flaky() -> TaskResult[str, TaskError]:
        attempts.append(current_task())
        if len(attempts) < 3:
            raise TimeoutError
        return TaskResult(ok="at last")

    with inline(app) as ended:
        assert flaky.send().unwrap().get().ok_value == "at last"
    assert [context.attempt for context in attempts if context] == [1, 2, 3]
    (task,) = ended
    assert (task.status, task.retry_count) == (TaskStatus.COMPLETED, 2)
    assert [attempt.will_retry for attempt in task.attempts or ()] == [False, True, True]
    assert task.enqueued_at == task.sent_at + timedelta(seconds=360)


def test_task_fails_when_retries_are_exhausted(app: Horsies) -> None:
    @app.task("hopeless", retry_policy=RetryPolicy.fixed([1, 1], auto_retry_for=["SLOW"]))
    def hopeless() -> TaskResult[None, TaskError]:
        raise TimeoutError

    with inline(app) as ended:
        assert hopeless.send().unwrap().get().err_value.error_code == "SLOW"
    assert (ended[0].status, len(ended[0].attempts or ())) == (TaskStatus.FAILED, 3)


def test_no_retry_after_good_until(app: Horsies) -> None:
    @app.task("flaky", retry_policy=RetryPolicy.fixed([60], auto_retry_for=["SLOW"]))
    def flaky() -> TaskResult[None, TaskError]:
        raise TimeoutError

    with inline(app) as ended:
        flaky.with_options(good_until=datetime.now(UTC) + timedelta(seconds=30)).send().unwrap()
    assert len(ended[0].attempts or ()) == 1


def test_delay_is_recorded_but_not_waited_for(app: Horsies) -> None:
    @app.task("noop")
    def noop() -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    with inline(app) as ended:
        assert noop.schedule(3600).unwrap().get().is_ok()
    assert ended[0].started_at == ended[0].sent_at + timedelta(hours=1)


def test_task_past_good_until_expires_without_running(app: Horsies) -> None:
    @app.task("noop")
    def noop() -> TaskResult[None, TaskError]:
        raise AssertionError("it ran")

    soon = datetime.now(UTC) + timedelta(minutes=1)
    with inline(app) as ended:
        error = noop.with_options(good_until=soon).schedule(3600).unwrap().get().err_value
    assert error.error_code is OutcomeCode.TASK_EXPIRED
    assert (ended[0].status, ended[0].attempts) == (TaskStatus.EXPIRED, [])


def test_ok_value_of_wrong_type_is_a_mismatch(app: Horsies) -> None:
    @app.task("wrong")
    def wrong() -> TaskResult[int, TaskError]:
        return TaskResult(ok="seven")  # pyright: ignore[reportReturnType]

    with inline(app):
        assert wrong.send().unwrap().get().err_value.error_code is ContractCode.RETURN_TYPE_MISMATCH


def test_unencodable_ok_value_is_a_worker_failure(app: Horsies) -> None:
    @app.task("infinite")
    def infinite() -> TaskResult[float, TaskError]:
        return TaskResult(ok=float("inf"))

    with inline(app) as ended:
        error = infinite.send().unwrap().get().err_value
    assert error.error_code is OperationalErrorCode.WORKER_SERIALIZATION_ERROR
    assert "cannot be stored" in (error.message or "")
    assert [attempt.outcome for attempt in ended[0].attempts or ()] == [TaskAttemptOutcome.WORKER_FAILURE]


def test_bulk_send_runs_items_in_order(app: Horsies) -> None:
    @app.task("double")
    def double(number: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=2 * number)

    with inline(app):
        handles = double.send_many([(1,), {"number": 2}, double.bind(3)]).unwrap()
    assert [handle.get().ok_value for handle in handles] == [2, 4, 6]


async def test_bulk_send_works_in_event_loop(app: Horsies) -> None:
    @app.task("double")
    async def double(number: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=2 * number)

    with inline(app):
        handles = (await double.send_many_async([(1,), (2,)])).unwrap()
    assert [handle.get().ok_value for handle in handles] == [2, 4]


async def test_bulk_send_with_bad_item_runs_nothing(app: Horsies) -> None:
    @app.task("double")
    async def double(number: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=2 * number)

    late: list[tuple[object, ...]] = [*((number,) for number in range(1500)), ("no number",)]
    with inline(app) as ended:
        assert "item 1500" in (await double.send_many_async(late)).unwrap_err().message
    assert ended == []


def test_idempotency_key_runs_one_task(app: Horsies) -> None:
    ran: list[int] = []

    @app.task("charge")
    def charge(cents: int) -> TaskResult[int, TaskError]:
        ran.append(cents)
        return TaskResult(ok=cents)

    with inline(app):
        once = charge.with_options(idempotency_key="order-7")
        first, again = once.send(990).unwrap(), once.send(990).unwrap()
        other = once.send(1).unwrap_err()
    assert (ran, again.task_id) == ([990], first.task_id)
    assert other.code is TaskSendErrorCode.IDEMPOTENCY_KEY_CONFLICT


def test_current_task_is_set_only_inside_the_task(app: Horsies) -> None:
    @app.task("who", timeout_ms=5000, flags=["urgent"])
    def who() -> TaskResult[str, TaskError]:
        context = current_task()
        assert context is not None
        assert (context.task_name, context.timeout_ms, context.flags) == ("who", 5000, {"urgent": True})
        return TaskResult(ok=context.task_id)

    with inline(app):
        handle = who.send().unwrap()
    assert handle.get().ok_value == handle.task_id
    assert current_task() is None


def test_reads_by_id_need_no_database(app: Horsies) -> None:
    @app.task("bill")
    def bill(cents: int) -> TaskResult[Decimal, TaskError]:
        return TaskResult(ok=Decimal(cents) / 100)

    with inline(app):
        task_id = bill.send(990).unwrap().task_id
        assert app.get_result(task_id).ok_value == app.get_result(UUID(task_id), 0).ok_value == Decimal("9.9")
        assert app.get_raw_result(task_id).unwrap() == {"ok": "9.9"}
        for unknown in (str(UUID(int=7)), "no id"):
            assert app.get_result(unknown).err_value.error_code is RetrievalCode.TASK_NOT_FOUND
        assert app.get_task_info(UUID(int=7)).unwrap() is None


def test_handle_works_after_the_block(app: Horsies) -> None:
    @app.task("slow")
    def slow() -> TaskResult[None, TaskError]:
        raise TimeoutError

    with inline(app) as ended:
        handle = slow.send().unwrap()
    assert handle.info(include_result=True, include_failed_reason=True, include_attempts=True).unwrap() == ended[0]
    bare = handle.info().unwrap()
    assert bare == replace(ended[0], result=None, failed_reason=None, attempts=None)


def test_task_that_reads_itself_is_running(app: Horsies) -> None:
    @app.task("who")
    def who() -> TaskResult[str, TaskError]:
        context = current_task()
        assert context is not None
        info = app.get_task_info(context.task_id).unwrap()
        assert info is not None
        assert app.get_result(context.task_id).err_value.error_code is RetrievalCode.WAIT_TIMEOUT
        return TaskResult(ok=info.status)

    with inline(app):
        assert who.send().unwrap().get().ok_value == "RUNNING"


def test_suppressed_sends_stay_suppressed(app: Horsies) -> None:
    @app.task("noop")
    def noop() -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    app.suppress_sends(True)
    with inline(app):
        assert noop.send().unwrap_err().code is TaskSendErrorCode.SEND_SUPPRESSED


def test_sends_are_normal_again_after_the_block(app: Horsies) -> None:
    usual = app.delivery, app.task_reader
    with pytest.raises(LookupError), inline(app):
        raise LookupError
    assert (app.delivery, app.task_reader) == usual


class Point(BaseModel):
    x: int


def test_plain_tasks_return_values_and_fail_by_raising(app: Horsies) -> None:
    @app.task("move")
    def move(point: Point, by: int) -> Point:
        return Point(x=point.x + by)

    @app.task("nothing")
    async def nothing() -> None:
        raise KeyError("gone")

    @app.task("confused")
    def confused() -> int:
        return TaskResult(ok=1)  # pyright: ignore[reportReturnType]

    assert move(Point(x=1), by=2) == Point(x=3)
    with pytest.raises(TypeError, match="confused: the task returned a TaskResult"):
        confused()
    with pytest.raises(KeyError):
        asyncio.run(nothing())
    with inline(app):
        moved = move.send(Point(x=1), by=2).unwrap()
        assert (moved.get(), moved.value()) == (TaskResult(ok=Point(x=3)), Point(x=3))
        failed = nothing.send().unwrap()
        assert failed.get().err_value.message == "KeyError: 'gone'"
        with pytest.raises(ValueError, match="the task failed: UNHANDLED_EXCEPTION"):
            failed.value()
        assert confused.send().unwrap().get().err_value.error_code is OperationalErrorCode.TASK_EXCEPTION
