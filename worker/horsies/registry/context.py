"""The task that is running here."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

    from horsies.model.info import TaskContext

_RUNNING: ContextVar[TaskContext | None] = ContextVar("horsies_running_task", default=None)


def current_task() -> TaskContext | None:
    """The task whose code asks; None outside a task."""
    return _RUNNING.get()


@contextmanager
def running(task: TaskContext) -> Generator[None]:
    """Make `task` the current one for the code inside."""
    token = _RUNNING.set(task)
    try:
        yield
    finally:
        _RUNNING.reset(token)
