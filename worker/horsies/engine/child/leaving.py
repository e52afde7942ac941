"""How a child leaves when it knows why: it says so first, on the line of its life, which is nobody else's.

Any code in it can leave with any exit status, so that the status alone proves nothing.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from horsies.engine.messages import LAST_WORDS

if TYPE_CHECKING:
    from horsies.engine.messages import ExitStatus

_life_fd: int | None = None


def speak_on(life_fd: int) -> None:
    """Have the last word of this process go there; a copy that a task forks has none, nor holds the line open."""
    global _life_fd  # noqa: PLW0603  # a process leaves once
    _life_fd = life_fd
    os.register_at_fork(after_in_child=_fall_silent)


def leave_with(status: ExitStatus) -> NoReturn:
    """End at once, as the worker will be told; asks for no memory."""
    if _life_fd is not None:
        with suppress(OSError):
            os.write(_life_fd, LAST_WORDS[status])
    os._exit(status)


def _fall_silent() -> None:
    global _life_fd  # noqa: PLW0603  # the same
    if _life_fd is not None:
        with suppress(OSError):  # closed by the task itself
            os.close(_life_fd)
    _life_fd = None
