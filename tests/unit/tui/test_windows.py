from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from horsies.model.task import TaskStatus
from horsies_ops.reads.filter import TaskFilter
from horsies_tui import windows
from horsies_tui.demo.catalogue import KINDS
from horsies_tui.demo.source import DemoSource
from horsies_tui.windows import PAGE, TaskWindow
from tests.support.screens import NOON, still

if TYPE_CHECKING:
    from uuid import UUID

    from horsies_tui.demo.system import System

EVERYTHING = TaskFilter()


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
