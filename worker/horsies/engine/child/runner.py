"""The child's main thread: functions one at a time, coroutines several at once, in the order they were handed over."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextvars import copy_context
from functools import partial
from typing import Any, NoReturn, assert_never

from horsies.engine.child import lifetime
from horsies.engine.child.execution import TaskExecutor, cancelled_outcome
from horsies.engine.child.lifetime import ParentWatchdog, exit_with
from horsies.engine.child.reports import CURRENT_TASK, AttemptReporter, ParentChannel
from horsies.engine.pool.protocol import (
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
)

# `async def` tasks: several at once on the child's event loop.


class CoroutineRunner:
    """Takes coroutines from the inbox as they come, up to a limit at a time."""

    def __init__(self, inbox: Inbox, execution: TaskExecutor, desk: AttemptReporter, *, limit: int) -> None:
        self._inbox = inbox
        self._execution = execution
        self._desk = desk
        self._limit = limit
        self._tasks: dict[AttemptKey, asyncio.Task[EncodedOutcome]] = {}
        self._woken = asyncio.Event()

    async def serve(self) -> None:
        """Run coroutines until a function is next in line or nothing more will come, and what runs has ended."""
        loop = asyncio.get_running_loop()
        self._inbox.on_change(lambda: loop.call_soon_threadsafe(self._woken.set))
        try:
            while not self._is_done():
                self._woken.clear()
                self._start_until_full()
                if not self._is_done():
                    await self._woken.wait()
        finally:
            self._inbox.on_change(None)

    def cancel(self, key: AttemptKey) -> None:
        """Cancel one that runs; to be called on the loop."""
        if task := self._tasks.get(key):
            task.cancel()

    def _is_done(self) -> bool:
        return not self._tasks and (self._inbox.is_exhausted or self._inbox.head_matches(self._is_function))

    def _is_function(self, assignment: Assignment) -> bool:
        return not self._execution.is_async(assignment)

    def _start_until_full(self) -> None:
        while len(self._tasks) < self._limit and (assignment := self._inbox.take(matches=self._execution.is_async)):
            self._begin(assignment)

    def _begin(self, assignment: Assignment) -> None:
        key = assignment.key
        self._desk.begin(key)
        context = copy_context()
        context.run(CURRENT_TASK.set, key)
        attempt = self._execution.run_async(assignment)
        self._tasks[key] = asyncio.get_running_loop().create_task(attempt, context=context)
        self._tasks[key].add_done_callback(partial(self._end, key))

    def _end(self, key: AttemptKey, task: asyncio.Task[EncodedOutcome]) -> None:
        del self._tasks[key]
        if not task.cancelled() and (raised := task.exception()) is not None:
            _exit_on_error(raised)
        self._desk.end(key, cancelled_outcome() if task.cancelled() else task.result())
        self._desk.flush()
        self._woken.set()


def _exit_on_error(raised: BaseException) -> NoReturn:
    """What an attempt does not turn into an ending ends the process, as it would out of a function."""
    if isinstance(raised, MemoryError):
        exit_with(ExitStatus.OUT_OF_MEMORY)
    lifetime.exit_fork(raised)


class Runner:
    """Works through the inbox until it is over.

    A function never runs inside the event loop, for it may block, send, and run loops of its own. The loop is the same
    from one coroutine to the next, and once there has been one, this process waits inside it: connections made there
    live on.
    """

    def __init__(self, inbox: Inbox, execution: TaskExecutor, desk: AttemptReporter, *, async_concurrency: int) -> None:
        self._inbox = inbox
        self._execution = execution
        self._desk = desk
        self._loop = asyncio.new_event_loop()
        lifetime.register_fork_handler(self._loop)
        self._coroutines = CoroutineRunner(inbox, execution, desk, limit=async_concurrency)

    def run(self) -> None:
        has_seen_coroutines = False
        with asyncio.Runner(loop_factory=lambda: self._loop):
            while not self._inbox.is_exhausted:
                while assignment := self._inbox.take(matches=self._is_function):
                    self._call(assignment)
                self._desk.flush()
                has_seen_coroutines = has_seen_coroutines or self._inbox.head_matches(self._execution.is_async)
                if has_seen_coroutines:
                    _run_to_completion(self._coroutines.serve(), self._loop)
                else:
                    self._inbox.wait()

    def cancel(self, key: AttemptKey) -> None:
        """Cancel a coroutine, from any thread; a function cannot be stopped from inside its process."""
        with contextlib.suppress(RuntimeError):  # the loop has closed: nothing runs any more
            self._loop.call_soon_threadsafe(self._coroutines.cancel, key)

    def _is_function(self, assignment: Assignment) -> bool:
        return not self._execution.is_async(assignment)

    def _call(self, assignment: Assignment) -> None:
        key = assignment.key
        self._desk.begin(key)
        token = CURRENT_TASK.set(key)
        try:
            ending = self._execution.run(assignment)
        except MemoryError:
            exit_with(ExitStatus.OUT_OF_MEMORY)
        self._desk.end(key, ending)
        CURRENT_TASK.reset(token)


def _run_to_completion(coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> None:
    """Run to the end, though tasks that user code has made may throw `SystemExit` through the loop, or stop it."""
    task = loop.create_task(coroutine)
    while not task.done():
        try:
            loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt, RuntimeError) as raised:
            if lifetime.is_forked():
                lifetime.exit_fork(raised)
    task.result()


# What a child has been handed and has not begun.


class Inbox:
    """Assignments in order. One that was taken begins; one that was recalled never does; none is both.

    One thread takes and waits, another puts and recalls. Plain locks, since this stands in the way of every task: a
    condition costs several times as much.
    """

    def __init__(self) -> None:
        self._waiting: deque[Assignment] = deque()
        self._lock = threading.Lock()
        self._no_change_lock = threading.Lock()
        """Held while nothing has changed since the last look."""
        self._is_closed = False
        self._listener: Callable[[], object] | None = None

    def put(self, assignments: Iterable[Assignment]) -> None:
        with self._lock:
            self._waiting.extend(assignments)
            self._notify()

    def close(self) -> None:
        """No more will come."""
        with self._lock:
            self._is_closed = True
            self._notify()

    def recall(self, key: AttemptKey | None = None) -> tuple[AttemptKey, ...]:
        """Take out what waits, or the one called `key` if it does."""
        with self._lock:
            recalled = tuple(each.key for each in self._waiting if key is None or each.key == key)
            self._waiting = deque(each for each in self._waiting if each.key not in recalled)
            return recalled

    def take(self, *, matches: Callable[[Assignment], bool]) -> Assignment | None:
        """The first in line if it is there and suits; never waits."""
        with self._lock:
            return self._waiting.popleft() if self._waiting and matches(self._waiting[0]) else None

    def head_matches(self, matches: Callable[[Assignment], bool]) -> bool:
        """Whether the first in line is there and suits."""
        with self._lock:
            return bool(self._waiting) and matches(self._waiting[0])

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing waits and nothing will come."""
        return self._is_closed and not self._waiting

    def wait(self) -> None:
        """Until something waits, or nothing will come any more."""
        while not self._waiting and not self._is_closed:
            self._no_change_lock.acquire()

    def on_change(self, listener: Callable[[], object] | None) -> None:
        """Call `listener`, in the thread that made the change, for what arrives from now on."""
        with self._lock:
            self._listener = listener

    def _notify(self) -> None:
        if self._no_change_lock.locked():
            self._no_change_lock.release()
        if self._listener is not None:
            self._listener()


# Obeying the worker, in a thread of its own, while the main one is at work.


def handle_commands(channel: ParentChannel, inbox: Inbox, guard: ParentWatchdog, runner: Runner) -> None:
    """Follow every order; without a worker to give them, or to make sense of, there is nothing left to do here."""
    try:
        for order in channel.commands():
            _handle_command(order, channel, inbox, guard, runner)
    finally:
        exit_with(ExitStatus.CHANNEL_LOST)


def _handle_command(
    order: Command, channel: ParentChannel, inbox: Inbox, guard: ParentWatchdog, runner: Runner
) -> None:
    match order:
        case RunTasks(assignments):
            inbox.put(assignments)
        case HeartbeatAck():
            guard.mark_answered()
        case Recall():
            channel.send(Recalled(inbox.recall()))
        case CancelTask(key):
            if unbegun := inbox.recall(key):
                channel.send(Recalled(unbegun))
            runner.cancel(key)
        case Quit():
            inbox.close()
        case _:
            assert_never(order)
