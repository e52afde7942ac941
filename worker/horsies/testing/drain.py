"""Run due tasks of a database in this process, for tests of what is really stored."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import SystemRandom
from typing import Any

from pydantic import ValidationError
from uuid_utils.compat import uuid7

from horsies.app import Horsies
from horsies.codec.arguments import DecodedArguments, EncodedArguments
from horsies.codec.canonical_json import replace_unstorable
from horsies.codec.results import AnyResult, EncodedResult, encode_result
from horsies.codec.values import PlainCodec, ValueCodec
from horsies.errors import ConfigurationError, ErrorCode, raise_together
from horsies.model.retry import GiveUp, RetryAt, RetryPolicy, RetryState, decide_retry
from horsies.model.settings import AppConfig
from horsies.model.task import TaskAttemptOutcome, TaskContext, expired_error
from horsies.model.task_result import (
    BuiltInTaskCode,
    ExceptionRules,
    OperationalErrorCode,
    TaskError,
    TaskResult,
    safe_stringify,
)
from horsies.registry import TaskDefinition
from horsies.registry.invocation import TASK_EXCEPTIONS, bind_current_task, call_task, call_task_async, decode_arguments
from horsies.store.connection import StatementFailed
from horsies.store.execution import ClaimedTask, ExecutionStore, FailedAttempt, Owner
from horsies.sync import BRIDGE
from horsies.workflows.outbox import OutboxProcessor

logger = logging.getLogger("horsies.testing")


def drain(app: Horsies, *, queues: Sequence[str] | None = None, limit: int | None = None) -> int:
    """Run due tasks of `queues` (None: all) until none is due, at most `limit` attempts; returns their number."""
    return BRIDGE.run(drain_async(app, queues=queues, limit=limit))


async def drain_async(app: Horsies, *, queues: Sequence[str] | None = None, limit: int | None = None) -> int:
    """Like `drain`, on the running event loop. Finally expires tasks past their `good_until`.

    Tasks sent meanwhile are run too, and workflow runs are advanced to their end. Tasks due later, such as retries with
    a delay, are left. Task timeouts are not enforced.
    """
    _check_queues(queues or (), app.get_valid_queue_names())
    app.import_task_modules()
    session = await app.get_broker().session()
    drainer = Drainer(app, ExecutionStore(session.database, Owner.current_process(uuid7())))
    outbox = OutboxProcessor(session.database, app.definitions)
    count = 0
    while limit is None or count < limit:
        # Before each claim: advancing a run may enqueue the task to run next.
        await outbox.process()
        if await drainer.run_next(queues):
            count += 1
        elif not await drainer.expire(queues):
            break
    await outbox.process()
    return count


@dataclass(frozen=True, slots=True)
class Drainer:
    """Claims tasks and runs them one after the other in this process."""

    app: Horsies
    store: ExecutionStore

    async def run_next(self, queues: Sequence[str] | None) -> bool:
        """Run one task and store its outcome; False if none was due."""
        # A queue with max_concurrency 0 is never served.
        excluded = [queue.name for queue in self.app.config.custom_queues or () if queue.max_concurrency == 0]
        task = await self.store.claim(queues=queues, excluded=excluded)
        if task is None:
            return False
        started_s = time.monotonic()
        outcome = await self._execute(task)
        # Database time, so that retries are not affected by a difference between the clocks.
        now = task.started_at + timedelta(seconds=time.monotonic() - started_s)
        if not await self._record(task, outcome, now):
            logger.warning("claim lost while the task was running, outcome discarded", extra={"task_id": str(task.id)})
        return True

    async def expire(self, queues: Sequence[str] | None) -> bool:
        """Expire tasks past their good_until; returns whether there were any."""
        has_expired = False
        while overdue := await self.store.overdue(queues=queues):
            errors = {row.id: expired_error(task_id=str(row.id), good_until=row.good_until) for row in overdue}
            await self.store.expire(
                {id_: encode_result(TaskResult(err=error), PlainCodec()).document for id_, error in errors.items()}
            )
            has_expired = True
        return has_expired

    async def _execute(self, task: ClaimedTask) -> AttemptOutcome:
        known = self.app.tasks.get(task.task_name)
        if known is None:
            message = f"no task named {task.task_name!r} in this app"
            return worker_failure(OperationalErrorCode.WORKER_RESOLUTION_ERROR, message)
        arguments = EncodedArguments(args_json=task.args, kwargs_json=task.kwargs)
        call = TaskCall(
            task=known.definition,
            arguments=arguments,
            rules=exception_rules(self.app.config),
            context=task.context,
            result_codec_for=self.app.get_broker().result_codec_for,
        )
        return await execute_async(call, _context(task, self.store.owner))

    async def _record(self, task: ClaimedTask, outcome: AttemptOutcome, now: datetime) -> bool:
        try:
            return await self._store(task, outcome, now)
        except StatementFailed as error:
            if error.retryable:
                raise
            # The server will never accept this result, but the task must end.
            message = f"the database rejected the result: {error.message}"
            failure = worker_failure(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message)
            return await self._store(task, failure, now)

    async def _store(self, task: ClaimedTask, outcome: AttemptOutcome, now: datetime) -> bool:
        stored = outcome.stored
        if stored.error is None:
            return await self.store.complete(task, stored.document)
        failure = FailedAttempt(
            outcome=outcome.outcome,
            error_code=outcome.error_code,
            message=outcome.error_message,
            failed_reason=outcome.failed_reason,
        )
        # The policy sent with the task applies, not the one in the code, which may have changed since.
        retry_state = RetryState(policy=_retry_policy(task), retry_count=task.retry_count, good_until=task.good_until)
        match decide_retry(retry_state, failure.error_code, now=now, jitter=SystemRandom().random()):
            case RetryAt(due_at):
                return await self.store.retry(task, due_at, failure)
            case GiveUp():
                return await self.store.fail(task, stored.document, failure)


def _check_queues(queues: Iterable[str], configured: Sequence[str]) -> None:
    """Raise for unknown queues: a typo would look like a queue without due tasks."""
    hint = f"the app has: {', '.join(configured)}"
    unknown = [name for name in queues if name not in configured]
    raise_together(
        "queues",
        [ConfigurationError(f"no queue {name!r}", code=ErrorCode.TASK_INVALID_QUEUE, hint=hint) for name in unknown],
    )


def _options(task: ClaimedTask) -> dict[str, Any]:
    return json.loads(task.task_options)


def _retry_policy(task: ClaimedTask) -> RetryPolicy | None:
    """Retry policy sent with the task; None if there is none or it is invalid."""
    try:
        return RetryPolicy.model_validate(_options(task)["retry_policy"])
    except (KeyError, ValidationError):
        return None


def _context(task: ClaimedTask, owner: Owner) -> TaskContext:
    return TaskContext(
        task_id=str(task.id),
        task_name=task.task_name,
        queue_name=task.queue_name,
        attempt=task.attempts + 1,
        retry_count=task.retry_count,
        claim_token=task.claim_token,
        sent_at=task.sent_at,
        good_until=task.good_until,
        timeout_ms=_options(task).get("timeout_ms"),
        worker_id=str(owner.worker_id),
        flags=json.loads(task.flags),
        possible_overlap=task.overlap_possible,
    )


# One attempt in this process: from stored arguments to a result in stored form, as in a worker.


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOutcome:
    """Outcome of an attempt, with its result in stored form."""

    stored: EncodedResult
    outcome: TaskAttemptOutcome

    @property
    def error_code(self) -> str | None:
        return self.stored.error.error_code if self.stored.error else None

    @property
    def error_message(self) -> str | None:
        message = self.stored.error.message if self.stored.error else None
        return None if message is None else replace_unstorable(message)

    @property
    def failed_reason(self) -> str | None:
        """Why the attempt failed outside the task's code; None otherwise."""
        return self.error_message if self.outcome is TaskAttemptOutcome.WORKER_FAILURE else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCall:
    """A task to run with stored arguments."""

    task: TaskDefinition
    arguments: EncodedArguments
    rules: ExceptionRules
    context: str | None = None
    """Workflow context (JSON) that is injected into the call."""
    result_codec_for: Callable[[str], ValueCodec | None] = lambda _: None
    """Codec of a task's ok value, by task name."""


def execute(call: TaskCall, context: TaskContext) -> AttemptOutcome:
    """Run a `def` task in the calling thread, an `async def` task in a new event loop."""
    if call.task.is_async:
        return asyncio.run(execute_async(call, context))
    with bind_current_task(lambda: context):
        arguments = _decode_arguments(call)
        if isinstance(arguments, AttemptOutcome):
            return arguments
        return _encode_outcome(call, call_task(call.task, arguments.args, arguments.kwargs, app=call.rules))


async def execute_async(call: TaskCall, context: TaskContext) -> AttemptOutcome:
    """Run an `async def` task on the running loop, a `def` task in a thread, where it may block and send."""
    if not call.task.is_async:
        return await asyncio.to_thread(execute, call, context)
    with bind_current_task(lambda: context):
        arguments = _decode_arguments(call)
        if isinstance(arguments, AttemptOutcome):
            return arguments
        return _encode_outcome(call, await call_task_async(call.task, arguments.args, arguments.kwargs, app=call.rules))


def worker_failure(code: BuiltInTaskCode, message: str) -> AttemptOutcome:
    """The outcome of an attempt that failed outside the task's code."""
    result: AnyResult = TaskResult(err=TaskError(error_code=code, message=message))
    return AttemptOutcome(stored=encode_result(result, PlainCodec()), outcome=TaskAttemptOutcome.WORKER_FAILURE)


def exception_rules(config: AppConfig) -> ExceptionRules:
    return ExceptionRules(mapper=config.exception_mapper, default=config.default_unhandled_error_code)


def _decode_arguments(call: TaskCall) -> DecodedArguments | AttemptOutcome:
    try:
        args, kwargs = call.arguments
        return decode_arguments(call.task.codec, args, kwargs, call.context, result_codec_for=call.result_codec_for)
    except TASK_EXCEPTIONS as error:  # validators are user code
        message = f"cannot decode the stored arguments: {safe_stringify(str, error) or type(error).__qualname__}"
        return worker_failure(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message)


def _encode_outcome(call: TaskCall, result: AnyResult) -> AttemptOutcome:
    try:
        stored = encode_result(result, call.task.codec.result_codec)
    except TASK_EXCEPTIONS as error:  # serializers are user code
        message = f"cannot encode the result: {type(error).__qualname__}"
        return worker_failure(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message)
    if stored.error is None:
        return AttemptOutcome(stored=stored, outcome=TaskAttemptOutcome.COMPLETED)
    # If an ok value could not be stored, the failure is not the task's.
    outcome = TaskAttemptOutcome.WORKER_FAILURE if result.is_ok() else TaskAttemptOutcome.FAILED
    return AttemptOutcome(stored=stored, outcome=outcome)
