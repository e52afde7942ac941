"""The task that is running here."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horsies.model.info import TaskContext

_RUNNING: ContextVar[TaskContext | None] = ContextVar("horsies_running_task", default=None)


def current_task() -> TaskContext | None:
    """The task whose code asks; None outside a task."""
    return _RUNNING.get()


class running:  # noqa: N801  # reads as the statement that it is part of
    """Make `task` the current one for the code inside."""

    __slots__ = ("_task", "_token")

    def __init__(self, task: TaskContext) -> None:
        self._task = task

    def __enter__(self) -> None:
        self._token = _RUNNING.set(self._task)

    def __exit__(self, *_: object) -> None:
        _RUNNING.reset(self._token)
