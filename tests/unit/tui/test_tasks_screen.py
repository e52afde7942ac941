from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID

import pytest
from textual.pilot import Pilot

from horsies.model.settings import TuiConfig
from horsies.model.task import TaskStatus
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.tasks import TaskOrder, TaskPage
from horsies_tui.keys import ACTIONS, ScreenId, SharedScope, actions_in
from horsies_tui.screens import SCREENS, screen_class
from horsies_tui.screens.tasks.screen import TasksScreen
from horsies_tui.widgets.filter_bar import FilterBar
from horsies_tui.widgets.row_list import RowList
from tests.support.fake_system import FakeOpener
from tests.support.fake_system.catalog import KINDS
from tests.support.fake_system.system import FakeSystem
from tests.support.tui import (
    EVERYTHING,
    HITS,
    NOON,
    TimeLimitedSource,
    eventually,
    frozen_system,
    lines,
    make_hits,
    running_app,
    screen_text,
    until_plan_dialog,
    until_stable,
)

MUTATING = [action for action in ACTIONS if action.mutates]
FAILED_MAIL = TaskFilter(statuses=("FAILED",), queues=("mail",))
"""Tasks without a workflow, so that each can be retried."""


def _screen(pilot: Pilot[None]) -> TasksScreen:
    screen = next(screen for screen in pilot.app.screen_stack if isinstance(screen, TasksScreen))
    assert isinstance(screen, TasksScreen)
    return screen


async def _apply_filter(pilot: Pilot[None], task_filter: TaskFilter) -> None:
    _screen(pilot).apply_filter(task_filter)
    await eventually(pilot, lambda: _screen(pilot).window.filter == task_filter)
    await until_stable(pilot)


async def test_filter_applies_while_typing() -> None:
    async with running_app() as pilot:
        await pilot.press("slash", *"status:failed queue:mail")
        await eventually(pilot, lambda: list(_screen(pilot).filter.queues) == ["mail"])
        await until_stable(pilot)
        rows = _screen(pilot).list.rows
        assert rows
        assert {(row.status, row.queue) for row in rows} == {("FAILED", "mail")}


async def test_invalid_filter_is_reported_and_ignored() -> None:
    async with running_app() as pilot:
        before = _screen(pilot).list.rows
        await pilot.press("slash", *"colour:red", "enter")
        assert pilot.app.screen.query_one(FilterBar).has_class("-invalid")
        assert _screen(pilot).list.rows == before


async def test_marked_rows_are_retried_and_unmarked() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system)) as pilot:
        await _apply_filter(pilot, FAILED_MAIL)
        before = len(system.tasks)
        await pilot.press("space", "space", "R")
        await until_plan_dialog(pilot)
        assert "Retry 2 tasks" in screen_text(pilot)
        assert len(system.tasks) == before
        await pilot.press("y")
        await eventually(pilot, lambda: "changed 2" in screen_text(pilot))
        await pilot.press("enter")
        await eventually(pilot, lambda: pilot.app.screen is _screen(pilot))
        assert len(system.tasks) == before + 2
        assert not _screen(pilot).list.selection.marks


async def test_enter_in_preview_goes_back() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system)) as pilot:
        await _apply_filter(pilot, TaskFilter(statuses=("FAILED",)))
        before = dict(system.tasks)
        await pilot.press("R")
        await until_plan_dialog(pilot)
        await pilot.press("enter")
        await eventually(pilot, lambda: pilot.app.screen is _screen(pilot))
        assert system.tasks == before


async def test_new_preview_ignores_keys_typed_earlier() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system)) as pilot:
        await _apply_filter(pilot, TaskFilter(statuses=("FAILED",)))
        before = dict(system.tasks)
        await pilot.press("R")
        preview = await until_plan_dialog(pilot)
        preview.keys_enabled.clear()
        await pilot.press("y", "enter")
        assert pilot.app.screen is preview
        assert system.tasks == before


async def test_action_on_all_matching_requires_typed_count() -> None:
    system = frozen_system()
    task_filter = TaskFilter(statuses=("PENDING",), due_later=True)
    async with running_app(FakeOpener(system)) as pilot:
        await _apply_filter(pilot, task_filter)
        count = len(_screen(pilot).list.rows)
        cancelled = len(system.in_state(TaskStatus.CANCELLED))
        await pilot.press("ctrl+a")
        await eventually(pilot, lambda: "all matching tasks selected" in screen_text(pilot))
        await pilot.press("C")
        await until_plan_dialog(pilot)
        await pilot.press("y")
        assert len(system.in_state(TaskStatus.CANCELLED)) == cancelled
        await pilot.press(*str(count), "enter")
        await eventually(pilot, lambda: f"changed {count}" in screen_text(pilot))
        assert len(system.in_state(TaskStatus.CANCELLED)) == cancelled + count


async def test_wrong_count_goes_back() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system)) as pilot:
        await _apply_filter(pilot, TaskFilter(statuses=("FAILED",)))
        before = dict(system.tasks)
        await pilot.press("ctrl+a")
        await eventually(pilot, lambda: "all matching tasks selected" in screen_text(pilot))
        await pilot.press("R")
        await until_plan_dialog(pilot)
        await pilot.press("0", "enter")
        await eventually(pilot, lambda: pilot.app.screen is _screen(pilot))
        assert system.tasks == before


async def test_row_changed_during_preview_is_skipped_and_stays_marked() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system)) as pilot:
        await _apply_filter(pilot, TaskFilter(statuses=("PENDING",), due_later=True))
        first, second = [row.id for row in _screen(pilot).list.rows[:2]]
        await pilot.press("space", "space", "C")
        await until_plan_dialog(pilot)
        system.move(first, TaskStatus.RUNNING)
        await pilot.press("y")
        await eventually(pilot, lambda: "changed 1" in screen_text(pilot))
        assert "TASK_STATE_MOVED" in screen_text(pilot)
        await pilot.press("enter")
        await eventually(pilot, lambda: pilot.app.screen is _screen(pilot))
        assert system.tasks[first].status == TaskStatus.RUNNING
        assert system.tasks[second].status == TaskStatus.CANCELLED
        assert _screen(pilot).list.selection.marks == {first}


async def test_list_holds_still_while_rows_are_marked() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system)) as pilot:
        before = [row.id for row in _screen(pilot).list.rows]
        await pilot.press("space")
        system.send(KINDS[0], at=NOON + timedelta(seconds=1))
        _screen(pilot).context.queries.invalidate_all()
        await eventually(pilot, lambda: "1 newer waiting" in screen_text(pilot))
        assert [row.id for row in _screen(pilot).list.rows] == before
        await pilot.press("u")
        await eventually(pilot, lambda: _screen(pilot).list.rows[1].id == before[0])


async def test_esc_leaves_input_then_undoes_the_newest_first() -> None:
    async with running_app() as pilot:
        await _apply_filter(pilot, TaskFilter(statuses=("FAILED",)))
        await pilot.press("space", "slash", "escape")
        assert pilot.app.focused is _screen(pilot).list
        await pilot.press("escape")
        assert (bool(_screen(pilot).list.selection.marks), _screen(pilot).filter.is_empty) == (False, False)
        await pilot.press("space")
        await _apply_filter(pilot, TaskFilter(queues=("mail",)))
        await pilot.press("escape")
        assert (bool(_screen(pilot).list.selection.marks), _screen(pilot).filter.is_empty) == (True, True)
        await pilot.press("escape", "escape")
        assert not _screen(pilot).list.selection.marks
        assert pilot.app.is_running


async def test_cursor_follows_newest_row_until_user_moves() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system)) as pilot:
        screen = _screen(pilot)
        newest = system.send(KINDS[0], at=NOON + timedelta(seconds=1)).id
        screen.context.queries.invalidate_all()
        await eventually(pilot, lambda: screen.list.selection.cursor == newest)
        await pilot.press("j")
        moved_to = screen.list.selection.cursor
        later = system.send(KINDS[0], at=NOON + timedelta(seconds=2)).id
        screen.context.queries.invalidate_all()
        await eventually(pilot, lambda: screen.list.rows[0].id == later)
        assert screen.list.selection.cursor == moved_to


async def test_new_rows_do_not_move_the_line_that_is_read() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system)) as pilot:
        screen = _screen(pilot)
        await pilot.press("j", "j")
        line, name = next((y, line) for y, line in enumerate(lines(pilot)) if line.startswith("▌"))
        later = system.send(KINDS[0], at=NOON + timedelta(seconds=2)).id
        screen.context.queries.invalidate_all()
        await eventually(pilot, lambda: screen.list.rows[0].id == later)
        await until_stable(pilot)
        assert lines(pilot)[line] == name
        assert "1 newer, g follows" in screen_text(pilot)
        await pilot.press("g")
        assert screen.list.selection.cursor == later
        await eventually(pilot, lambda: "newer" not in screen_text(pilot))


async def test_new_filter_puts_cursor_on_first_row() -> None:
    async with running_app() as pilot:
        screen = _screen(pilot)
        await pilot.press("j", "j", "j")
        screen.apply_filter(TaskFilter(queues=("mail",)))
        await eventually(pilot, lambda: screen.window.filter.queues == ("mail",))
        assert screen.list.selection.cursor_index == 0


async def test_requeue_key_is_labelled_by_the_row() -> None:
    async with running_app() as pilot:
        screen = _screen(pilot)
        screen.apply_filter(TaskFilter(statuses=("FAILED",)))
        await eventually(pilot, lambda: "R retry" in screen_text(pilot))
        screen.apply_filter(TaskFilter(statuses=("RUNNING",)))
        await eventually(pilot, lambda: "R requeue" in screen_text(pilot))


async def test_action_key_says_that_the_session_is_read_only() -> None:
    async with running_app(read_only=True, notifies=True, size=(120, 36)) as pilot:
        await pilot.press("R")
        await eventually(pilot, lambda: "cannot requeue: read-only" in screen_text(pilot))


async def test_read_only_refuses_every_mutating_action() -> None:
    system = frozen_system(50)
    async with running_app(FakeOpener(system), read_only=True) as pilot:
        before = dict(system.tasks)
        assert "RO" in screen_text(pilot)
        for action in MUTATING:
            await pilot.press(*action.keys)
            assert pilot.app.screen is _screen(pilot)
            assert _screen(pilot).check_action(action.method, ()) is None
        assert system.tasks == before


async def test_leaving_read_only_requires_database_name() -> None:
    async with running_app(read_only=True) as pilot:
        await pilot.press("exclamation_mark", *"db2", "enter")
        assert "RO" in screen_text(pilot)
        await pilot.press("exclamation_mark", *"db1/app", "enter")
        await eventually(pilot, lambda: "RW" in screen_text(pilot))


async def test_read_only_setting_cannot_be_left() -> None:
    async with running_app(settings=TuiConfig(read_only=True)) as pilot:
        await pilot.press("exclamation_mark")
        await pilot.pause()
        assert pilot.app.screen is _screen(pilot)
        assert "RO" in screen_text(pilot)


async def test_reason_is_required_by_setting() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system), settings=TuiConfig(require_reason=True)) as pilot:
        await _apply_filter(pilot, FAILED_MAIL)
        before = len(system.tasks)
        await pilot.press("R")
        await until_plan_dialog(pilot)
        await pilot.press("y")
        assert len(system.tasks) == before
        await pilot.press(*"smtp is back", "enter", "y")
        await eventually(pilot, lambda: "changed 1" in screen_text(pilot))


@pytest.mark.parametrize("screen_id", SCREENS)
def test_every_screen_action_has_a_method(screen_id: ScreenId) -> None:
    screen = screen_class(screen_id)
    assert screen.scope is screen_id
    for action in actions_in(screen_id):
        assert callable(getattr(screen, f"action_{action.method}", None)), action.id


def test_every_list_action_has_a_method() -> None:
    for action in actions_in(SharedScope.LIST):
        assert callable(getattr(RowList, f"action_{action.method}", None)), action.id


async def test_invalid_filter_stays_reported_and_selects_nothing() -> None:
    async with running_app() as pilot:
        await _apply_filter(pilot, TaskFilter(statuses=("FAILED",)))
        await pilot.press("slash", *" colour:red", "enter", "escape")
        _screen(pilot).context.queries.refresh("count")
        await until_stable(pilot)
        assert "match " not in screen_text(pilot).splitlines()[2]
        await pilot.press("ctrl+a")
        await until_stable(pilot)
        assert "all matching tasks selected" not in screen_text(pilot)


async def test_copy_is_refused_for_all_matching() -> None:
    async with running_app() as pilot:
        await _apply_filter(pilot, TaskFilter(statuses=("FAILED",)))
        await pilot.press("ctrl+a")
        await eventually(pilot, lambda: "all matching tasks selected" in screen_text(pilot))
        await pilot.press("y")
        assert pilot.app.clipboard == ""


async def test_keys_typed_after_slash_go_into_filter() -> None:
    async with running_app() as pilot:
        for key in ("slash", *"mail"):
            pilot.app.simulate_key(key)
        await eventually(pilot, lambda: _screen(pilot).query_one(FilterBar).text == "mail")
        assert not _screen(pilot).list.selection.marks


async def test_slash_within_filter_is_text() -> None:
    async with running_app() as pilot:
        await pilot.press("slash", *"mail", "slash", "x")
        assert _screen(pilot).query_one(FilterBar).text == "mail/x"


async def test_dry_run_of_marked_rows_changes_nothing() -> None:
    system = frozen_system()
    async with running_app(FakeOpener(system), read_only=True) as pilot:
        await _apply_filter(pilot, FAILED_MAIL)
        before = dict(system.tasks)
        await pilot.press("space", "space", "d")
        await until_plan_dialog(pilot)
        assert "Retry 2 tasks — dry run" in screen_text(pilot)
        await pilot.press("y")
        assert system.tasks == before


class SteppingSource(TimeLimitedSource):
    """Continues an upward search only when allowed."""

    def __init__(self, system: FakeSystem, may_continue: asyncio.Event) -> None:
        super().__init__(system, rows_per_page=300)
        self._may_continue = may_continue

    async def list_tasks(
        self,
        filter: TaskFilter = EVERYTHING,  # noqa: A002
        *,
        order: TaskOrder = TaskOrder.NEWEST_FIRST,
        after: UUID | None = None,
        limit: int = 50,
    ) -> TaskPage:
        if order is TaskOrder.OLDEST_FIRST and after is not None:
            await self._may_continue.wait()
        return await super().list_tasks(filter, order=order, after=after, limit=limit)


async def test_search_for_oldest_match_continues_until_found() -> None:
    system, may_continue = frozen_system(1500), asyncio.Event()
    hits = make_hits(system, range(-400, 0))
    async with running_app(SteppingSource(system, may_continue), size=(120, 24)) as pilot:
        await _apply_filter(pilot, HITS)
        await pilot.press("G")
        await eventually(pilot, lambda: "searched up to" in screen_text(pilot))
        assert "still searching" in screen_text(pilot)
        assert "nothing matches" not in screen_text(pilot)
        may_continue.set()
        await eventually(pilot, lambda: bool(_screen(pilot).window.rows))
        assert _screen(pilot).window.ids[-1] == hits[-1]
