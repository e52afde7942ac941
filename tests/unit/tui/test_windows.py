from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from horsies.model.task import TaskStatus
from horsies_ops.reads.filter import TaskFilter
from horsies_ops.reads.tasks import Order, TaskPage
from horsies_tui import windows
from horsies_tui.demo.catalogue import KINDS
from horsies_tui.demo.source import DemoSource
from horsies_tui.windows import PAGE, TaskWindow
from tests.support.screens import NOON, still

if TYPE_CHECKING:
    from uuid import UUID

    from horsies_tui.demo.system import System

EVERYTHING = TaskFilter()


class Hurried(DemoSource):
    """Looks at a hundred tasks a page, as if its time were over then; what is asked for by id it finds."""

    async def list_tasks(
        self,
        filter: TaskFilter = EVERYTHING,  # noqa: A002
        *,
        order: Order = Order.NEWEST_FIRST,
        after: UUID | None = None,
        limit: int = 50,
    ) -> TaskPage:
        page = await super().list_tasks(filter, order=order, after=after, limit=limit)
        ahead = [each for each in _newest_first(self.system) if after is None or each < after]
        if filter.ids or order is Order.OLDEST_FIRST or len(ahead) <= 100:
            return page
        found = tuple(task for task in page.tasks if task.id in ahead[:100])
        return TaskPage(tasks=found, next=ahead[99], searched_to=NOON)


RARE = TaskFilter(text="such a word is nowhere")


async def _searched(source: DemoSource, wanted: TaskFilter, times: int) -> TaskWindow:
    window = await windows.newest(source, wanted)
    for _ in range(times):
        window = await windows.older(source, window, most=500)
    return window


async def test_scrolling_on_searches_on_until_the_end_also_where_nothing_was_found_yet() -> None:
    source = Hurried(still(1000), read_only=False, pace_s=None)
    halfway, whole = await _searched(source, RARE, 4), await _searched(source, RARE, 20)
    assert (halfway.rows, halfway.has_older, halfway.searched_to) == ((), True, NOON)
    assert (whole.rows, whole.has_older, whole.searched_to) == ((), False, None)


async def test_what_was_found_further_back_stays_when_a_search_anew_does_not_come_as_far() -> None:
    source = Hurried(still(1000), read_only=False, pace_s=None)
    failed = TaskFilter(statuses=(TaskStatus.FAILED,))
    window = await _searched(source, failed, 4)
    fresh = await windows.again(source, window, cursor=None)
    assert len(window.rows) > len((await windows.newest(source, failed)).rows)
    assert (fresh.ids, fresh.next, fresh.searched_to) == (window.ids, window.next, NOON)


def _source(size: int = 1000) -> tuple[System, DemoSource]:
    system = still(size)
    return system, DemoSource(system, read_only=False, pace_s=None)


def _newest_first(system: System) -> list[UUID]:
    return system.order[::-1]


async def _grown(source: DemoSource, times: int, *, most: int = 500) -> TaskWindow:
    window = await windows.newest(source, EVERYTHING)
    for _ in range(times):
        window = await windows.older(source, window, most=most)
    return window


async def test_pages_follow_one_another_without_a_gap() -> None:
    system, source = _source()
    window = await _grown(source, 1)
    assert list(window.ids) == _newest_first(system)[: 2 * PAGE]
    assert window.is_at_top
    assert window.has_older


async def test_a_window_that_is_full_gives_up_its_other_end() -> None:
    system, source = _source()
    window = await _grown(source, 3, most=500)
    assert list(window.ids) == _newest_first(system)[4 * PAGE - 500 : 4 * PAGE]
    assert not window.is_at_top


async def test_one_gets_back_up_the_way_one_came() -> None:
    system, source = _source()
    window = await _grown(source, 3, most=500)
    while not window.is_at_top:
        window = await windows.newer(source, window, most=500)
    assert list(window.ids) == _newest_first(system)[:500]
    assert window.has_older


async def test_the_last_page_is_reached_at_once() -> None:
    system, source = _source()
    window = await windows.oldest(source, EVERYTHING)
    assert list(window.ids) == _newest_first(system)[-PAGE:]
    assert not window.has_older


async def test_at_the_top_new_rows_come_in() -> None:
    system, source = _source()
    window = await windows.newest(source, EVERYTHING)
    new = system.send(KINDS[0], at=NOON + timedelta(seconds=1))
    window = await windows.again(source, window, cursor=window.ids[3])
    assert window.ids[0] == new.id
    assert window.is_at_top


async def test_new_rows_never_push_out_the_one_under_the_cursor() -> None:
    system, source = _source()
    window = await windows.newest(source, EVERYTHING)
    cursor = window.ids[-1]
    for _ in range(7):
        system.send(KINDS[0], at=NOON + timedelta(seconds=1))
    window = await windows.again(source, window, cursor=cursor)
    assert cursor in window.ids
    assert window.newer == 7


async def test_held_rows_stay_where_they_are_and_show_what_became_of_them() -> None:
    system, source = _source()
    window = await windows.newest(source, TaskFilter(statuses=(TaskStatus.FAILED,)))
    first, second = window.ids[:2]
    system.move(first, TaskStatus.CANCELLED)
    del system.tasks[second]
    held = await windows.held(source, window)
    assert held.ids == tuple(each for each in window.ids if each != second)
    assert held.rows[0].status == TaskStatus.CANCELLED
    assert held.gone == {second}


async def test_rows_to_which_nothing_happened_are_equal_to_themselves() -> None:
    _, source = _source()
    window = await windows.newest(source, EVERYTHING)
    assert (await windows.again(source, window, cursor=None)).rows == window.rows
