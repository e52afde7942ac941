from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

from horsies.model.task import TaskStatus
from horsies_ops.reads.filters import TaskFilter
from horsies_tui.data import pages
from horsies_tui.data.pages import PAGE_SIZE, TaskWindow
from tests.support.fake_system.catalog import KINDS
from tests.support.fake_system.source import FakeSource
from tests.support.fake_system.system import FakeSystem
from tests.support.tui import EVERYTHING, HITS, NOON, TimeLimitedSource, frozen_system, make_hits

NO_MATCH = TaskFilter(text="matches nothing")


async def _load_pages(source: FakeSource, task_filter: TaskFilter, times: int) -> TaskWindow:
    window = await pages.load_newest(source, task_filter)
    for _ in range(times):
        window = await pages.load_older(source, window, max_rows=500)
    return window


async def test_load_older_continues_unfinished_search_to_the_end() -> None:
    source = TimeLimitedSource(frozen_system(1000))
    halfway, whole = await _load_pages(source, NO_MATCH, 4), await _load_pages(source, NO_MATCH, 20)
    assert (halfway.rows, halfway.has_older, halfway.searched_to) == ((), True, NOON)
    assert (whole.rows, whole.has_older, whole.searched_to) == ((), False, None)


async def test_reload_keeps_older_rows_if_search_stops_earlier() -> None:
    source = TimeLimitedSource(frozen_system(1000))
    failed = TaskFilter(statuses=(TaskStatus.FAILED,))
    window = await _load_pages(source, failed, 4)
    fresh = await pages.reload(source, window, cursor=None)
    assert len(window.rows) > len((await pages.load_newest(source, failed)).rows)
    assert (fresh.ids, fresh.older_cursor, fresh.searched_to) == (window.ids, window.older_cursor, NOON)


async def test_load_oldest_continues_until_row_is_found() -> None:
    system = frozen_system(1000)
    hits = make_hits(system, range(450, 460))
    source = TimeLimitedSource(system)
    window = await pages.load_oldest(source, HITS)
    assert (window.rows, window.is_at_top, window.searched_newer_to, window.newer_count) == ((), False, NOON, 0)
    for _ in range(4):
        window = await pages.reload(source, window, cursor=None)
    assert (window.ids, window.has_older) == (hits, False)


async def test_unfinished_search_upwards_is_not_the_top() -> None:
    system = frozen_system(1000)
    hits = make_hits(system, (0, 1, 500, 990))
    source = TimeLimitedSource(system)
    window = await pages.load_oldest(source, HITS)
    for _ in range(8):
        window = await pages.reload(source, window, cursor=window.ids[0])
        assert window.ids == hits[-2:]
    assert (window.is_at_top, window.newer_count) == (False, 1)
    while not window.is_at_top:
        window = await pages.load_newer(source, window, max_rows=500)
    assert window.ids == hits


async def test_top_is_known_after_complete_search_upwards() -> None:
    system = frozen_system(1000)
    make_hits(system, (0,))
    source = TimeLimitedSource(system)
    window = await pages.load_oldest(source, HITS)
    for _ in range(len(system.task_ids) // 100):
        window = await pages.reload(source, window, cursor=window.ids[0])
    assert (len(window.rows), window.is_at_top, window.searched_newer_to) == (1, True, None)


@pytest.mark.parametrize("place", [0, -1])
async def test_reload_leaves_no_gap_after_many_new_rows(place: int) -> None:
    system = frozen_system(1000)
    make_hits(system, (-150, -50))
    source = TimeLimitedSource(system)
    old = await _load_pages(source, HITS, 1)
    for _ in range(350):
        system.send(KINDS[0], at=NOON + timedelta(seconds=1))
    hits = make_hits(system, (-320, -10, -400, -500))
    window = await pages.reload(source, old, cursor=old.ids[place])
    assert (window.ids, window.is_at_top) == (old.ids, False)
    fresh = await pages.reload(source, old, cursor=None)
    assert (fresh.ids, fresh.has_older) == (hits[:1], True)


async def test_reload_does_not_repeat_search_without_matches() -> None:
    system = frozen_system(1000)
    source = TimeLimitedSource(system)
    old = await _load_pages(source, HITS, 5)
    for _ in range(30):
        system.send(KINDS[0], at=NOON + timedelta(seconds=1))
    hits = make_hits(system, (-1,))
    window = await pages.reload(source, old, cursor=None)
    assert (window.ids, window.older_cursor, window.is_at_top) == (hits, old.older_cursor, True)


def _source(size: int = 1000) -> tuple[FakeSystem, FakeSource]:
    system = frozen_system(size)
    return system, FakeSource(system, read_only=False)


def _newest_first(system: FakeSystem) -> list[UUID]:
    return system.task_ids[::-1]


async def _load_all_pages(source: FakeSource, times: int, *, max_rows: int = 500) -> TaskWindow:
    window = await pages.load_newest(source, EVERYTHING)
    for _ in range(times):
        window = await pages.load_older(source, window, max_rows=max_rows)
    return window


async def test_pages_are_contiguous() -> None:
    system, source = _source()
    window = await _load_all_pages(source, 1)
    assert list(window.ids) == _newest_first(system)[: 2 * PAGE_SIZE]
    assert window.is_at_top
    assert window.has_older


async def test_full_window_drops_rows_at_other_end() -> None:
    system, source = _source()
    window = await _load_all_pages(source, 3, max_rows=500)
    assert list(window.ids) == _newest_first(system)[4 * PAGE_SIZE - 500 : 4 * PAGE_SIZE]
    assert not window.is_at_top


async def test_load_newer_returns_to_the_top() -> None:
    system, source = _source()
    window = await _load_all_pages(source, 3, max_rows=500)
    while not window.is_at_top:
        window = await pages.load_newer(source, window, max_rows=500)
    assert list(window.ids) == _newest_first(system)[:500]
    assert window.has_older


async def test_load_oldest_loads_last_page() -> None:
    system, source = _source()
    window = await pages.load_oldest(source, EVERYTHING)
    assert list(window.ids) == _newest_first(system)[-PAGE_SIZE:]
    assert not window.has_older


async def test_reload_at_top_takes_in_new_rows() -> None:
    system, source = _source()
    window = await pages.load_newest(source, EVERYTHING)
    new = system.send(KINDS[0], at=NOON + timedelta(seconds=1))
    window = await pages.reload(source, window, cursor=window.ids[3])
    assert window.ids[0] == new.id
    assert window.is_at_top


async def test_new_rows_never_push_out_cursor_row() -> None:
    system, source = _source()
    window = await pages.load_newest(source, EVERYTHING)
    cursor = window.ids[-1]
    for _ in range(7):
        system.send(KINDS[0], at=NOON + timedelta(seconds=1))
    window = await pages.reload(source, window, cursor=cursor)
    assert cursor in window.ids
    assert window.newer_count == 7


async def test_reload_in_place_keeps_rows_and_updates_them() -> None:
    system, source = _source()
    window = await pages.load_newest(source, TaskFilter(statuses=(TaskStatus.FAILED,)))
    first, second = window.ids[:2]
    system.move(first, TaskStatus.CANCELLED)
    del system.tasks[second]
    reloaded = await pages.reload_in_place(source, window)
    assert reloaded.ids == tuple(task_id for task_id in window.ids if task_id != second)
    assert reloaded.rows[0].status == TaskStatus.CANCELLED
    assert reloaded.deleted_ids == {second}


async def test_unchanged_rows_compare_equal_after_reload() -> None:
    _, source = _source()
    window = await pages.load_newest(source, EVERYTHING)
    assert (await pages.reload(source, window, cursor=None)).rows == window.rows
