"""Inline mode: a send runs its task immediately, for tests without a database; and a clock that fires schedules."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any, Unpack
from uuid import UUID

from uuid_utils import uuid7

from horsies.app import Horsies
from horsies.client.delivery import AnyHandle, send_error_for
from horsies.client.results import WaitTimeout, broker_result, parse_timeout, stored_task_result, wait_timeout_result
from horsies.client.schedules import encode_schedules
from horsies.client.task import TaskHandle
from horsies.codec.results import AnyResult, decode_result, error_document
from horsies.engine.child.runner import Attempt, TaskExecutor
from horsies.engine.pool.protocol import (
    Assignment,
    EncodedOutcome,
    TaskDetails,
    encode_details,
    scheduled_context,
)
from horsies.errors import BrokerErrorCode
from horsies.model.result import Err, Ok
from horsies.model.retry import AttemptState, Cause, Retry, decide_retry, has_expired, stored_policy
from horsies.model.send import (
    BulkPayload,
    ConflictingTask,
    SendOutcome,
    TaskSendPayload,
    TaskSendResult,
    resolve_conflict,
)
from horsies.model.settings import TaskSchedule
from horsies.model.task import (
    InfoParts,
    ScheduledSlot,
    TaskAttemptInfo,
    TaskAttemptOutcome,
    TaskInfo,
    TaskStatus,
    expired_error,
    parse_id,
)
from horsies.registry import TaskDefinition

SCHEDULED_SLOT: ContextVar[ScheduledSlot | None] = ContextVar("horsies_scheduled_slot", default=None)
"""The slot that the inline sends of `clock` belong to."""


@contextmanager
def inline(app: Horsies) -> Generator[list[TaskInfo]]:
    """Inside the block, each send of `app` runs its task immediately, with retries, and returns a finished handle.

    Yields the list of finished tasks, in order. Arguments and results are encoded and decoded as for the database;
    delays are skipped and timeouts not enforced. A blocking send runs its task in the calling thread. Reads by task id
    are answered from the inline tasks, not from the database.
    """
    delivery = InlineDelivery(app)
    previous = app.delivery, app.task_reader
    app.delivery, app.task_reader = delivery, delivery.reader
    try:
        yield delivery.ended
    finally:
        app.delivery, app.task_reader = previous


class InlineDelivery:
    """Runs tasks instead of storing them; keeps ids and idempotency keys as the database would."""

    def __init__(self, app: Horsies) -> None:
        self.ended: list[TaskInfo] = []
        self._app = app
        self._worker_id = str(uuid7())
        self._tasks: dict[str, InlineTask] = {}
        self._by_key: dict[tuple[str, str], InlineTask] = {}
        self.reader = InlineTaskReader(self._tasks)

    def deliver(self, task: TaskDefinition, payload: TaskSendPayload) -> TaskSendResult[AnyHandle]:
        if (existing := self._existing(payload)) is not None:
            return existing
        inline_task = self._start(task, payload)
        executor = TaskExecutor(self._app)
        while (attempt := inline_task.next_attempt()) is not None:
            is_async = executor.is_async(attempt)
            inline_task.record(asyncio.run(executor.run_async(attempt)) if is_async else executor.run(attempt))
        return Ok(self._finish(inline_task))

    async def deliver_async(
        self,
        task: TaskDefinition,
        payload: TaskSendPayload,
        connection: object | None,  # noqa: ARG002  # there is no transaction to join
    ) -> TaskSendResult[AnyHandle]:
        if (existing := self._existing(payload)) is not None:
            return existing
        inline_task = self._start(task, payload)
        executor = TaskExecutor(self._app)
        while (attempt := inline_task.next_attempt()) is not None:
            is_async = executor.is_async(attempt)
            # A `def` task runs in a thread, where it may block and send.
            run = executor.run_async(attempt) if is_async else asyncio.to_thread(executor.run, attempt)
            inline_task.record(await run)
        return Ok(self._finish(inline_task))

    def deliver_many(self, task: TaskDefinition, bulk: BulkPayload) -> TaskSendResult[list[AnyHandle]]:
        return Ok([self.deliver(task, payload).unwrap() for payload in bulk])

    async def deliver_many_async(
        self, task: TaskDefinition, bulk: BulkPayload, connection: object | None
    ) -> TaskSendResult[list[AnyHandle]]:
        return Ok([(await self.deliver_async(task, payload, connection)).unwrap() for payload in bulk])

    def _existing(self, payload: TaskSendPayload) -> TaskSendResult[AnyHandle] | None:
        """Result of a send whose id or key was sent before; None if it is new."""
        # Keys are never empty, so a send without a key matches nothing.
        key = (payload.task_name, payload.idempotency_key or "")
        same_id, same_key = self._tasks.get(payload.task_id), self._by_key.get(key)
        rows = (
            ConflictingTask(
                id=UUID(sent.payload.task_id),
                enqueue_sha=sent.payload.enqueue_sha,
                command_sha=sent.payload.command_sha,
                has_same_key=sent is same_key,
            )
            for sent in (same_id, same_key)
            if sent is not None
        )
        outcome, task_id = resolve_conflict(payload, rows)
        if outcome is SendOutcome.CONFLICT_GONE:  # no row conflicts: the task is new
            return None
        error = send_error_for(outcome, payload, task_id)
        return Ok(self._handle(self._tasks[task_id])) if error is None else Err(error)

    def _start(self, task: TaskDefinition, payload: TaskSendPayload) -> InlineTask:
        inline_task = self._tasks[payload.task_id] = InlineTask(task, payload, worker_id=self._worker_id)
        if payload.idempotency_key is not None:
            self._by_key[payload.task_name, payload.idempotency_key] = inline_task
        return inline_task

    def _finish(self, inline_task: InlineTask) -> AnyHandle:
        self.ended.append(inline_task.info())
        return self._handle(inline_task)

    def _handle(self, inline_task: InlineTask) -> AnyHandle:
        # A running task may send its own key again and gets a handle to itself, without a result.
        known = inline_task.result if inline_task.has_ended else None
        return TaskHandle(inline_task.payload.task_id, self.reader, known=known)


class InlineTask:
    """State of one task through its attempts, without a queue.

    Delays are simulated: each attempt gets the time at which it would have been due, so `good_until` ends the task
    after the same attempts as in a worker without jitter.
    """

    def __init__(self, task: TaskDefinition, payload: TaskSendPayload, *, worker_id: str) -> None:
        self.payload = payload
        self._task = task
        self._options: dict[str, object] = json.loads(payload.task_options)
        self._worker_id = worker_id
        self._due_at = payload.sent_at + timedelta(seconds=payload.enqueue_delay_seconds or 0)
        self._attempts: list[TaskAttemptInfo] = []
        self._document: str | None = None
        self._status = TaskStatus.PENDING

    @property
    def has_ended(self) -> bool:
        return self._document is not None

    @property
    def document(self) -> str:
        """Result in stored form; only after the task has ended."""
        assert self._document is not None  # noqa: S101
        return self._document

    @property
    def result(self) -> AnyResult:
        """Decoded result; only after the task has ended."""
        return decode_result(self.document, self._task.codec.result_codec)

    def next_attempt(self) -> Attempt | None:
        """The attempt to run now; None once the task has ended."""
        good_until = self.payload.good_until
        if not self.has_ended and good_until is not None and has_expired(good_until, self._due_at):
            error = expired_error(task_id=self.payload.task_id, good_until=good_until)
            self._status, self._document = TaskStatus.EXPIRED, error_document(error)
        if self.has_ended:
            return None
        self._status = TaskStatus.RUNNING
        return self._attempt()

    def record(self, outcome: EncodedOutcome) -> None:
        """Record the outcome of an attempt: ends the task or schedules its retry."""
        is_success = outcome.outcome is TaskAttemptOutcome.COMPLETED
        next_due_at = None if is_success else self._retry_at(outcome.error_code)
        self._attempts.append(self._attempt_info(outcome, will_retry=next_due_at is not None))
        if next_due_at is not None:
            self._due_at = next_due_at
        else:
            self._status = TaskStatus.COMPLETED if is_success else TaskStatus.FAILED
            self._document = outcome.document

    def info(self) -> TaskInfo:
        """Full info of the task, as the database would return it."""
        payload, at = self.payload, self._due_at
        is_completed, is_failed = self._status is TaskStatus.COMPLETED, self._status is TaskStatus.FAILED
        error = self.result.err if self.has_ended else None
        has_started = bool(self._attempts) or self._status is TaskStatus.RUNNING
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
            claimed_at=at if has_started else None,
            started_at=at if has_started else None,
            completed_at=at if is_completed else None,
            failed_at=at if is_failed else None,
            good_until=payload.good_until,
            worker_id=self._worker_id if has_started else None,
            error_code=error.error_code if error else None,
            result=self.result if self.has_ended else None,
            attempts=self._attempts[::-1],
        )

    @property
    def _retry_count(self) -> int:
        return sum(attempt.will_retry for attempt in self._attempts)

    def _retry_at(self, code: str | None) -> datetime | None:
        state = AttemptState(
            policy=stored_policy(self._options), retry_count=self._retry_count, good_until=self.payload.good_until
        )
        # No jitter, so that tests are repeatable.
        decision = decide_retry(state, Cause(code=code), now=self._due_at, jitter=0.0)
        return decision.at if isinstance(decision, Retry) else None

    def _attempt(self) -> Attempt:
        payload = self.payload
        number = len(self._attempts) + 1
        details = TaskDetails(
            task_options=self._options,
            flags=json.loads(payload.flags),
            retry_count=self._retry_count,
            attempts=number - 1,
            good_until=payload.good_until,
            context=scheduled_context(SCHEDULED_SLOT.get()),
        )
        assignment = Assignment(
            task_id=payload.task_id,
            claim_token=number,
            task_name=payload.task_name,
            queue_name=payload.queue_name,
            args=payload.args,
            kwargs=payload.kwargs,
            sent_at=payload.sent_at,
            details=encode_details(details),
        )
        return Attempt(assignment, self._worker_id)

    def _attempt_info(self, outcome: EncodedOutcome, *, will_retry: bool) -> TaskAttemptInfo:
        number = len(self._attempts) + 1
        return TaskAttemptInfo(
            task_id=self.payload.task_id,
            attempt=number,
            claim_token=number,
            outcome=outcome.outcome,
            will_retry=will_retry,
            started_at=self._due_at,
            finished_at=self._due_at,
            error_code=outcome.error_code,
            error_message=outcome.error_message,
            worker_id=self._worker_id,
        )


class InlineTaskReader:
    """Reads of inline tasks by id, in place of database queries."""

    def __init__(self, tasks: Mapping[str, InlineTask]) -> None:
        self._tasks = tasks

    async def result(self, task_id: str | UUID, timeout_ms: float | None) -> AnyResult:
        """Result of a finished task. For a running one returns a wait timeout at once: the task waits for itself."""
        parse_timeout(timeout_ms)
        try:
            task = self._find(task_id)
        except ValueError:
            task = None
        if task is None:
            return stored_task_result(str(task_id), None, None)
        if task.has_ended:
            return task.result
        return wait_timeout_result(f"task {task_id}", WaitTimeout(TaskStatus.RUNNING, seen_s_ago=0))

    @broker_result(BrokerErrorCode.TASK_INFO_QUERY_FAILED)
    async def raw_result(self, task_id: str | UUID) -> dict[str, object] | None:
        task = self._find(task_id)
        return json.loads(task.document) if task and task.has_ended else None

    @broker_result(BrokerErrorCode.TASK_INFO_QUERY_FAILED)
    async def info(self, task_id: str | UUID, **parts: Unpack[InfoParts]) -> TaskInfo | None:
        task = self._find(task_id)
        left_out = [part for part in ("result", "failed_reason", "attempts") if not parts.get(f"include_{part}")]
        return None if task is None else replace(task.info(), **dict.fromkeys(left_out))

    def _find(self, task_id: str | UUID) -> InlineTask | None:
        """Find a task; ValueError if `task_id` is not a valid id."""
        return self._tasks.get(parse_id(str(task_id)))


# Schedules: a clock that is moved by hand


@dataclass(frozen=True, slots=True, kw_only=True)
class FiredSlot:
    """A slot that fired; `handle` has the result of its task, None for a workflow, which does not run inline."""

    schedule: str
    slot_at: datetime
    handle: TaskHandle[Any] | None


class ScheduleClock:
    """A clock that fires the schedules of an app when it is moved forward."""

    def __init__(self, app: Horsies, at: datetime) -> None:
        self.now = at.astimezone(UTC)
        self._app = app
        schedules = app.get_schedules()
        encoded = encode_schedules(app, schedules)
        # The grid of an interval begins when the clock starts, as it does when a schedule is first stored.
        self._schedules = [
            (schedule, definition.policy.anchored(self.now))
            for schedule, definition in zip(schedules, encoded.definitions, strict=True)
            if definition.enabled
        ]
        self._previous: dict[str, datetime] = {}

    def advance(self, **duration: float) -> list[FiredSlot]:
        """Move the clock, as in `advance(hours=3)`, and fire the slots up to the new time, in order."""
        before, self.now = self.now, self.now + timedelta(**duration)
        due: list[tuple[datetime, TaskSchedule]] = []
        for schedule, policy in self._schedules:
            first = policy.next_slot(before)
            slots = takewhile(lambda slot: slot <= self.now, policy.slots_from(first)) if first else ()
            due += [(slot, schedule) for slot in slots]
        return [self._fire(schedule, slot) for slot, schedule in sorted(due, key=lambda pair: pair[0])]

    def _fire(self, schedule: TaskSchedule, slot: datetime) -> FiredSlot:
        context = ScheduledSlot(
            name=schedule.name, slot_at=slot, previous_slot_at=self._previous.get(schedule.name), fired_at=slot
        )
        self._previous[schedule.name] = slot
        handle = None
        if schedule.task_name is not None:
            token = SCHEDULED_SLOT.set(context)
            try:
                handle = self._app.tasks[schedule.task_name].send(*schedule.args, **schedule.kwargs).unwrap()
            finally:
                SCHEDULED_SLOT.reset(token)
        return FiredSlot(schedule=schedule.name, slot_at=slot, handle=handle)


@contextmanager
def clock(app: Horsies, *, at: datetime) -> Generator[ScheduleClock]:
    """Start a clock at this instant; inside the block, sends run inline, without a database."""
    with inline(app):
        yield ScheduleClock(app, at)
