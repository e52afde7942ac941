"""Runs attempts in a child: in the order received, each from the lookup of its task to its encoded outcome.

The main thread runs tasks; a second thread handles commands from the worker. Every failure of a task is an outcome.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, assert_never

from horsies.codec.arguments import DecodedArguments
from horsies.codec.canonical_json import replace_unstorable, utf8_length
from horsies.codec.results import AnyResult, encode_result
from horsies.codec.values import PlainCodec, ValueCodec
from horsies.engine.child import lifetime
from horsies.engine.child.lifetime import exit_with
from horsies.engine.pool.protocol import (
    MAX_REPORT_BYTES,
    OUTPUT_LOGGER,
    Assignment,
    AttemptKey,
    CancelTask,
    Command,
    EncodedOutcome,
    ExitStatus,
    HeartbeatAck,
    Quit,
    Recall,
    Recalled,
    RunTasks,
    StartChild,
    TaskRef,
    parse_details,
)
from horsies.model.settings import AppConfig
from horsies.model.task import TaskAttemptOutcome, TaskContext
from horsies.model.task_result import (
    BuiltInTaskCode,
    ExceptionRules,
    OperationalErrorCode,
    OutcomeCode,
    TaskError,
    TaskResult,
    cut_text,
    error_code_for,
    safe_stringify,
    task_error_from,
)
from horsies.registry import TaskDefinition
from horsies.registry.definition import HasDefinition
from horsies.registry.invocation import CURRENT_TASK, call_task, call_task_async, decode_arguments

if TYPE_CHECKING:
    from horsies.engine.child.coroutines import CoroutineRunner
    from horsies.engine.child.lifetime import ParentWatchdog
    from horsies.engine.child.reports import AttemptReporter, ParentChannel

logger = logging.getLogger(OUTPUT_LOGGER)

MAX_DOCUMENT_BYTES = MAX_REPORT_BYTES - 1024 * 1024  # the rest is for the error message and the other fields
MAX_CODE_CHARS = 255
MAX_TRACEBACKS = 10
"""How often a child logs one exception of one task in `TRACEBACK_WINDOW_S`."""
TRACEBACK_WINDOW_S = 60.0
_SMALL_DOCUMENT_CHARS = MAX_DOCUMENT_BYTES // 4  # a character has at most four bytes


class Runner:
    """Runs assignments until the inbox is closed and empty: functions one at a time, coroutines concurrently.

    Functions never run inside the event loop, since they may block or run a loop of their own. All coroutines share one
    loop, so connections made in it stay usable; after the first coroutine the child also waits inside that loop.
    """

    def __init__(
        self, inbox: Inbox, executor: TaskExecutor, reporter: AttemptReporter, *, async_concurrency: int
    ) -> None:
        self._inbox = inbox
        self._executor = executor
        self._reporter = reporter
        self._async_concurrency = async_concurrency
        self._coroutines: CoroutineRunner | None = None
        """Built for the first coroutine: it imports asyncio, which takes 3 MB."""
        lifetime.mark_forks()

    def run(self) -> None:
        with contextlib.ExitStack() as stack:
            while not self._inbox.is_exhausted:
                if self._run_functions() and self._coroutines is None:
                    self._coroutines = self._coroutine_runner()
                    stack.callback(self._coroutines.close)
                if self._coroutines is not None:
                    self._coroutines.run()
                else:
                    self._inbox.wait()

    def cancel(self, ref: TaskRef) -> None:
        """Cancel a coroutine, from any thread; has no effect on a function."""
        if self._coroutines is not None:
            self._coroutines.cancel(ref)

    def _coroutine_runner(self) -> CoroutineRunner:
        from horsies.engine.child.coroutines import CoroutineRunner

        return CoroutineRunner(self._inbox, self._executor, self._reporter, limit=self._async_concurrency)

    def _run_functions(self) -> bool:
        """Run functions up to the first coroutine; returns whether there is one."""
        inbox, executor, reporter = self._inbox, self._executor, self._reporter
        while (attempt := inbox.head()) is not None and not executor.is_async(attempt):
            if not inbox.take(attempt):
                continue
            reporter.begin(attempt)
            try:
                outcome = executor.run(attempt)
            except MemoryError:
                exit_with(ExitStatus.OUT_OF_MEMORY)
            reporter.end(attempt, outcome)
        reporter.flush()
        return attempt is not None


class Inbox:
    """Attempts that have not begun, in order. Each is either taken, and then runs, or recalled, never both.

    One thread takes and waits, another puts and recalls. Every task passes through here, so there is no lock: each
    attempt leaves the deque by one operation, which is atomic.
    """

    def __init__(self) -> None:
        self._waiting: deque[Attempt] = deque()
        self._wake_lock = threading.Lock()
        """Used as an event: `wait` blocks by acquiring it twice, `_notify` releases it."""
        self._is_closed = False
        self._listener: Callable[[], object] | None = None

    def put(self, command: RunTasks) -> None:
        self._waiting.extend(
            [
                Attempt(assignment, command.worker_id, chunk=command.chunk, position=position)
                for position, assignment in enumerate(command.assignments, command.first)
            ]
        )
        self._notify()

    def close(self) -> None:
        """No more attempts will come."""
        self._is_closed = True
        self._notify()

    def recall(self, task: TaskRef | None = None) -> tuple[TaskRef, ...]:
        """Remove all waiting attempts, or only that of `task`; return the tasks removed."""
        wanted = (attempt for attempt in list(self._waiting) if task in (None, (attempt.chunk, attempt.position)))
        return tuple(TaskRef(attempt.chunk, attempt.position) for attempt in wanted if self.take(attempt))

    def head(self) -> Attempt | None:
        """The first attempt; None if there is none."""
        try:
            return self._waiting[0]
        except IndexError:
            return None

    def take(self, attempt: Attempt) -> bool:
        """Remove an attempt; False if it was recalled meanwhile."""
        try:
            self._waiting.remove(attempt)
        except ValueError:
            return False
        return True

    @property
    def is_exhausted(self) -> bool:
        """Whether the inbox is closed and empty."""
        return self._is_closed and not self._waiting

    def wait(self) -> None:
        """Block until an attempt is waiting or the inbox is closed."""
        while not self._waiting and not self._is_closed:
            self._wake_lock.acquire()

    def on_change(self, listener: Callable[[], object] | None) -> None:
        """Call `listener` after each `put` and after `close`, in the calling thread; None removes it."""
        self._listener = listener

    def _notify(self) -> None:
        if self._wake_lock.locked():
            self._wake_lock.release()
        if (listener := self._listener) is not None:
            listener()


def handle_commands(
    commands: Iterator[Command], channel: ParentChannel, inbox: Inbox, watchdog: ParentWatchdog, runner: Runner
) -> None:
    """Carry out commands from the worker; exit the process when the channel closes or cannot be decoded."""
    try:
        for command in commands:
            _handle_command(command, channel, inbox, watchdog, runner)
    finally:
        exit_with(ExitStatus.CHANNEL_LOST)


def _handle_command(
    command: Command, channel: ParentChannel, inbox: Inbox, watchdog: ParentWatchdog, runner: Runner
) -> None:
    match command:
        case RunTasks():
            inbox.put(command)
        case HeartbeatAck():
            watchdog.record_ack()
        case Recall():
            channel.send(Recalled(inbox.recall()))
        case CancelTask(task):
            if unbegun := inbox.recall(task):
                channel.send(Recalled(unbegun))
            runner.cancel(task)
        case Quit():
            inbox.close()
        case StartChild():
            raise AssertionError("only the first command")
        case _:
            assert_never(command)


# One attempt


class RunnableApp(Protocol):
    """The part of the app that a child uses."""

    @property
    def config(self) -> AppConfig: ...
    @property
    def tasks(self) -> Mapping[str, HasDefinition]: ...
    @property
    def child_hooks(self) -> Iterable[Callable[[], None]]: ...
    def import_task_modules(self, modules: Sequence[str] | None = None) -> object: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredTask:
    """A task definition with `is_async` computed once, because it is needed for every run."""

    definition: TaskDefinition
    is_async: bool


class Attempt:
    """One attempt of a task in a child: the task's place in its chunk, what was sent, and when it began."""

    __slots__ = ("assignment", "began_at", "chunk", "position", "worker_id")

    def __init__(self, assignment: Assignment, worker_id: str, *, chunk: int = 0, position: int = 0) -> None:
        self.assignment = assignment
        self.worker_id = worker_id
        self.chunk = chunk
        self.position = position
        self.began_at = 0.0

    @property
    def key(self) -> AttemptKey:
        return AttemptKey(self.assignment.task_id, self.assignment.claim_token)

    def context(self) -> TaskContext:
        return self.assignment.context(self.worker_id)


class WorkerFailure(Exception):
    """The attempt failed outside the task's own code."""

    def __init__(self, code: BuiltInTaskCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class TracebackLimit:
    """Limits how often an exception of a task is logged: a task that always fails must not flood the log."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = 0.0
        self._raised: Counter[tuple[str, str]] = Counter()
        """How often each task raised each exception in this minute."""
        self._before = self._raised
        """The same of the minute before."""

    def admit(self, task_name: str, exception: str) -> int | None:
        """None if the exception is not logged; otherwise how many like it were not logged in the minute before."""
        key, now = (task_name, exception), self._clock()
        if now >= self._until:
            is_next_minute = now < self._until + TRACEBACK_WINDOW_S
            self._before = self._raised if is_next_minute else Counter[tuple[str, str]]()
            self._raised, self._until = Counter[tuple[str, str]](), now + TRACEBACK_WINDOW_S
        self._raised[key] += 1
        if self._raised[key] > MAX_TRACEBACKS:
            return None
        return max(0, self._before.pop(key, 0) - MAX_TRACEBACKS)


class TaskExecutor:
    """Runs assignments with the tasks of one app.

    Raises MemoryError unless the user mapped it to an error code: a process that ran out of memory must not run more
    tasks.
    """

    def __init__(self, app: RunnableApp) -> None:
        config = app.config
        self._rules = ExceptionRules(mapper=config.exception_mapper, default=config.default_unhandled_error_code)
        self._tracebacks = TracebackLimit()
        self._tasks = {
            name: RegisteredTask(definition=task.definition, is_async=task.definition.is_async)
            for name, task in app.tasks.items()
        }

    def is_async(self, attempt: Attempt) -> bool:
        task = self._tasks.get(attempt.assignment.task_name)
        return task is not None and task.is_async

    def run(self, attempt: Attempt) -> EncodedOutcome:
        """Run a `def` task in the calling thread; an unknown task fails here too."""
        token = CURRENT_TASK.set(attempt)
        try:
            task = self._resolve(attempt)
            arguments = self._decode_arguments(task, attempt)
            return self._encode_result(task, self._call(task, arguments))
        except WorkerFailure as failure:
            return _worker_failure_outcome(failure)
        finally:
            CURRENT_TASK.reset(token)

    async def run_async(self, attempt: Attempt) -> EncodedOutcome:
        """Run an `async def` task on the running loop."""
        token = CURRENT_TASK.set(attempt)
        try:
            task = self._resolve(attempt)
            arguments = self._decode_arguments(task, attempt)
            return self._encode_result(task, await self._call_async(task, arguments))
        except WorkerFailure as failure:
            return _worker_failure_outcome(failure)
        finally:
            CURRENT_TASK.reset(token)

    def _resolve(self, attempt: Attempt) -> TaskDefinition:
        name = attempt.assignment.task_name
        task = self._tasks.get(name)
        if task is None:
            message = f"task {name!r} is not registered in this worker"
            raise WorkerFailure(OperationalErrorCode.WORKER_RESOLUTION_ERROR, message)
        return task.definition

    def _decode_arguments(self, task: TaskDefinition, attempt: Attempt) -> DecodedArguments:
        stored = attempt.assignment
        try:
            if stored.details is None:
                return task.codec.decode(stored.args, stored.kwargs)
            context = parse_details(stored.details).workflow_context
            return decode_arguments(
                task.codec, stored.args, stored.kwargs, context, result_codec_for=self._result_codec_for
            )
        except MemoryError:
            raise
        except BaseException as error:  # validators are user code and may raise anything
            message = f"cannot decode the stored arguments: {safe_stringify(str, error) or type(error).__qualname__}"
            raise WorkerFailure(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message) from error

    def _result_codec_for(self, task_name: str) -> ValueCodec | None:
        task = self._tasks.get(task_name)
        return None if task is None else task.definition.codec.result_codec

    def _call(self, task: TaskDefinition, arguments: DecodedArguments) -> AnyResult:
        try:
            return call_task(task, arguments.args, arguments.kwargs, app=self._rules, on_raised=self._log_unhandled)
        except BaseException as error:  # noqa: BLE001  # user code may raise anything
            return self._result_of_exception(error, task)

    async def _call_async(self, task: TaskDefinition, arguments: DecodedArguments) -> AnyResult:
        from asyncio import CancelledError  # here, because children that run no coroutines do without asyncio

        try:
            return await call_task_async(
                task, arguments.args, arguments.kwargs, app=self._rules, on_raised=self._log_unhandled
            )
        except CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  # user code may raise anything
            return self._result_of_exception(error, task)

    def _result_of_exception(self, error: BaseException, task: TaskDefinition) -> AnyResult:
        """Convert exceptions that `call_task` lets through, such as KeyboardInterrupt raised by the task's own code."""
        if isinstance(error, MemoryError):
            raise error
        self._log_unhandled(task, error)
        return TaskResult(err=task_error_from(error, task=task.exception_rules, app=self._rules))

    def _log_unhandled(self, task: TaskDefinition, raised: BaseException) -> None:
        """Log the traceback of an exception that no mapper expects.

        A process that is out of memory exits, and one forked by the task prints the traceback itself.
        """
        if isinstance(raised, MemoryError) or lifetime.is_forked:
            return
        if any(type(raised) in rules.mapper for rules in (task.exception_rules, self._rules)):
            return
        kind = type(raised).__qualname__
        if (not_logged := self._tracebacks.admit(task.name, kind)) is None:
            return
        text = safe_stringify(str, raised)
        extra = {"not_logged": not_logged} if not_logged else None
        with suppress(Exception):  # filters and handlers are user code
            logger.error("unhandled %s%s", kind, f": {text}" if text else "", exc_info=raised, extra=extra)

    def _raise_if_out_of_memory(self, task: TaskDefinition, error: TaskError) -> None:
        """Raise the MemoryError in an error unless the user's code or mappers handled it.

        A default code is meant for exceptions of the task; a process that ran out of memory must exit all the same.
        """
        raised, rules = error.exception, (task.exception_rules, self._rules)
        if not isinstance(raised, MemoryError) or any(type(raised) in rule.mapper for rule in rules):
            return
        if error.error_code == error_code_for(type(raised), task=rules[0], app=rules[1]):
            raise raised

    def _encode_result(self, task: TaskDefinition, result: AnyResult) -> EncodedOutcome:
        # The task forked, and its code also returned in the new process: only the child itself may report an outcome.
        if lifetime.is_forked:
            lifetime.exit_fork(None if result.err is None else result.err.exception)
        if result.is_err():
            self._raise_if_out_of_memory(task, result.err_value)
        try:
            stored = encode_result(result, task.codec.result_codec)
        except MemoryError:
            raise
        except BaseException as error:  # serializers are user code too
            message = f"cannot encode the result: {type(error).__qualname__}"
            raise WorkerFailure(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message) from error
        document = stored.document
        if len(document) > _SMALL_DOCUMENT_CHARS and (size := utf8_length(document)) > MAX_DOCUMENT_BYTES:
            message = f"result of {size} bytes exceeds the limit of {MAX_DOCUMENT_BYTES} bytes"
            raise WorkerFailure(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message)
        if stored.error is None:
            return EncodedOutcome(outcome=TaskAttemptOutcome.COMPLETED, document=document)
        if (length := len(stored.error.error_code or "")) > MAX_CODE_CHARS:
            message = f"error code of {length} characters exceeds the limit of {MAX_CODE_CHARS} characters"
            raise WorkerFailure(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message)
        # A success that cannot be encoded counts as a failure of the worker, not of the task.
        outcome = TaskAttemptOutcome.WORKER_FAILURE if result.is_ok() else TaskAttemptOutcome.FAILED
        return _encode_failure(stored.error, outcome, document)


def cancelled_outcome() -> EncodedOutcome:
    """The outcome of a coroutine that the worker cancelled."""
    error = TaskError(error_code=OutcomeCode.TASK_CANCELLED, message="cancelled by the worker")
    return _error_outcome(TaskResult(err=error), TaskAttemptOutcome.FAILED)


def _worker_failure_outcome(failure: WorkerFailure) -> EncodedOutcome:
    if lifetime.is_forked:
        lifetime.exit_fork(failure.__cause__)
    error = TaskError(error_code=failure.code, message=failure.message)
    return _error_outcome(TaskResult(err=error), TaskAttemptOutcome.WORKER_FAILURE)


def _error_outcome(result: AnyResult, outcome: TaskAttemptOutcome) -> EncodedOutcome:
    stored = encode_result(result, PlainCodec())
    return _encode_failure(result.err_value, outcome, stored.document)


def _encode_failure(error: TaskError, outcome: TaskAttemptOutcome, document: str) -> EncodedOutcome:
    return EncodedOutcome(
        outcome=outcome,
        document=document,
        error_code=None if error.error_code is None else str(error.error_code),
        error_message=None if error.message is None else replace_unstorable(cut_text(error.message)),
    )
