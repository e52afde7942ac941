"""A source whose time is over before it has looked at everything, as that of a table of millions is."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.tasks import Order, TaskPage
from horsies_tui.demo.source import DemoSource
from tests.support.screens import NOON

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable
    from uuid import UUID

    from horsies_tui.data.source import Source
    from horsies_tui.demo.system import System

EVERYTHING = TaskFilter()
HITS = TaskFilter(names=("such.a.task",))


class Hurried(DemoSource):
    """Looks at a few tasks a page, from either end, as if its time were over then; what is asked for by id it finds."""

    def __init__(self, system: System, *, looks_at: int = 100) -> None:
        super().__init__(system, read_only=False, pace_s=None)
        self._looks_at = looks_at

    @asynccontextmanager
    async def __call__(self, *, read_only: bool) -> AsyncGenerator[Source]:  # noqa: ARG002
        yield self

    async def list_tasks(
        self,
        filter: TaskFilter = EVERYTHING,  # noqa: A002
        *,
        order: Order = Order.NEWEST_FIRST,
        after: UUID | None = None,
        limit: int = 50,
    ) -> TaskPage:
        page = await super().list_tasks(filter, order=order, after=after, limit=limit)
        ahead = self._ahead(order, after)
        if filter.ids or len(ahead) <= self._looks_at:
            return page
        seen = ahead[: self._looks_at]
        found = tuple(task for task in page.tasks if task.id in seen)
        return page if len(found) == limit else TaskPage(tasks=found, next=seen[-1], searched_to=NOON)

    def _ahead(self, order: Order, after: UUID | None) -> list[UUID]:
        if order is Order.OLDEST_FIRST:
            return [each for each in self.system.order if after is None or each > after]
        return [each for each in reversed(self.system.order) if after is None or each < after]


def make_hits(system: System, places: Iterable[int]) -> tuple[UUID, ...]:
    """Let the tasks at these places match `HITS`, the oldest being at 0; returns them, newest first."""
    hits = [system.order[place] for place in places]
    system.tasks.update({each: replace(system.tasks[each], name=HITS.names[0]) for each in hits})
    return tuple(sorted(hits, reverse=True))
