"""Running what is due in the database, in this process, for tests that look at what is really stored."""

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

from horsies.app import Horsies
from horsies.codec.arguments import DecodedArguments, EncodedArguments
from horsies.codec.canonical_json import replace_unstorable
from horsies.codec.ids import ID_GENERATOR
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
from horsies.workflows.children import OutboxProcessor

# One execution of a task in this process: from stored arguments to a stored result, as in a worker.


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How an execution ended, its result as it is stored."""

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
        """What kept a worker from producing an outcome; None where the task's own code decided."""
        return self.error_message if self.outcome is TaskAttemptOutcome.WORKER_FAILURE else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A task that is to be run with stored arguments."""

    task: TaskDefinition
    arguments: EncodedArguments
    rules: ExceptionRules
    """What the app says about exceptions."""
    context: str | None = None
    """What a workflow adds to the arguments, in stored form."""
    ok_of: Callable[[str], ValueCodec | None] = lambda _: None
    """How the ok value of a task is read, by the task's name."""


def execute(work: Work, context: TaskContext) -> Execution:
    """Run a `def` task in the calling thread; an `async def` one gets a loop of its own."""
    if work.task.is_async:
        return asyncio.run(execute_async(work, context))
    with bind_current_task(lambda: context):
        arguments = _decoded(work)
        if isinstance(arguments, Execution):
            return arguments
        return _ended(work, call_task(work.task, arguments.args, arguments.kwargs, app=work.rules))


async def execute_async(work: Work, context: TaskContext) -> Execution:
    """Run an `async def` task on the running loop; a `def` one in a thread, where it may block and send."""
    if not work.task.is_async:
        return await asyncio.to_thread(execute, work, context)
    with bind_current_task(lambda: context):
        arguments = _decoded(work)
        if isinstance(arguments, Execution):
            return arguments
        return _ended(work, await call_task_async(work.task, arguments.args, arguments.kwargs, app=work.rules))


def worker_failure(code: BuiltInTaskCode, message: str) -> Execution:
    """An execution that came to nothing, and not by the task's own doing."""
    result: AnyResult = TaskResult(err=TaskError(error_code=code, message=message))
    return Execution(stored=encode_result(result, PlainCodec()), outcome=TaskAttemptOutcome.WORKER_FAILURE)


def rules_of(config: AppConfig) -> ExceptionRules:
    return ExceptionRules(mapper=config.exception_mapper, default=config.default_unhandled_error_code)


def _decoded(work: Work) -> DecodedArguments | Execution:
    try:
        args, kwargs = work.arguments
        return decode_arguments(work.task.codec, args, kwargs, work.context, result_codec_for=work.ok_of)
    except TASK_EXCEPTIONS as error:  # validators are user code
        message = f"the stored arguments cannot be read: {safe_stringify(str, error) or type(error).__qualname__}"
        return worker_failure(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message)


def _ended(work: Work, result: AnyResult) -> Execution:
    try:
        stored = encode_result(result, work.task.codec.result_codec)
    except TASK_EXCEPTIONS as error:  # so are serializers
        message = f"the result cannot be stored: {type(error).__qualname__}"
        return worker_failure(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message)
    if stored.error is None:
        return Execution(stored=stored, outcome=TaskAttemptOutcome.COMPLETED)
    # A success that could not be stored is no failure of the task's own.
    outcome = TaskAttemptOutcome.WORKER_FAILURE if result.is_ok() else TaskAttemptOutcome.FAILED
    return Execution(stored=stored, outcome=outcome)


logger = logging.getLogger("horsies.testing")


def drain(app: Horsies, *, queues: Sequence[str] | None = None, limit: int | None = None) -> int:
    """Run what is due in `queues` (None: in all) until nothing is, at most `limit` times; returns how often one ran."""
    return BRIDGE.run(drain_async(app, queues=queues, limit=limit))


async def drain_async(app: Horsies, *, queues: Sequence[str] | None = None, limit: int | None = None) -> int:
    """The same, on the running loop. Tasks that are past their `good_until` are expired in the end.

    What a task sends meanwhile is run too, and runs of workflows go on to their end; what is due later, a retry for
    instance, is left. No time limit is enforced.
    """
    _refuse_unknown(queues or (), app.get_valid_queue_names())
    app.import_task_modules()
    session = await app.get_broker().session()
    drained = Drainer(app, ExecutionStore(session.database, Owner.current_process(ID_GENERATOR.next_uuid())))
    outbox = OutboxProcessor(session.database, app.definitions)
    count = 0
    while limit is None or count < limit:
        await outbox.process()
        if await drained.run_next(queues):
            count += 1
        elif not await drained.expire(queues):
            break
    await outbox.process()
    return count


@dataclass(frozen=True, slots=True)
class Drainer:
    """One owner of tasks, who runs them one after the other."""

    app: Horsies
    store: ExecutionStore

    async def run_next(self, queues: Sequence[str] | None) -> bool:
        """Run one task and store how it ended; False where none was due."""
        task = await self.store.claim(queues=queues, excluded=self._closed_queues())
        if task is None:
            return False
        began_s = time.monotonic()
        execution = await self._execute(task)
        # Instants are the database's; between two of its own, our clock measures.
        now = task.started_at + timedelta(seconds=time.monotonic() - began_s)
        if not await self._record(task, execution, now):
            logger.warning("task %s was taken away while it ran here; its outcome is not stored", task.id)
        return True

    async def expire(self, queues: Sequence[str] | None) -> bool:
        """End what is past its good_until; whether there was any."""
        is_any = False
        while overdue := await self.store.overdue(queues=queues):
            errors = {each.id: expired_error(task_id=str(each.id), good_until=each.good_until) for each in overdue}
            await self.store.expire(
                {id_: encode_result(TaskResult(err=error), PlainCodec()).document for id_, error in errors.items()}
            )
            is_any = True
        return is_any

    def _closed_queues(self) -> list[str]:
        return [queue.name for queue in self.app.config.custom_queues or () if queue.max_concurrency == 0]

    async def _execute(self, task: ClaimedTask) -> Execution:
        known = self.app.tasks.get(task.task_name)
        if known is None:
            message = f"no task is called {task.task_name!r} in this app"
            return worker_failure(OperationalErrorCode.WORKER_RESOLUTION_ERROR, message)
        arguments = EncodedArguments(args_json=task.args, kwargs_json=task.kwargs)
        work = Work(
            task=known.definition,
            arguments=arguments,
            rules=rules_of(self.app.config),
            context=task.context,
            ok_of=self.app.get_broker().result_codec_for,
        )
        return await execute_async(work, _context(task, self.store.owner))

    async def _record(self, task: ClaimedTask, execution: Execution, now: datetime) -> bool:
        try:
            return await self._store(task, execution, now)
        except StatementFailed as refused:
            if refused.retryable:
                raise
            # The server will never take this result, and the task must come to an end.
            message = f"the server refused the result: {refused.message}"
            instead = worker_failure(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message)
            return await self._store(task, instead, now)

    async def _store(self, task: ClaimedTask, execution: Execution, now: datetime) -> bool:
        stored = execution.stored
        if stored.error is None:
            return await self.store.complete(task, stored.document)
        failure = _failure(execution)
        chances = RetryState(policy=_policy(task), retry_count=task.retry_count, good_until=task.good_until)
        match decide_retry(chances, failure.error_code, now=now, jitter=SystemRandom().random()):
            case RetryAt(due_at):
                return await self.store.retry(task, due_at, failure)
            case GiveUp():
                return await self.store.fail(task, stored.document, failure)


def _refuse_unknown(queues: Iterable[str], configured: Sequence[str]) -> None:
    """A mistyped queue would look like one in which nothing is due."""
    hint = f"the app has: {', '.join(configured)}"
    unknown = [name for name in queues if name not in configured]
    raise_together(
        "queues",
        [ConfigurationError(f"no queue {name!r}", code=ErrorCode.TASK_INVALID_QUEUE, hint=hint) for name in unknown],
    )


def _failure(execution: Execution) -> FailedAttempt:
    return FailedAttempt(
        outcome=execution.outcome,
        error_code=execution.error_code,
        message=execution.error_message,
        failed_reason=execution.failed_reason,
    )


def _options(task: ClaimedTask) -> dict[str, Any]:
    return json.loads(task.task_options)


def _policy(task: ClaimedTask) -> RetryPolicy | None:
    """The policy that was sent with the task; one that makes no sense is none."""
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
