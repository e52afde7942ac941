"""The tasks that a selector means, as they stand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from horsies.store.actions import ACTIONS
from horsies_ops.reads.matching import MOST_CANDIDATES, stretches

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from horsies.store.actions import TargetRow
    from horsies.store.db import Database
    from horsies_ops.actions.selector import Selector
    from horsies_ops.reads.filter import TaskFilter

NAMED_AT_ONCE: Final = 5000


async def chosen(database: Database, selector: Selector, limit: int | None) -> AsyncGenerator[Sequence[TargetRow]]:
    """At most `limit` of them, some thousand at a time; of a filter's, the newest first."""
    if selector.ids is not None:
        for start in range(0, len(selector.ids[:limit]), NAMED_AT_ONCE):
            yield await database.fetch(ACTIONS.targets, selector.ids[:limit][start : start + NAMED_AT_ONCE], None)
    elif selector.filter is not None:
        async for rows in _matching(database, selector, selector.filter, limit):
            yield rows


async def _matching(
    database: Database, selector: Selector, wanted: TaskFilter, limit: int | None
) -> AsyncGenerator[Sequence[TargetRow]]:
    """Stretch by stretch from the newest, so that what arrives meanwhile is never met."""
    left = limit
    async for stretch in stretches(database, wanted, enough=MOST_CANDIDATES):
        shown = {match.id: match.status for match in stretch.matches}
        rows = await database.fetch(ACTIONS.targets, list(shown), selector.as_of)
        # One that has moved between the two looks may not match any more.
        rows = [row for row in reversed(rows) if row.status == shown[row.id]][:left]
        yield rows
        left = None if left is None else left - len(rows)
        if left == 0:
            return
