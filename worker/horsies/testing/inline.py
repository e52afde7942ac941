"""Sends that run the task at once, for tests without a server."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

from horsies.app import Horsies
from horsies.client.delivery import AnyHandle, AnyPayload, send_error_for
from horsies.client.results import TaskHandle, parse_timeout, stored_task_result, to_broker_result, wait_timeout_result
from horsies.codec.arguments import EncodedArguments
from horsies.codec.ids import ID_GENERATOR
from horsies.codec.results import AnyResult, EncodedResult, decode_result, encode_result
from horsies.errors import BrokerErrorCode
from horsies.model.result import BrokerResult, Err, Ok
from horsies.model.retry import RetryAt, RetryState, decide_retry
from horsies.model.send import (
    ConflictingTask,
    SendOutcome,
    TaskSendPayload,
    TaskSendResult,
    resolve_conflict,
    to_full_payload,
)
from horsies.model.task import TaskAttemptInfo, TaskContext, TaskInfo, TaskStatus, expired_error, has_expired, parse_id
from horsies.model.task_result import ExceptionRules, TaskResult
from horsies.registry import TaskDefinition
from horsies.testing.drain import Execution, Work, execute, execute_async, rules_of

# A task on its way through its attempts, without a queue and without waiting.


class InlineTask:
    """Says which attempt to make next until the task has ended.

    Delays are not waited for but counted: each attempt is dated at the moment it would have been due, so `good_until`
    cuts off the same attempts as in a worker whose jitter is always 0.
    """

    def __init__(
        self, task: TaskDefinition, payload: TaskSendPayload, rules: ExceptionRules, *, worker_id: str
    ) -> None:
        arguments = EncodedArguments(args_json=payload.args, kwargs_json=payload.kwargs)
        self.work = Work(task=task, arguments=arguments, rules=rules)
        self._payload = payload
        self._worker_id = worker_id
        self._due_at = payload.sent_at + timedelta(seconds=payload.enqueue_delay_seconds or 0)
        self._attempts: list[TaskAttemptInfo] = []
        self._ended: EncodedResult | None = None
        self._status = TaskStatus.PENDING

    @property
    def task_id(self) -> str:
        return self._payload.task_id

    @property
    def has_ended(self) -> bool:
        return self._ended is not None

    @property
    def document(self) -> str:
        """The result as it is stored; only once the task has ended."""
        assert self._ended is not None  # noqa: S101  # nobody asks before has_ended says so
        return self._ended.document

    @property
    def result(self) -> AnyResult:
        """The result as a reader gets it; only once the task has ended."""
        return decode_result(self.document, self.work.task.codec.result_codec)

    def next_attempt(self) -> TaskContext | None:
        """The attempt that is to be made now; None once the task has ended."""
        good_until = self._payload.good_until
        if self._ended is None and good_until is not None and has_expired(good_until, self._due_at):
            error = expired_error(task_id=self._payload.task_id, good_until=good_until)
            self._end(TaskStatus.EXPIRED, encode_result(TaskResult(err=error), self.work.task.codec.result_codec))
        if self._ended is not None:
            return None
        self._status = TaskStatus.RUNNING
        return self._context()

    def record(self, execution: Execution) -> None:
        """Take down how the attempt ended, which settles the task or puts it off."""
        is_success = execution.stored.error is None
        next_due_at = None if is_success else self._retry_at(execution.error_code)
        self._attempts.append(self._attempt(execution, will_retry=next_due_at is not None))
        if next_due_at is not None:
            self._due_at = next_due_at
        else:
            self._end(TaskStatus.COMPLETED if is_success else TaskStatus.FAILED, execution.stored)

    def info(self) -> TaskInfo:
        """The row that the task would have, with everything that can be asked for."""
        payload, at = self._payload, self._due_at
        is_completed, is_failed = self._status is TaskStatus.COMPLETED, self._status is TaskStatus.FAILED
        error = self._ended.error if self._ended else None
        has_begun = bool(self._attempts) or self._status is TaskStatus.RUNNING
        return TaskInfo(
            task_id=payload.task_id,
            task_name=payload.task_name,
            status=self._status,
            queue_name=payload.queue_name,
            priority=payload.priority,
            retry_count=self._retry_count,
            max_retries=payload.max_retries,
            crash_count=0,
            flags=json.loads(payload.flags),
            sent_at=payload.sent_at,
            enqueued_at=at,
            claimed_at=at if has_begun else None,
            started_at=at if has_begun else None,
            completed_at=at if is_completed else None,
            failed_at=at if is_failed else None,
            good_until=payload.good_until,
            worker_id=self._worker_id if has_begun else None,
            error_code=error.error_code if error else None,
            result=self.result if self.has_ended else None,
            failed_reason=self._attempts[-1].failed_reason if self._attempts else None,
            attempts=self._attempts[::-1],
        )

    @property
    def _retry_count(self) -> int:
        return sum(attempt.will_retry for attempt in self._attempts)

    def _end(self, status: TaskStatus, stored: EncodedResult) -> None:
        self._status, self._ended = status, stored

    def _retry_at(self, code: str | None) -> datetime | None:
        chances = RetryState(
            policy=self.work.task.options.retry_policy,
            retry_count=self._retry_count,
            good_until=self._payload.good_until,
        )
        verdict = decide_retry(chances, code, now=self._due_at, jitter=0.0)
        return verdict.due_at if isinstance(verdict, RetryAt) else None

    def _context(self) -> TaskContext:
        payload, task = self._payload, self.work.task
        number = len(self._attempts) + 1
        return TaskContext(
            task_id=payload.task_id,
            task_name=payload.task_name,
            queue_name=payload.queue_name,
            attempt=number,
            retry_count=self._retry_count,
            claim_token=number,
            sent_at=payload.sent_at,
            good_until=payload.good_until,
            timeout_ms=task.options.timeout_ms,
            worker_id=self._worker_id,
            flags=json.loads(payload.flags),
            possible_overlap=False,
        )

    def _attempt(self, execution: Execution, *, will_retry: bool) -> TaskAttemptInfo:
        number = len(self._attempts) + 1
        return TaskAttemptInfo(
            task_id=self._payload.task_id,
            attempt=number,
            claim_token=number,
            outcome=execution.outcome,
            will_retry=will_retry,
            started_at=self._due_at,
            finished_at=self._due_at,
            error_code=execution.error_code,
            error_message=execution.error_message,
            failed_reason=execution.failed_reason,
            worker_id=self._worker_id,
        )


# Looking up tasks that ran where they were sent, for code that keeps ids.


class InlineTaskReader:
    """Answers as the database would if `runs`, by the id of their task, were its rows."""

    def __init__(self, tasks: Mapping[str, InlineTask]) -> None:
        self._tasks = tasks

    async def result(self, task_id: str | UUID, timeout_ms: float | None) -> AnyResult:
        """The result of a task that has ended. One that runs has its time-out at once: most likely it asks itself."""
        parse_timeout(timeout_ms)
        try:
            run = self._find(task_id)
        except ValueError:
            run = None
        if run is None:
            return stored_task_result(str(task_id), None, None)
        return run.result if run.has_ended else wait_timeout_result(str(task_id), TaskStatus.RUNNING)

    async def raw_result(self, task_id: str | UUID) -> BrokerResult[dict[str, object] | None]:
        return await to_broker_result(BrokerErrorCode.TASK_INFO_QUERY_FAILED, self._document(task_id))

    async def info(
        self, task_id: str | UUID, *, include_result: bool, include_failed_reason: bool, include_attempts: bool
    ) -> BrokerResult[TaskInfo | None]:
        asked = self._info(
            task_id,
            include_result=include_result,
            include_failed_reason=include_failed_reason,
            include_attempts=include_attempts,
        )
        return await to_broker_result(BrokerErrorCode.TASK_INFO_QUERY_FAILED, asked)

    async def _document(self, task_id: str | UUID) -> dict[str, object] | None:
        run = self._find(task_id)
        return json.loads(run.document) if run and run.has_ended else None

    async def _info(
        self, task_id: str | UUID, *, include_result: bool, include_failed_reason: bool, include_attempts: bool
    ) -> TaskInfo | None:
        run = self._find(task_id)
        if run is None:
            return None
        info = run.info()
        return replace(
            info,
            result=info.result if include_result else None,
            failed_reason=info.failed_reason if include_failed_reason else None,
            attempts=info.attempts if include_attempts else None,
        )

    def _find(self, task_id: str | UUID) -> InlineTask | None:
        """`ValueError` for what is no id."""
        return self._tasks.get(parse_id(str(task_id)))


@contextmanager
def inline(app: Horsies) -> Generator[list[TaskInfo]]:
    """Inside the block every send of `app` runs its task at once, with its retries, and returns a finished handle.

    Yields the list of tasks that have ended, in that order. Arguments and results take the way through their stored
    form; no delay is waited for and no time limit enforced. A blocking send runs its task in the calling thread.
    What `app` is asked of tasks by their ids is answered from here too, and not from its database.
    """
    delivery = InlineDelivery(rules_of(app.config))
    before = app.delivery, app.task_reader
    app.delivery, app.task_reader = delivery, delivery.reader
    try:
        yield delivery.ended
    finally:
        app.delivery, app.task_reader = before


class InlineDelivery:
    """Runs payloads instead of storing them; ids and idempotency keys are remembered as rows would be."""

    def __init__(self, rules: ExceptionRules) -> None:
        self.ended: list[TaskInfo] = []
        self._rules = rules
        self._worker_id = ID_GENERATOR.next_id()
        self._by_id: dict[str, TaskSendPayload] = {}
        self._by_key: dict[tuple[str, str], TaskSendPayload] = {}
        self._tasks: dict[str, InlineTask] = {}
        self.reader = InlineTaskReader(self._tasks)

    def deliver(self, task: TaskDefinition, send: AnyPayload) -> TaskSendResult[AnyHandle]:
        payload = to_full_payload(send)
        if (standing := self._existing(payload)) is not None:
            return standing
        run = self._begin(task, payload)
        while (attempt := run.next_attempt()) is not None:
            run.record(execute(run.work, attempt))
        return Ok(self._end(run))

    async def deliver_async(
        self,
        task: TaskDefinition,
        send: AnyPayload,
        connection: object | None,  # noqa: ARG002  # there is no transaction to be part of
    ) -> TaskSendResult[AnyHandle]:
        payload = to_full_payload(send)
        if (standing := self._existing(payload)) is not None:
            return standing
        run = self._begin(task, payload)
        while (attempt := run.next_attempt()) is not None:
            run.record(await execute_async(run.work, attempt))
        return Ok(self._end(run))

    def deliver_many(
        self, task: TaskDefinition, payloads: Sequence[TaskSendPayload]
    ) -> TaskSendResult[list[AnyHandle]]:
        return Ok([self.deliver(task, payload).unwrap() for payload in payloads])

    async def deliver_many_async(
        self, task: TaskDefinition, payloads: Sequence[TaskSendPayload], connection: object | None
    ) -> TaskSendResult[list[AnyHandle]]:
        return Ok([(await self.deliver_async(task, payload, connection)).unwrap() for payload in payloads])

    def _existing(self, payload: TaskSendPayload) -> TaskSendResult[AnyHandle] | None:
        """What an earlier send with the same id or key makes of this one; None where there is none."""
        # No key is empty, so that a send without one finds none.
        key = (payload.task_name, payload.idempotency_key or "")
        same_id, same_key = self._by_id.get(payload.task_id), self._by_key.get(key)
        rows = (_row(sent, has_same_key=sent is same_key) for sent in (same_id, same_key) if sent is not None)
        outcome, task_id = resolve_conflict(payload, rows)
        if outcome is SendOutcome.CONFLICT_GONE:
            return None
        refused = send_error_for(outcome, payload, task_id)
        return Ok(self._handle(self._tasks[task_id])) if refused is None else Err(refused)

    def _begin(self, task: TaskDefinition, payload: TaskSendPayload) -> InlineTask:
        self._by_id[payload.task_id] = payload
        if payload.idempotency_key is not None:
            self._by_key[payload.task_name, payload.idempotency_key] = payload
        run = self._tasks[payload.task_id] = InlineTask(task, payload, self._rules, worker_id=self._worker_id)
        return run

    def _end(self, run: InlineTask) -> AnyHandle:
        self.ended.append(run.info())
        return self._handle(run)

    def _handle(self, run: InlineTask) -> AnyHandle:
        # A task may send its own key again while it runs, and gets itself: a handle without a result yet.
        return TaskHandle(run.task_id, self.reader, known=run.result if run.has_ended else None)


def _row(sent: TaskSendPayload, *, has_same_key: bool) -> ConflictingTask:
    return ConflictingTask(
        id=UUID(sent.task_id),
        enqueue_sha=sent.enqueue_sha,
        command_sha=sent.command_sha,
        has_same_key=has_same_key,
    )
