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
from horsies.engine.child.execution import Attempt, TaskExecutor, cancelled_outcome
from horsies.engine.child.lifetime import ParentWatchdog, exit_with
from horsies.engine.child.reports import AttemptReporter, ParentChannel
from horsies.engine.pool.protocol import (
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
                has_seen_coroutines = self._run_functions() or has_seen_coroutines
                if has_seen_coroutines:
                    _run_to_completion(self._coroutines.serve(), self._loop)
                else:
                    self._inbox.wait()

    def cancel(self, ref: TaskRef) -> None:
        """Cancel a coroutine, from any thread; has no effect on a function."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing is running
            self._loop.call_soon_threadsafe(self._coroutines.cancel, ref)

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
            while True:
                self._woken.clear()
                is_blocked = self._begin_waiting()
                self._reporter.flush()
                if not self._tasks and (is_blocked or self._inbox.is_exhausted):
                    return
                await self._woken.wait()
        finally:
            self._inbox.on_change(None)

    def cancel(self, ref: TaskRef) -> None:
        """Cancel a running coroutine; call it on the loop."""
        if task := self._tasks.get(ref):
            task.cancel()

    def _begin_waiting(self) -> bool:
        """Begin waiting coroutines up to the limit; returns whether a function is next."""
        while len(self._tasks) < self._limit and (attempt := self._inbox.head()) is not None:
            if not self._executor.is_async(attempt):
                return True
            if self._inbox.take(attempt):
                self._begin(attempt)
        return False

    def _begin(self, attempt: Attempt) -> None:
        self._reporter.begin(attempt)
        ref = TaskRef(attempt.chunk, attempt.position)
        task = self._tasks[ref] = asyncio.get_running_loop().create_task(self._executor.run_async(attempt))
        task.add_done_callback(partial(self._end, ref, attempt))

    def _end(self, ref: TaskRef, attempt: Attempt, task: asyncio.Task[EncodedOutcome]) -> None:
        del self._tasks[ref]
        if not task.cancelled() and (error := task.exception()) is not None:
            _exit_on_error(error)
        self._reporter.end(attempt, cancelled_outcome() if task.cancelled() else task.result())
        # Sent by `serve`, together with what ends and begins in the same iteration of the loop.
        self._woken.set()


def _exit_on_error(error: BaseException) -> NoReturn:
    """Exit the process: the executor raises only if it is out of memory or in a process forked by a task."""
    if isinstance(error, MemoryError):
        exit_with(ExitStatus.OUT_OF_MEMORY)
    lifetime.exit_fork(error)


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
