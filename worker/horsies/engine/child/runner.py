"""The child's main thread runs tasks in the order received; a second thread handles commands from the worker."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NoReturn, assert_never

from horsies.engine.child import lifetime
from horsies.engine.child.execution import TaskExecutor, cancelled_outcome
from horsies.engine.child.lifetime import ParentWatchdog, exit_with
from horsies.engine.child.reports import AttemptReporter, ParentChannel
from horsies.engine.pool.protocol import (
    Assignment,
    CancelTask,
    Command,
    EncodedOutcome,
    ExitStatus,
    HeartbeatAck,
    Quit,
    Recall,
    Recalled,
    RunTasks,
    TaskRef,
)


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
        self._loop = asyncio.new_event_loop()
        lifetime.register_fork_handler(self._loop)
        self._coroutines = CoroutineRunner(inbox, executor, reporter, limit=async_concurrency)

    def run(self) -> None:
        has_seen_coroutines = False
        with asyncio.Runner(loop_factory=lambda: self._loop):
            while not self._inbox.is_exhausted:
                while received := self._inbox.take(matches=self._is_function):
                    self._call(*received)
                self._reporter.flush()
                has_seen_coroutines = has_seen_coroutines or self._inbox.head_matches(self._executor.is_async)
                if has_seen_coroutines:
                    _run_to_completion(self._coroutines.serve(), self._loop)
                else:
                    self._inbox.wait()

    def cancel(self, ref: TaskRef) -> None:
        """Cancel a coroutine, from any thread; has no effect on a function."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing is running
            self._loop.call_soon_threadsafe(self._coroutines.cancel, ref)

    def _is_function(self, assignment: Assignment) -> bool:
        return not self._executor.is_async(assignment)

    def _call(self, ref: TaskRef, assignment: Assignment) -> None:
        self._reporter.begin(ref, assignment.task)
        try:
            outcome = self._executor.run(assignment)
        except MemoryError:
            exit_with(ExitStatus.OUT_OF_MEMORY)
        self._reporter.end(ref, outcome)


def _run_to_completion(coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> None:
    """Like `run_until_complete`, but continue when user code stops the loop or raises SystemExit in it."""
    task = loop.create_task(coroutine)
    while not task.done():
        try:
            loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt, RuntimeError) as error:
            if lifetime.is_forked():
                lifetime.exit_fork(error)
    task.result()


class CoroutineRunner:
    """Runs `async def` tasks from the inbox, up to `limit` at a time."""

    def __init__(self, inbox: Inbox, executor: TaskExecutor, reporter: AttemptReporter, *, limit: int) -> None:
        self._inbox = inbox
        self._executor = executor
        self._reporter = reporter
        self._limit = limit
        self._tasks: dict[TaskRef, asyncio.Task[EncodedOutcome]] = {}
        self._woken = asyncio.Event()

    async def serve(self) -> None:
        """Run coroutines until none is running and the inbox is exhausted or has a function at its head."""
        loop = asyncio.get_running_loop()
        self._inbox.on_change(lambda: loop.call_soon_threadsafe(self._woken.set))
        try:
            while not self._is_done():
                self._woken.clear()
                while len(self._tasks) < self._limit and (
                    received := self._inbox.take(matches=self._executor.is_async)
                ):
                    self._begin(*received)
                if not self._is_done():
                    await self._woken.wait()
        finally:
            self._inbox.on_change(None)

    def cancel(self, ref: TaskRef) -> None:
        """Cancel a running coroutine; call it on the loop."""
        if task := self._tasks.get(ref):
            task.cancel()

    def _is_done(self) -> bool:
        return not self._tasks and (self._inbox.is_exhausted or self._inbox.head_matches(self._is_function))

    def _is_function(self, assignment: Assignment) -> bool:
        return not self._executor.is_async(assignment)

    def _begin(self, ref: TaskRef, assignment: Assignment) -> None:
        self._reporter.begin(ref, assignment.task)
        attempt = self._executor.run_async(assignment)
        self._tasks[ref] = asyncio.get_running_loop().create_task(attempt)
        self._tasks[ref].add_done_callback(partial(self._end, ref))

    def _end(self, ref: TaskRef, task: asyncio.Task[EncodedOutcome]) -> None:
        del self._tasks[ref]
        if not task.cancelled() and (error := task.exception()) is not None:
            _exit_on_error(error)
        self._reporter.end(ref, cancelled_outcome() if task.cancelled() else task.result())
        self._reporter.flush()
        self._woken.set()


def _exit_on_error(error: BaseException) -> NoReturn:
    """Exit the process: the executor raises only if it is out of memory or in a process forked by a task."""
    if isinstance(error, MemoryError):
        exit_with(ExitStatus.OUT_OF_MEMORY)
    lifetime.exit_fork(error)


class Inbox:
    """Assignments that have not begun, in order. Each is either taken, and then runs, or recalled, never both.

    One thread takes and waits, another puts and recalls. Plain locks because every task passes through here and a
    Condition costs several times as much.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[TaskRef, Assignment]] = deque()
        self._lock = threading.Lock()
        self._wake_lock = threading.Lock()
        """Used as an event: `wait` blocks by acquiring it twice, `_notify` releases it."""
        self._is_closed = False
        self._listener: Callable[[], object] | None = None

    def put(self, command: RunTasks) -> None:
        with self._lock:
            for position, assignment in enumerate(command.assignments, command.first):
                self._waiting.append((TaskRef(command.chunk, position), assignment))
            self._notify()

    def close(self) -> None:
        """No more assignments will come."""
        with self._lock:
            self._is_closed = True
            self._notify()

    def recall(self, task: TaskRef | None = None) -> tuple[TaskRef, ...]:
        """Remove all waiting assignments, or only that of `task`; return the tasks removed."""
        with self._lock:
            recalled = tuple(ref for ref, _ in self._waiting if task is None or ref == task)
            self._waiting = deque(received for received in self._waiting if received[0] not in recalled)
            return recalled

    def take(self, *, matches: Callable[[Assignment], bool]) -> tuple[TaskRef, Assignment] | None:
        """Remove and return the first assignment if it matches; never waits."""
        with self._lock:
            return self._waiting.popleft() if self._waiting and matches(self._waiting[0][1]) else None

    def head_matches(self, matches: Callable[[Assignment], bool]) -> bool:
        """Whether there is a first assignment and it matches."""
        with self._lock:
            return bool(self._waiting) and matches(self._waiting[0][1])

    @property
    def is_exhausted(self) -> bool:
        """Whether the inbox is closed and empty."""
        return self._is_closed and not self._waiting

    def wait(self) -> None:
        """Block until an assignment is waiting or the inbox is closed."""
        while not self._waiting and not self._is_closed:
            self._wake_lock.acquire()

    def on_change(self, listener: Callable[[], object] | None) -> None:
        """Call `listener` after each `put` and after `close`, in the calling thread; None removes it."""
        with self._lock:
            self._listener = listener

    def _notify(self) -> None:
        if self._wake_lock.locked():
            self._wake_lock.release()
        if self._listener is not None:
            self._listener()


def handle_commands(channel: ParentChannel, inbox: Inbox, watchdog: ParentWatchdog, runner: Runner) -> None:
    """Carry out commands from the worker; exit the process when the channel closes or cannot be decoded."""
    try:
        for command in channel.commands():
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
        case _:
            assert_never(command)
