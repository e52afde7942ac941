"""The invented system as a source: what `Ops` answers from the database, answered from memory."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from horsies.model.actions import ActionOptions
from horsies_ops.reads.changes import Change, Feed, Topic
from horsies_ops.reads.counts import Count, Facet, Facets
from horsies_ops.reads.filter import TaskFilter
from horsies_ops.reads.lookup import Found
from horsies_ops.reads.payloads import Payload
from horsies_ops.reads.tasks import Order, TaskPage
from horsies_tui.demo import acting, histories
from horsies_tui.demo.fleet_answers import FleetAnswers
from horsies_tui.demo.flow_answers import FlowAnswers
from horsies_tui.demo.keeping_answers import KeepingAnswers
from horsies_tui.demo.matching import matches
from horsies_tui.demo.schedules import schedules

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator
    from datetime import datetime

    from horsies.model.actions import Action
    from horsies_ops.actions.plan import Plan
    from horsies_ops.actions.report import ActionReport, Progress
    from horsies_ops.actions.selector import Selector
    from horsies_ops.reads.schedules import ScheduleRow
    from horsies_ops.reads.tasks import TaskDetail, TaskFacts, TaskSummary
    from horsies_tui.demo.system import System

_EVERY = TaskFilter()


class DemoSource(FleetAnswers, FlowAnswers, KeepingAnswers):
    """Reads and actions over a `System`; `pace_s` is how often it moves, None for never."""

    def __init__(self, system: System, *, read_only: bool, pace_s: float | None) -> None:
        self.system = system
        self._read_only = read_only
        self._pace_s = pace_s

    async def clock(self) -> datetime:
        return self.system.now()

    async def listen(self) -> AsyncIterator[Change]:
        yield Change(topic=Topic.FEED, kind=Feed.LIVE, at=self.system.now())
        while self._pace_s is not None:
            await asyncio.sleep(self._pace_s)
            self.system.step()
            for change in self.system.changes():
                yield change
        await asyncio.Event().wait()

    def _matching(self, wanted: TaskFilter, ids: Iterable[UUID]) -> Iterator[TaskFacts]:
        now = self.system.now()
        tasks = (self.system.tasks[each] for each in ids)
        return tasks if wanted.is_empty else (task for task in tasks if matches(task, wanted, now))

    async def list_tasks(
        self,
        filter: TaskFilter = _EVERY,  # noqa: A002
        *,
        order: Order = Order.NEWEST_FIRST,
        after: UUID | None = None,
        limit: int = 50,
    ) -> TaskPage:
        ids = self.system.order
        if order is Order.OLDEST_FIRST:
            following = iter(ids[bisect_right(ids, after or UUID(int=0)) :])
        else:
            last = len(ids) if after is None else bisect_left(ids, after)
            following = (ids[index] for index in range(last - 1, -1, -1))
        found: list[TaskFacts] = []
        for task in self._matching(filter, following):
            found.append(task)
            if len(found) > limit:
                break
        return TaskPage(tasks=tuple(found[:limit]), next=found[limit - 1].id if len(found) > limit else None)

    async def count_tasks(self, filter: TaskFilter = _EVERY, *, cap: int = 10_000) -> Count:  # noqa: A002
        if filter.is_empty:
            number = len(self.system.order)
        else:
            number = sum(1 for _ in self._matching(filter, self.system.order))
        return Count(number=min(number, cap), is_capped=number > cap)

    async def facets(self, filter: TaskFilter = _EVERY) -> Facets:  # noqa: A002
        found = list(self._matching(filter, self.system.order[-10_000:]))
        return Facets(
            statuses=_counted(task.status for task in found),
            queues=_counted(task.queue for task in found),
            names=_counted(task.name for task in found),
            error_codes=_counted(task.error_code for task in found if task.error_code),
        )

    async def tasks_by_id(self, ids: Iterable[UUID]) -> tuple[TaskSummary, ...]:
        known = (self.system.tasks.get(each) for each in sorted(ids, reverse=True))
        return tuple(task for task in known if task is not None)

    async def payloads_of(self, ids: Iterable[UUID]) -> dict[UUID, Payload]:
        known = (self.system.tasks[each] for each in ids if each in self.system.tasks)
        return {
            task.id: Payload(
                id=task.id, size=len(task.kwargs_json), args_json=task.args_json, kwargs_json=task.kwargs_json
            )
            for task in known
        }

    async def task(self, task_id: str | UUID) -> TaskDetail | None:
        task = self.system.tasks.get(UUID(str(task_id)))
        return None if task is None else histories.detail(task, self.system.now())

    async def list_schedules(self) -> tuple[ScheduleRow, ...]:
        return schedules(self.system)

    async def tasks_ending(self, short_form: str) -> tuple[Found, ...]:
        wanted = replace(_EVERY, ids=(short_form,))
        return tuple(
            Found(id=task.id, name=task.name, status=task.status) for task in self._matching(wanted, self.system.order)
        )

    async def plan(self, action: Action, which: Selector, options: ActionOptions | None = None) -> Plan:
        if which.ids is not None:
            tasks = [self.system.tasks[each] for each in which.ids if each in self.system.tasks]
        else:
            tasks = list(self._matching(which.filter or _EVERY, self.system.order))
        return acting.plan(action, replace(which, as_of=self.system.now()), options or ActionOptions(), tasks)

    async def apply(
        self, plan: Plan, *, progress: Callable[[Progress], None] | None = None, stop: asyncio.Event | None = None
    ) -> ActionReport:
        return await acting.apply(self.system, plan, progress=progress, stop=stop, read_only=self._read_only)

    async def undo_retry(self, report: ActionReport) -> ActionReport:
        return acting.undo(self.system, report)


def _counted(values: Iterable[str]) -> tuple[Facet, ...]:
    return tuple(Facet(value=value, count=count) for value, count in Counter(values).most_common())
