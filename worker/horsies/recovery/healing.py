"""Workflows in a sweep: told beforehand, put right, and named in its report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeAlias

from horsies.flows.healing import put_right, try_quarantined, would_heal
from horsies.recovery.report import SweptWorkflow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from horsies.flows.healing import Healed, Righted
    from horsies.store.db import Database

Heal: TypeAlias = "Callable[[Callable[[], bool]], Awaitable[Righted]]"
Foresee: TypeAlias = "Callable[[], Awaitable[Sequence[Healed]]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Healing:
    """How one sweep heals. With `foresee`, it tells of what was stuck when it began, and of nothing else.

    `heal` is given what says whether the sweep is over.
    """

    heal: Heal
    foresee: Foresee | None = None

    @classmethod
    def by_hand(cls, database: Database) -> Self:
        """Put right what is stuck; what is asked for is left to workers."""

        async def do(is_over: Callable[[], bool]) -> Righted:
            return await put_right(database, is_over=is_over)

        async def foresee() -> list[Healed]:
            return await would_heal(database)

        return cls(heal=do, foresee=foresee)

    @classmethod
    def by_worker(cls, database: Database, *, wake: Callable[[], None]) -> Self:
        """The same, what was set aside for long enough included; `wake` has what is asked for done.

        Not here: definitions are code of users, and one that hangs must not hold up a sweep.
        """

        async def do(is_over: Callable[[], bool]) -> Righted:
            await try_quarantined(database)
            righted = await put_right(database, is_over=is_over)
            wake()
            return righted

        return cls(heal=do)


def told(healed: Sequence[Healed]) -> list[SweptWorkflow]:
    """What a report says of them."""
    return [
        SweptWorkflow(id=which, case=each.case, task_id=each.task_id)
        for each in healed
        if (which := each.workflow_id or each.task_id)
    ]
