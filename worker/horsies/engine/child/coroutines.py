"""Runs `async def` tasks on the event loop of a child; imported for the first of them."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from horsies.engine.child import lifetime
from horsies.engine.child.lifetime import exit_with
from horsies.engine.child.reports import AttemptReporter
from horsies.engine.child.runner import Attempt, TaskExecutor, cancelled_outcome
from horsies.engine.pool.protocol import EncodedOutcome, ExitStatus, TaskRef

if TYPE_CHECKING:
    from horsies.engine.child.runner import Inbox


class CoroutineRunner:
    """Runs `async def` tasks from the inbox, up to `limit` at a time."""

    def __init__(self, inbox: Inbox, executor: TaskExecutor, reporter: AttemptReporter, *, limit: int) -> None:
        self._inbox = inbox
        self._executor = executor
        self._reporter = reporter
        self._limit = limit
        self._loop = asyncio.new_event_loop()
        lifetime.exit_forks_on(self._loop)
        self._tasks: dict[TaskRef, asyncio.Task[EncodedOutcome]] = {}
        self._woken = asyncio.Event()

    def run(self) -> None:
        """Run coroutines until none is running and the inbox is exhausted or has a function at its head.

        Continues when user code stops the loop or raises SystemExit in it.
        """
        serving = self._loop.create_task(self._serve())
        while not serving.done():
            try:
                self._loop.run_until_complete(serving)
            except (SystemExit, KeyboardInterrupt, RuntimeError) as error:
                if lifetime.is_forked:
                    lifetime.exit_fork(error)
        serving.result()

    def cancel(self, ref: TaskRef) -> None:
        """Cancel a running coroutine, from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing is running
            self._loop.call_soon_threadsafe(self._cancel, ref)

    def close(self) -> None:
        """Cancel what tasks have left running on the loop, and close it."""
        with asyncio.Runner(loop_factory=lambda: self._loop):
            pass

    async def _serve(self) -> None:
        loop = self._loop
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

    def _cancel(self, ref: TaskRef) -> None:
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
        task = self._tasks[ref] = self._loop.create_task(self._executor.run_async(attempt))
        task.add_done_callback(partial(self._end, ref, attempt))

    def _end(self, ref: TaskRef, attempt: Attempt, task: asyncio.Task[EncodedOutcome]) -> None:
        del self._tasks[ref]
        if not task.cancelled() and (error := task.exception()) is not None:
            _exit_on_error(error)
        self._reporter.end(attempt, cancelled_outcome() if task.cancelled() else task.result())
        # Sent by `_serve`, together with what ends and begins in the same iteration of the loop.
        self._woken.set()


def _exit_on_error(error: BaseException) -> NoReturn:
    """Exit the process: the executor raises only if it is out of memory or in a process forked by a task."""
    if isinstance(error, MemoryError):
        exit_with(ExitStatus.OUT_OF_MEMORY)
    lifetime.exit_fork(error)
