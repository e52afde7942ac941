"""The child's main thread: functions one at a time, coroutines several at once, in the order they were handed over."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from horsies.engine.child import forks
from horsies.engine.child.begun import SPEAKER
from horsies.engine.child.coroutines import Coroutines
from horsies.engine.child.leaving import leave_with
from horsies.engine.messages import ExitStatus

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from horsies.engine.child.desk import Desk
    from horsies.engine.child.execution import Execution
    from horsies.engine.child.inbox import Inbox
    from horsies.engine.messages import Assignment, Key


class Runner:
    """Works through the inbox until it is over.

    A function never runs inside the event loop, for it may block, send, and run loops of its own. The loop is the same
    from one coroutine to the next, and once there has been one, this process waits inside it: connections made there
    live on.
    """

    def __init__(self, inbox: Inbox, execution: Execution, desk: Desk, *, async_concurrency: int) -> None:
        self._inbox = inbox
        self._execution = execution
        self._desk = desk
        self._loop = asyncio.new_event_loop()
        forks.tell_copies(self._loop)
        self._coroutines = Coroutines(inbox, execution, desk, limit=async_concurrency)

    def run(self) -> None:
        has_seen_coroutines = False
        with asyncio.Runner(loop_factory=lambda: self._loop):
            while not self._inbox.is_over:
                while assignment := self._inbox.take(suits=self._is_function):
                    self._call(assignment)
                self._desk.flush()
                has_seen_coroutines = has_seen_coroutines or self._inbox.is_next(self._execution.is_async)
                if has_seen_coroutines:
                    _complete(self._coroutines.serve(), self._loop)
                else:
                    self._inbox.wait()

    def cancel(self, key: Key) -> None:
        """Cancel a coroutine, from any thread; a function cannot be stopped from inside its process."""
        with contextlib.suppress(RuntimeError):  # the loop has closed: nothing runs any more
            self._loop.call_soon_threadsafe(self._coroutines.cancel, key)

    def _is_function(self, assignment: Assignment) -> bool:
        return not self._execution.is_async(assignment)

    def _call(self, assignment: Assignment) -> None:
        key = assignment.key
        self._desk.begin(key)
        token = SPEAKER.set(key)
        try:
            ending = self._execution.run(assignment)
        except MemoryError:
            leave_with(ExitStatus.OUT_OF_MEMORY)
        self._desk.end(key, ending)
        SPEAKER.reset(token)


def _complete(coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> None:
    """Run to the end, though tasks that user code has made may throw `SystemExit` through the loop, or stop it."""
    task = loop.create_task(coroutine)
    while not task.done():
        try:
            loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt, RuntimeError) as raised:
            if forks.is_copy():
                forks.leave(raised)
    task.result()
