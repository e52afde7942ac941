"""Workflows in a sweep: told beforehand, put right, and named in its report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeAlias

from horsies.flows.healing import Healed, put_right, try_quarantined, would_heal
from horsies.recovery.report import SweptWorkflow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from horsies.store.db import Database

Heal: TypeAlias = "Callable[[], Awaitable[Sequence[SweptWorkflow]]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Healing:
    """How one sweep heals. With `foresee`, it tells of what was stuck when it began, and of nothing else."""

    heal: Heal
    foresee: Heal | None = None

    @classmethod
    def by_hand(cls, database: Database) -> Self:
        """Put right what is stuck; what is asked for is left to workers."""

        async def do() -> list[SweptWorkflow]:
            return _told(await put_right(database))

        async def foresee() -> list[SweptWorkflow]:
            return _told(await would_heal(database))

        return cls(heal=do, foresee=foresee)

    @classmethod
    def by_worker(cls, database: Database, *, wake: Callable[[], None]) -> Self:
        """The same, what was set aside for long enough included; `wake` has what is asked for done.

        Not here: definitions are code of users, and one that hangs must not hold up a sweep.
        """

        async def do() -> list[SweptWorkflow]:
            await try_quarantined(database)
            healed = await put_right(database)
            wake()
            return _told(healed)

        return cls(heal=do)


def _told(healed: list[Healed]) -> list[SweptWorkflow]:
    return [
        SweptWorkflow(id=which, case=each.case, task_id=each.task_id)
        for each in healed
        if (which := each.workflow_id or each.task_id)
    ]
