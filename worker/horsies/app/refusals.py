"""Tasks that cannot be defined: noted while a module is imported, so that all of them are told at once."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Generator

    from horsies.errors import HorsiesError

_NOTED: ContextVar[list[HorsiesError] | None] = ContextVar("horsies_noted_refusals", default=None)


class StandIn:
    """Takes the place of a task that was refused, so that the rest of its module can be run and looked at.

    It is a decorator, a task and whatever comes of one: every call and every attribute gives it again.
    """

    def __call__(self, *_args: object, **_kwargs: object) -> Self:
        return self

    def __getattr__(self, name: str) -> Self:
        if name.startswith("__"):
            raise AttributeError(name)  # protocols that it does not follow
        return self


@contextmanager
def refusals_noted() -> Generator[list[HorsiesError]]:
    """Inside the block a refused definition does not raise; yields the faults, in the order in which they come."""
    noted: list[HorsiesError] = []
    token = _NOTED.set(noted)
    try:
        yield noted
    finally:
        _NOTED.reset(token)


def refuse(error: HorsiesError) -> StandIn:
    """Note the error where refusals are noted; raise it everywhere else."""
    noted = _NOTED.get()
    if noted is None:
        raise error
    noted.extend(error.faults)
    return StandIn()
