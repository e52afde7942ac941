from __future__ import annotations

from dataclasses import replace

from horsies_ops.reads.schedules import ScheduleRow
from horsies_tui.keys import ScreenId
from horsies_tui.screens.schedules import next_lines
from tests.support.fake_system import FakeOpener
from tests.support.fake_system.system import FakeSystem
from tests.support.tui import NOON, eventually, running_app, screen_text, until_plan_dialog


async def test_list_shows_next_run_outcomes_and_overdue_first() -> None:
    async with running_app(screen_id=ScreenId.SCHEDULES) as pilot:
        await eventually(pilot, lambda: "5 schedules" in screen_text(pilot))
        text = screen_text(pilot)
        assert text.index("rates") < text.index("digest")
        assert "late 2m31s" in text
        assert "1 overdue" in text
        assert "in 10m28s" in text
        assert "disabled" in text
        assert "HTTP_503" in text
        assert "⊘" in text


async def test_disabled_schedules_can_be_hidden() -> None:
    async with running_app(screen_id=ScreenId.SCHEDULES) as pilot:
        await eventually(pilot, lambda: "legacy-sync" in screen_text(pilot))
        await pilot.press("x")
        assert "legacy-sync" not in screen_text(pilot)
        assert "1 disabled hidden" in screen_text(pilot)


async def test_enter_opens_history_and_d_the_next_ten() -> None:
    async with running_app(screen_id=ScreenId.SCHEDULES) as pilot:
        await eventually(pilot, lambda: "digest" in screen_text(pilot))
        await pilot.press("j", "enter")
        await eventually(pilot, lambda: "History of digest" in screen_text(pilot))
        assert "⊘ skipped" in screen_text(pilot)
        await pilot.press("escape", "d")
        await eventually(pilot, lambda: "Next ten slots of digest" in screen_text(pilot))


async def test_pause_and_run_show_a_preview_and_act() -> None:
    async with running_app(screen_id=ScreenId.SCHEDULES) as pilot:
        await eventually(pilot, lambda: "digest" in screen_text(pilot))
        await pilot.press("j", "P")
        await until_plan_dialog(pilot)
        assert "Pause schedule digest" in screen_text(pilot)
        await pilot.press("y")
        await eventually(pilot, lambda: "digest paused" in screen_text(pilot))
        await pilot.press("escape")
        await eventually(pilot, lambda: "1 paused" in screen_text(pilot))
        await pilot.press("R")
        await eventually(pilot, lambda: "Run schedule digest" in screen_text(pilot))


async def test_large_backfill_asks_for_the_count() -> None:
    async with running_app(screen_id=ScreenId.SCHEDULES) as pilot:
        await eventually(pilot, lambda: "digest" in screen_text(pilot))
        await pilot.press("j", "B")
        await until_plan_dialog(pilot)
        assert "96" in screen_text(pilot)
        await pilot.press("y")
        assert "slots fired" in screen_text(pilot)
        assert "Backfill schedule digest" in screen_text(pilot)


async def test_empty_screen_explains_how_to_define_schedules() -> None:
    async with running_app(FakeOpener(FakeSystem(lambda: NOON)), screen_id=ScreenId.SCHEDULES) as pilot:
        await eventually(pilot, lambda: "There are no schedules" in screen_text(pilot))
        assert "@app.scheduled" in screen_text(pilot)


def test_next_slots_of_an_unknown_zone_are_not_shown() -> None:
    definition = '{"pattern": {"type": "daily", "time": "02:30"}, "timezone": "Mars/Olympus"}'
    row = ScheduleRow(name="nightly", definition=definition, next_run_at=NOON)
    assert [line.plain for line in next_lines(row)] == ["unknown time zone Mars/Olympus"]


def test_next_slots_of_a_paused_schedule_say_so() -> None:
    row = ScheduleRow(name="hourly", definition='{"pattern": {"type": "hourly", "minute": 0}}', next_run_at=NOON)
    texts = [line.plain for line in next_lines(replace(row, paused_at=NOON))]
    assert texts == ["paused: no slot fires until it is resumed", *(line.plain for line in next_lines(row))]


async def test_scheduler_that_leaves_is_no_longer_counted() -> None:
    system = FakeSystem(lambda: NOON)
    async with running_app(FakeOpener(system), screen_id=ScreenId.SCHEDULES) as pilot:
        await eventually(pilot, lambda: "schedulers running" in screen_text(pilot))
        system.schedulers = 1
        await eventually(pilot, lambda: "1 scheduler running" in screen_text(pilot))
