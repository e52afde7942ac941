"""The child's main thread runs tasks in the order received; a second thread handles commands from the worker."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, assert_never

from horsies.engine.child import lifetime
from horsies.engine.child.execution import Attempt, TaskExecutor
from horsies.engine.child.lifetime import ParentWatchdog, exit_with
from horsies.engine.child.reports import AttemptReporter, ParentChannel
from horsies.engine.pool.protocol import (
    CancelTask,
    Command,
    ExitStatus,
    HeartbeatAck,
    Quit,
    Recall,
    Recalled,
    RunTasks,
    TaskRef,
)

if TYPE_CHECKING:
    from horsies.engine.child.coroutines import CoroutineRunner


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
