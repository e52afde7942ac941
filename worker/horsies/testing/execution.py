"""One execution of a task in this process: from stored arguments to a stored result, as in a worker."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from horsies.codec.result import AnyResult, StoredResult, stored_result
from horsies.codec.value import PlainValue
from horsies.codec.wire import cleaned
from horsies.model.codes import BuiltInTaskCode, OperationalErrorCode
from horsies.model.mapping import ExceptionRules
from horsies.model.task import TaskAttemptOutcome
from horsies.model.task_error import TaskError, said_by
from horsies.model.task_result import TaskResult
from horsies.registry.calling import FAILURES, call, call_async
from horsies.registry.context import running
from horsies.registry.injection import decoded

if TYPE_CHECKING:
    from collections.abc import Callable

    from horsies.codec.task import Call, EncodedArguments
    from horsies.codec.value import Value
    from horsies.model.info import TaskContext
    from horsies.model.settings import AppConfig
    from horsies.registry import TaskDefinition


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How an execution ended, its result as it is stored."""

    stored: StoredResult
    outcome: TaskAttemptOutcome

    @property
    def error_code(self) -> str | None:
        return self.stored.error.error_code if self.stored.error else None

    @property
    def error_message(self) -> str | None:
        message = self.stored.error.message if self.stored.error else None
        return None if message is None else cleaned(message)

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
    ok_of: Callable[[str], Value | None] = lambda _: None
    """How the ok value of a task is read, by the task's name."""


def execute(work: Work, context: TaskContext) -> Execution:
    """Run a `def` task in the calling thread; an `async def` one gets a loop of its own."""
    if work.task.is_async:
        return asyncio.run(execute_async(work, context))
    with running(lambda: context):
        arguments = _decoded(work)
        if isinstance(arguments, Execution):
            return arguments
        return _ended(work, call(work.task, arguments.args, arguments.kwargs, app=work.rules))


async def execute_async(work: Work, context: TaskContext) -> Execution:
    """Run an `async def` task on the running loop; a `def` one in a thread, where it may block and send."""
    if not work.task.is_async:
        return await asyncio.to_thread(execute, work, context)
    with running(lambda: context):
        arguments = _decoded(work)
        if isinstance(arguments, Execution):
            return arguments
        return _ended(work, await call_async(work.task, arguments.args, arguments.kwargs, app=work.rules))


def worker_failure(code: BuiltInTaskCode, message: str) -> Execution:
    """An execution that came to nothing, and not by the task's own doing."""
    result: AnyResult = TaskResult(err=TaskError(error_code=code, message=message))
    return Execution(stored=stored_result(result, PlainValue()), outcome=TaskAttemptOutcome.WORKER_FAILURE)


def rules_of(config: AppConfig) -> ExceptionRules:
    return ExceptionRules(mapper=config.exception_mapper, default=config.default_unhandled_error_code)


def _decoded(work: Work) -> Call | Execution:
    try:
        args, kwargs = work.arguments
        return decoded(work.task.codec, args, kwargs, work.context, ok_of=work.ok_of)
    except FAILURES as error:  # validators are user code
        message = f"the stored arguments cannot be read: {said_by(str, error) or type(error).__qualname__}"
        return worker_failure(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message)


def _ended(work: Work, result: AnyResult) -> Execution:
    try:
        stored = stored_result(result, work.task.codec.ok)
    except FAILURES as error:  # so are serializers
        message = f"the result cannot be stored: {type(error).__qualname__}"
        return worker_failure(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message)
    if stored.error is None:
        return Execution(stored=stored, outcome=TaskAttemptOutcome.COMPLETED)
    # A success that could not be stored is no failure of the task's own.
    outcome = TaskAttemptOutcome.WORKER_FAILURE if result.is_ok() else TaskAttemptOutcome.FAILED
    return Execution(stored=stored, outcome=outcome)
