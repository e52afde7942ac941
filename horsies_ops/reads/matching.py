"""Which tasks match a filter, how many there are, and what occurs among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from horsies.store.db import Database
    from horsies_ops.reads.counts import Count, Facets
    from horsies_ops.reads.filter import TaskFilter

MOST_COUNTED: Final = 10_000


async def count_tasks(database: Database, wanted: TaskFilter, *, cap: int = MOST_COUNTED) -> Count:
    raise NotImplementedError


async def facets(database: Database, wanted: TaskFilter) -> Facets:
    raise NotImplementedError
