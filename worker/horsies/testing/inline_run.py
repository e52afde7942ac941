"""A task on its way through its attempts, without a queue and without waiting."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING

from horsies.codec.result import AnyResult, StoredResult, read_result, stored_result
from horsies.codec.task import EncodedArguments
from horsies.model.expiry import expired_error, has_expired
from horsies.model.info import TaskAttemptInfo, TaskContext, TaskInfo
from horsies.model.retry import Chances, RetryAt, decide_retry
from horsies.model.task import TaskStatus
from horsies.model.task_result import TaskResult
from horsies.testing.execution import Execution, Work

if TYPE_CHECKING:
    from datetime import datetime

    from horsies.model.mapping import ExceptionRules
    from horsies.model.sending import TaskSendPayload
    from horsies.registry import TaskDefinition


class InlineRun:
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
        self._ended: StoredResult | None = None
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
        return read_result(self.document, self.work.task.codec.ok)

    def next_attempt(self) -> TaskContext | None:
        """The attempt that is to be made now; None once the task has ended."""
        good_until = self._payload.good_until
        if self._ended is None and good_until is not None and has_expired(good_until, self._due_at):
            error = expired_error(task_id=self._payload.task_id, good_until=good_until)
            self._end(TaskStatus.EXPIRED, stored_result(TaskResult(err=error), self.work.task.codec.ok))
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

    def _end(self, status: TaskStatus, stored: StoredResult) -> None:
        self._status, self._ended = status, stored

    def _retry_at(self, code: str | None) -> datetime | None:
        chances = Chances(
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
