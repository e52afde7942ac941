"""The task that is running here."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from horsies.model.info import TaskContext

_RUNNING: ContextVar[Callable[[], TaskContext] | None] = ContextVar("horsies_running_task", default=None)


def current_task() -> TaskContext | None:
    """The task whose code asks; None outside a task."""
    told = _RUNNING.get()
    return None if told is None else told()


class running:  # noqa: N801  # reads as the statement that it is part of
    """Make the task that `told` tells of the current one for the code inside; most tasks never ask."""

    __slots__ = ("_token", "_told")

    def __init__(self, told: Callable[[], TaskContext]) -> None:
        self._told = told

    def __enter__(self) -> None:
        self._token = _RUNNING.set(self._told)

    def __exit__(self, *_: object) -> None:
        _RUNNING.reset(self._token)
