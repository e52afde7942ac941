"""`drain`: runs due tasks of a database in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import asyncpg
import pytest

from horsies import (
    AppConfig,
    ConfigurationError,
    ContractCode,
    CustomQueueConfig,
    ErrorCode,
    Horsies,
    HorsiesError,
    OperationalErrorCode,
    OutcomeCode,
    PostgresConfig,
    QueueMode,
    RetryPolicy,
    TaskAttemptInfo,
    TaskAttemptOutcome,
    TaskError,
    TaskHandle,
    TaskInfo,
    TaskResult,
    TaskStatus,
    current_task,
)
from horsies.testing import drain, drain_async

RunSql: TypeAlias = Callable[[str], list[asyncpg.Record]]

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
def app(database_url: str) -> Iterator[Horsies]:
    config = AppConfig(
        broker=PostgresConfig(database_url=database_url),
        exception_mapper={TimeoutError: "SLOW"},
        queue_mode=QueueMode.CUSTOM,
        custom_queues=[
            CustomQueueConfig(name="mail", priority=50),
            CustomQueueConfig(name="urgent", priority=1),
            CustomQueueConfig(name="closed", max_concurrency=0),
        ],
    )
    app = Horsies(config)
    yield app
    app.close()


@pytest.fixture
def run_sql(database_url: str) -> RunSql:
    """Runs a statement in the test database."""

    async def run(sql: str) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(database_url)
        try:
            return await connection.fetch(sql)
        finally:
            await connection.close()

    return lambda sql: asyncio.run(run(sql))


def info_of(handle: TaskHandle[Any]) -> TaskInfo:
    found = handle.info(include_result=True, include_failed_reason=True, include_attempts=True).unwrap()
    assert found is not None
    return found


def attempts_of(handle: TaskHandle[Any]) -> list[TaskAttemptInfo]:
    """Newest first."""
    attempts = info_of(handle).attempts
    assert attempts is not None
    return attempts


def test_due_task_runs_and_handle_gets_typed_result(app: Horsies) -> None:
    @app.task("tomorrow", queue_name="mail")
    def tomorrow(today: datetime) -> TaskResult[datetime, TaskError]:
        return TaskResult(ok=today + timedelta(days=1))

    handle = tomorrow.send(LONG_AGO).unwrap()
    assert drain(app) == 1
    assert handle.get(timeout_ms=0).ok_value == LONG_AGO + timedelta(days=1)


def test_completed_task_has_row_and_attempt_as_from_worker(app: Horsies) -> None:
    @app.task("noop", queue_name="mail")
    def noop() -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    handle = noop.send().unwrap()
    drain(app)
    task = info_of(handle)
    assert (task.status, task.error_code, task.retry_count) == (TaskStatus.COMPLETED, None, 0)
    assert task.claimed_at == task.started_at
    assert task.completed_at
    assert task.failed_at is None
    (attempt,) = attempts_of(handle)
    assert (attempt.attempt, attempt.claim_token, attempt.outcome) == (1, 1, TaskAttemptOutcome.COMPLETED)
    assert (attempt.worker_id, attempt.worker_pid) == (task.worker_id, task.worker_pid)
    assert attempt.worker_process_name == f"worker-{task.worker_pid}"


def test_async_task_is_awaited(app: Horsies) -> None:
    @app.task("later", queue_name="mail")
    async def later() -> TaskResult[str, TaskError]:
        await asyncio.sleep(0)
        return TaskResult(ok="now")

    handle = later.send().unwrap()
    drain(app)
    assert handle.get(timeout_ms=0).ok_value == "now"


async def test_drain_works_inside_a_running_loop(app: Horsies) -> None:
    @app.task("noop", queue_name="mail")
    def noop() -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    await noop.send_many_async([(), ()])
    with pytest.raises(HorsiesError, match="_async method"):
        drain(app)
    assert await drain_async(app) == 2
    await app.close_async()


def test_err_result_fails_the_task_with_its_code(app: Horsies) -> None:
    @app.task("declined", queue_name="mail")
    def declined() -> TaskResult[None, TaskError]:
        return TaskResult(err=TaskError(error_code="CARD_DECLINED", message="no\0 funds"))

    handle = declined.send().unwrap()
    drain(app)
    task = info_of(handle)
    assert (task.status, task.error_code, task.failed_reason) == (TaskStatus.FAILED, "CARD_DECLINED", None)
    (attempt,) = attempts_of(handle)
    assert (attempt.outcome, attempt.error_message) == (TaskAttemptOutcome.FAILED, "no\N{REPLACEMENT CHARACTER} funds")
    assert handle.get(timeout_ms=0).err_value.error_code == "CARD_DECLINED"


def test_exception_is_mapped_to_its_code(app: Horsies) -> None:
    @app.task("slow", queue_name="mail")
    def slow() -> TaskResult[None, TaskError]:
        raise TimeoutError

    handle = slow.send().unwrap()
    drain(app)
    assert info_of(handle).error_code == "SLOW"


def test_retry_is_stored_and_succeeds_when_due(app: Horsies, run_sql: RunSql) -> None:
    @app.task("flaky", queue_name="mail", retry_policy=RetryPolicy.fixed([60], auto_retry_for=["SLOW"]))
    def flaky() -> TaskResult[int, TaskError]:
        context = current_task()
        assert context is not None
        if context.retry_count == 0:
            raise TimeoutError
        return TaskResult(ok=context.attempt)

    handle = flaky.send().unwrap()
    assert drain(app) == 1
    waiting = info_of(handle)
    assert (waiting.status, waiting.retry_count, waiting.error_code) == (TaskStatus.PENDING, 1, None)
    assert waiting.next_retry_at == waiting.enqueued_at > datetime.now(UTC) + timedelta(seconds=50)
    assert (waiting.worker_id, waiting.started_at, waiting.claimed_at) == (None, None, None)

    assert drain(app) == 0
    run_sql("UPDATE horsies_tasks SET enqueued_at = now(), next_retry_at = now()")
    assert drain(app) == 1
    second, first = attempts_of(handle)
    assert (first.outcome, first.will_retry, first.error_code) == (TaskAttemptOutcome.FAILED, True, "SLOW")
    assert (second.outcome, second.will_retry, second.claim_token) == (TaskAttemptOutcome.COMPLETED, False, 2)
    assert handle.get(timeout_ms=0).ok_value == 2


def test_task_fails_when_retries_are_exhausted(app: Horsies, run_sql: RunSql) -> None:
    @app.task("hopeless", queue_name="mail", retry_policy=RetryPolicy.fixed([60], auto_retry_for=["SLOW"]))
    def hopeless() -> TaskResult[None, TaskError]:
        raise TimeoutError

    handle = hopeless.send().unwrap()
    for _ in range(2):
        drain(app)
        run_sql("UPDATE horsies_tasks SET enqueued_at = now(), next_retry_at = NULL WHERE status = 'PENDING'")
    task = info_of(handle)
    assert (task.status, task.error_code, task.retry_count) == (TaskStatus.FAILED, "SLOW", 1)
    assert [attempt.will_retry for attempt in attempts_of(handle)] == [False, True]


def test_no_retry_after_good_until(app: Horsies) -> None:
    @app.task("flaky", queue_name="mail", retry_policy=RetryPolicy.fixed([3600], auto_retry_for=["SLOW"]))
    def flaky() -> TaskResult[None, TaskError]:
        raise TimeoutError

    handle = flaky.with_options(good_until=datetime.now(UTC) + timedelta(minutes=5)).send().unwrap()
    drain(app)
    assert (info_of(handle).status, info_of(handle).error_code) == (TaskStatus.FAILED, "SLOW")


def test_task_past_good_until_expires_without_attempt(app: Horsies) -> None:
    @app.task("noop", queue_name="mail")
    def noop() -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    handle = noop.with_options(good_until=LONG_AGO).send().unwrap()
    assert drain(app) == 0
    task = info_of(handle)
    assert (task.status, task.attempts, task.started_at) == (TaskStatus.EXPIRED, [], None)
    error = handle.get(timeout_ms=0).err_value
    assert error.error_code is OutcomeCode.TASK_EXPIRED
    assert error.data == {"task_id": handle.task_id, "worker_id": None}


def test_hundreds_of_tasks_expire_in_one_drain(app: Horsies, run_sql: RunSql) -> None:
    @app.task("noop", queue_name="mail")
    def noop() -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    noop.with_options(good_until=LONG_AGO).send_many([()] * 701).unwrap()
    drain(app)
    assert run_sql("SELECT count(*) FROM horsies_tasks WHERE status = 'EXPIRED'")[0][0] == 701


def test_unknown_task_is_a_worker_failure(app: Horsies) -> None:
    sender = Horsies(app.config)

    @sender.task("elsewhere", queue_name="mail")
    def elsewhere() -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    handle = elsewhere.send().unwrap()
    drain(app)
    task = info_of(handle)
    assert (task.status, task.error_code) == (TaskStatus.FAILED, OperationalErrorCode.WORKER_RESOLUTION_ERROR)
    (attempt,) = attempts_of(handle)
    assert attempt.outcome is TaskAttemptOutcome.WORKER_FAILURE
    assert attempt.error_message == "task 'elsewhere' is not registered in this worker"
    sender.close()


def test_invalid_stored_arguments_are_a_worker_failure(app: Horsies, run_sql: RunSql) -> None:
    @app.task("double", queue_name="mail")
    def double(number: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=2 * number)

    handle = double.send(1).unwrap()
    run_sql("UPDATE horsies_tasks SET args = '[\"many\"]'")
    drain(app)
    task = info_of(handle)
    assert task.error_code == OperationalErrorCode.WORKER_SERIALIZATION_ERROR
    (attempt,) = attempts_of(handle)
    assert attempt.outcome is TaskAttemptOutcome.WORKER_FAILURE
    assert "number" in (attempt.error_message or "")


def test_result_rejected_by_server_fails_the_task(app: Horsies, run_sql: RunSql) -> None:
    @app.task("noop", queue_name="mail")
    def noop() -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    run_sql("ALTER TABLE horsies_tasks ADD CONSTRAINT picky CHECK (NOT coalesce(result, '{}') ? 'ok')")
    handle = noop.send().unwrap()
    drain(app)
    task = info_of(handle)
    assert (task.status, task.error_code) == (TaskStatus.FAILED, OperationalErrorCode.WORKER_SERIALIZATION_ERROR)
    assert "picky" in (handle.get(timeout_ms=0).err_value.message or "")


def test_ok_value_of_wrong_type_is_a_mismatch(app: Horsies) -> None:
    @app.task("wrong", queue_name="mail")
    def wrong() -> TaskResult[int, TaskError]:
        return TaskResult(ok="seven")  # pyright: ignore[reportReturnType]

    handle = wrong.send().unwrap()
    drain(app)
    assert handle.get(timeout_ms=0).err_value.error_code is ContractCode.RETURN_TYPE_MISMATCH


def test_only_given_queues_are_drained_and_never_disabled_ones(app: Horsies) -> None:
    @app.task("letter", queue_name="mail")
    def letter() -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    @app.task("alarm", queue_name="urgent")
    def alarm() -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    @app.task("never", queue_name="closed")
    def never() -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    handles = [task.send().unwrap() for task in (letter, alarm, never)]
    assert drain(app, queues=["urgent"]) == 1
    assert [info_of(handle).status for handle in handles] == ["PENDING", "COMPLETED", "PENDING"]
    assert drain(app) == 1
    assert info_of(handles[2]).status is TaskStatus.PENDING


def test_unknown_queue_is_rejected(app: Horsies) -> None:
    with pytest.raises(ConfigurationError, match="no queue 'urgnt'") as refused:
        drain(app, queues=["mail", "urgnt"])
    assert refused.value.code is ErrorCode.TASK_INVALID_QUEUE
    assert "urgent" in str(refused.value.help_text)


def test_expired_tasks_of_other_queues_are_left(app: Horsies) -> None:
    @app.task("letter", queue_name="mail")
    def letter() -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    handle = letter.with_options(good_until=LONG_AGO).send().unwrap()
    drain(app, queues=["urgent"])
    assert info_of(handle).status is TaskStatus.PENDING


def test_retry_clears_a_kill_request(app: Horsies, run_sql: RunSql) -> None:
    @app.task("flaky", queue_name="mail", retry_policy=RetryPolicy.fixed([60], auto_retry_for=["SLOW"]))
    def flaky() -> TaskResult[None, TaskError]:
        run_sql("UPDATE horsies_tasks SET kill_requested = true")
        raise TimeoutError

    flaky.send().unwrap()
    assert drain(app) == 1
    assert [tuple(row) for row in run_sql("SELECT status, kill_requested FROM horsies_tasks")] == [("PENDING", False)]


def test_paused_queue_is_not_drained(app: Horsies, run_sql: RunSql) -> None:
    @app.task("letter", queue_name="mail")
    def letter() -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    letter.send().unwrap()
    run_sql("INSERT INTO horsies_queues (queue_name, paused_at) VALUES ('mail', now())")
    assert drain(app) == 0


def test_tasks_run_by_priority_up_to_the_limit(app: Horsies) -> None:
    ran: list[str] = []

    @app.task("letter", queue_name="mail")
    def letter() -> TaskResult[None, TaskError]:
        ran.append("letter")
        return TaskResult(ok=None)

    @app.task("alarm", queue_name="urgent")
    def alarm() -> TaskResult[None, TaskError]:
        ran.append("alarm")
        return TaskResult(ok=None)

    letter.send_many([(), ()]).unwrap()
    alarm.send().unwrap()
    assert drain(app, limit=2) == 2
    assert ran == ["alarm", "letter"]
    assert drain(app, limit=0) == 0


def test_delayed_task_is_not_run(app: Horsies) -> None:
    @app.task("noop", queue_name="mail")
    def noop() -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    noop.schedule(3600).unwrap()
    assert drain(app) == 0


def test_tasks_sent_by_tasks_are_drained_too(app: Horsies) -> None:
    @app.task("countdown", queue_name="mail")
    def countdown(number: int) -> TaskResult[int, TaskError]:
        if number:
            countdown.send(number - 1).unwrap()
        return TaskResult(ok=number)

    countdown.send(3).unwrap()
    assert drain(app) == 4


def test_outcome_of_lost_claim_is_discarded(app: Horsies, run_sql: RunSql) -> None:
    @app.task("robbed", queue_name="mail")
    def robbed() -> TaskResult[None, TaskError]:
        run_sql("UPDATE horsies_tasks SET claim_token = claim_token + 1")
        return TaskResult(ok=None)

    handle = robbed.send().unwrap()
    drain(app)
    assert (info_of(handle).status, info_of(handle).attempts) == (TaskStatus.RUNNING, [])


async def test_finished_task_notifies_waiters(app: Horsies, database_url: str) -> None:
    @app.task("noop", queue_name="mail")
    async def noop() -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    payloads: asyncio.Queue[object] = asyncio.Queue()

    def hear(_connection: object, _pid: int, _channel: str, payload: object) -> None:
        payloads.put_nowait(payload)

    connection = await asyncpg.connect(database_url)
    await connection.add_listener("horsies_task_done", hear)
    ran = (await noop.send_async()).unwrap()
    expired = (await noop.with_options(good_until=LONG_AGO).send_async()).unwrap()
    await drain_async(app)
    assert [await payloads.get(), await payloads.get()] == [ran.task_id, expired.task_id]
    await connection.close()
    await app.close_async()
