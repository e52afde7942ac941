"""A process that a task has forked: a copy of the child, which must never go on as one.

It has the child's inbox and event loop in its memory. Where its code comes back from the task, it leaves, as a program
does that has come to its end.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import asyncio

_is_copy = False


def is_copy() -> bool:
    """Whether this process was forked by a task; always false outside of children."""
    return _is_copy


def tell_copies(loop: asyncio.AbstractEventLoop) -> None:
    """Have every process forked from this one know that it is a copy, and leave if it comes back to the loop."""
    os.register_at_fork(after_in_child=lambda: _become_copy(loop))


def leave(raised: object = None) -> NoReturn:
    """End at once, with the status and the last words of a program that ended like this."""
    try:
        _speak(raised)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(_status(raised))


def _become_copy(loop: asyncio.AbstractEventLoop) -> None:
    global _is_copy  # noqa: PLW0603  # a fact of this process
    _is_copy = True
    if loop.is_running():
        # The next steps of other coroutines are the child's. There is no public way to take them off the loop.
        waiting: Any = getattr(loop, "_ready", None)
        if waiting is not None:
            waiting.clear()
        loop.call_soon(leave, RuntimeError("a forked process cannot wait on the event loop of the child"))


def _speak(raised: object) -> None:
    if isinstance(raised, SystemExit):
        if isinstance(raised.code, str):
            print(raised.code, file=sys.stderr)  # noqa: T201  # as the interpreter does
    elif isinstance(raised, BaseException):
        with suppress(Exception):  # its own methods are user code
            traceback.print_exception(raised)


def _status(raised: object) -> int:
    match raised:
        case None | SystemExit(code=None):
            return 0
        case SystemExit(code=int(status)):
            return status
        case _:
            return 1
