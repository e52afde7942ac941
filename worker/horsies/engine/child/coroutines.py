"""`async def` tasks: several at once on the child's event loop."""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from horsies.engine.child import forks
from horsies.engine.child.begun import SPEAKER
from horsies.engine.child.execution import cancelled
from horsies.engine.child.leaving import leave_with
from horsies.engine.messages import ExitStatus

if TYPE_CHECKING:
    from horsies.engine.child.desk import Desk
    from horsies.engine.child.execution import Execution
    from horsies.engine.child.inbox import Inbox
    from horsies.engine.messages import Assignment, Ending, Key


class Coroutines:
    """Takes coroutines from the inbox as they come, up to a limit at a time."""

    def __init__(self, inbox: Inbox, execution: Execution, desk: Desk, *, limit: int) -> None:
        self._inbox = inbox
        self._execution = execution
        self._desk = desk
        self._limit = limit
        self._tasks: dict[Key, asyncio.Task[Ending]] = {}
        self._woken = asyncio.Event()

    async def serve(self) -> None:
        """Run coroutines until a function is next in line or nothing more will come, and what runs has ended."""
        loop = asyncio.get_running_loop()
        self._inbox.on_change(lambda: loop.call_soon_threadsafe(self._woken.set))
        try:
            while not self._is_done():
                self._woken.clear()
                self._begin_what_fits()
                if not self._is_done():
                    await self._woken.wait()
        finally:
            self._inbox.on_change(None)

    def cancel(self, key: Key) -> None:
        """Cancel one that runs; to be called on the loop."""
        if task := self._tasks.get(key):
            task.cancel()

    def _is_done(self) -> bool:
        return not self._tasks and (self._inbox.is_over or self._inbox.is_next(self._is_function))

    def _is_function(self, assignment: Assignment) -> bool:
        return not self._execution.is_async(assignment)

    def _begin_what_fits(self) -> None:
        while len(self._tasks) < self._limit and (assignment := self._inbox.take(suits=self._execution.is_async)):
            self._begin(assignment)

    def _begin(self, assignment: Assignment) -> None:
        key = assignment.key
        self._desk.begin(key)
        context = copy_context()
        context.run(SPEAKER.set, key)
        attempt = self._execution.run_async(assignment)
        self._tasks[key] = asyncio.get_running_loop().create_task(attempt, context=context)
        self._tasks[key].add_done_callback(partial(self._end, key))

    def _end(self, key: Key, task: asyncio.Task[Ending]) -> None:
        del self._tasks[key]
        if not task.cancelled() and (raised := task.exception()) is not None:
            _give_up(raised)
        self._desk.end(key, cancelled() if task.cancelled() else task.result())
        self._desk.flush()
        self._woken.set()


def _give_up(raised: BaseException) -> NoReturn:
    """What an attempt does not turn into an ending ends the process, as it would out of a function."""
    if isinstance(raised, MemoryError):
        leave_with(ExitStatus.OUT_OF_MEMORY)
    forks.leave(raised)
