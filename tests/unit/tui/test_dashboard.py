from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from textual.message import Message
from textual.pilot import Pilot

from horsies.model.settings import TuiConfig
from horsies_ops.reads.overview import QueueRow
from horsies_ops.source import DataSource
from horsies_tui.keys import ScreenId
from horsies_tui.proposals.dialog import ProposalDialog
from horsies_tui.screens.base import ShowTasks, ShowWorker
from horsies_tui.screens.dashboard import DashboardScreen
from horsies_tui.screens.entries import NO_ACTIONS
from horsies_tui.screens.tasks.screen import TasksScreen
from horsies_tui.screens.workers import WorkersScreen
from horsies_tui.screens.workflows import WorkflowsScreen
from horsies_tui.theme import SPARKS
from horsies_tui.widgets.page import Pane
from tests.support.fake_system import FakeOpener
from tests.support.fake_system.catalog import KINDS_BY_NAME, LOST_WORKER, WORKERS
from tests.support.fake_system.source import FakeSource
from tests.support.fake_system.system import FakeSystem
from tests.support.tui import (
    NOON,
    eventually,
    frozen_system,
    lines,
    running_app,
    screen_text,
    until_plan_dialog,
    until_stable,
)


async def _move_to(pilot: Pilot[None], key: str) -> DashboardScreen:
    """Return the dashboard with the cursor on this alert."""
    screen = pilot.app.screen
    assert isinstance(screen, DashboardScreen)
    await eventually(pilot, lambda: key in screen.list.selection.keys)
    screen.list.move_to(screen.list.selection.keys.index(key))
    await until_stable(pilot)
    return screen


async def test_task_alert_opens_its_tasks() -> None:
    messages: list[Message] = []
    async with running_app(screen_id=ScreenId.DASHBOARD, hook=messages.append) as pilot:
        await _move_to(pilot, "stale RUNNING")
        await pilot.press("enter")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, TasksScreen))
        tasks = pilot.app.screen
        assert isinstance(tasks, TasksScreen)
        (task_filter,) = {message.filter for message in messages if isinstance(message, ShowTasks)}
        await eventually(pilot, lambda: tasks.window.filter == task_filter)
        assert {row.status for row in tasks.list.rows} == {"RUNNING"}
        assert LOST_WORKER.worker_id in {row.worker_id for row in tasks.list.rows}


async def test_worker_alert_opens_that_worker() -> None:
    messages: list[Message] = []
    async with running_app(screen_id=ScreenId.DASHBOARD, hook=messages.append) as pilot:
        await _move_to(pilot, f"dead {LOST_WORKER.worker_id}")
        await pilot.press("enter")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, WorkersScreen))
        workers = pilot.app.screen
        assert isinstance(workers, WorkersScreen)
        assert any(isinstance(message, ShowWorker) for message in messages)
        await eventually(pilot, lambda: workers.list.selection.cursor == LOST_WORKER.worker_id)


async def test_cursor_stays_on_its_alert_when_others_change() -> None:
    async with running_app(screen_id=ScreenId.DASHBOARD) as pilot:
        screen = await _move_to(pilot, "failures")
        await _move_to(pilot, "stale CLAIMED")
        screen.list.show([row for row in screen.list.rows if row.key != "stale RUNNING"])
        assert screen.list.current is not None
        assert screen.list.current.key == "stale CLAIMED"


async def test_cursor_follows_the_most_severe_alert_until_it_is_moved() -> None:
    async with running_app(screen_id=ScreenId.DASHBOARD) as pilot:
        screen = pilot.app.screen
        assert isinstance(screen, DashboardScreen)
        await eventually(pilot, lambda: len(screen.list.rows) > 1)
        alerts = screen.list.rows
        screen.list.show(alerts[1:])
        screen.list.show(alerts)
        assert screen.list.current == alerts[0]


async def test_newest_operator_action_comes_first() -> None:
    async with running_app(screen_id=ScreenId.DASHBOARD, size=(120, 36)) as pilot:
        await eventually(pilot, lambda: " cron " in screen_text(pilot))
        assert screen_text(pilot).index(" ana ") < screen_text(pilot).index(" cron ")


async def test_empty_system_has_no_task_alerts() -> None:
    opener = FakeOpener(FakeSystem(lambda: NOON))
    async with running_app(opener, screen_id=ScreenId.DASHBOARD, size=(120, 36)) as pilot:
        await eventually(pilot, lambda: NO_ACTIONS in screen_text(pilot))
        screen = pilot.app.screen
        assert isinstance(screen, DashboardScreen)
        assert {row.key for row in screen.list.rows} <= {f"dead {worker.worker_id}" for worker in WORKERS}


class BusySource(FakeSource):
    """So many tasks finished in the last minute that completed ones are estimated; failed ones never are."""

    async def list_queues(self) -> tuple[QueueRow, ...]:
        rows = await super().list_queues()
        return tuple(replace(row, finished_last_minute=2_585, failed_last_minute=30, is_estimate=True) for row in rows)


async def test_only_completed_tasks_are_marked_as_estimated() -> None:
    @asynccontextmanager
    async def opener(*, read_only: bool) -> AsyncGenerator[DataSource]:
        yield BusySource(frozen_system(), read_only=read_only)

    async with running_app(opener, screen_id=ScreenId.DASHBOARD, size=(120, 36)) as pilot:
        await eventually(pilot, lambda: "~15k " in screen_text(pilot) and " 180 failed" in screen_text(pilot))
        await pilot.press("2")
        await eventually(pilot, lambda: "~2.6k     30" in screen_text(pilot))


@pytest.mark.parametrize(
    ("alert", "key", "title"),
    [
        ("stale RUNNING", "S", "Sweep"),
        ("failures", "S", "Sweep"),
        (f"dead {LOST_WORKER.worker_id}", "R", "worker 000000a7"),
        ("runs FAILED", "R", "digest-run"),
        ("runs PAUSED", "P", "etl-night"),
        ("queue mail", "P", "Resume queue mail"),
    ],
)
async def test_key_of_an_alert_previews_the_fix(alert: str, key: str, title: str) -> None:
    system = frozen_system()
    await FakeSource(system, read_only=False).pause_queue("mail", reason="smtp down")
    system.send(KINDS_BY_NAME["mail.send"], at=NOON)
    async with running_app(FakeOpener(system), screen_id=ScreenId.DASHBOARD) as pilot:
        await _move_to(pilot, alert)
        await pilot.press(key)
        dialog = await until_plan_dialog(pilot)
        assert title.lower() in screen_text(pilot).lower(), dialog


async def test_key_of_another_alert_moves_there_and_previews_the_fix() -> None:
    async with running_app(screen_id=ScreenId.DASHBOARD) as pilot:
        screen = await _move_to(pilot, "failures")
        await pilot.press("P")
        await until_plan_dialog(pilot)
        assert "etl-night" in screen_text(pilot)
        assert screen.list.selection.cursor == "runs PAUSED"


async def test_key_that_fixes_no_alert_does_nothing() -> None:
    opener = FakeOpener(FakeSystem(lambda: NOON))
    async with running_app(opener, screen_id=ScreenId.DASHBOARD, notifies=True) as pilot:
        await pilot.press("P")
        await eventually(pilot, lambda: "no line has this key" in screen_text(pilot))
        assert not isinstance(pilot.app.screen, ProposalDialog)


async def test_unserved_queue_opens_instructions() -> None:
    async with running_app(screen_id=ScreenId.DASHBOARD, notifies=True, size=(120, 36)) as pilot:
        await _move_to(pilot, "queue reports")
        await pilot.press("enter")
        await eventually(pilot, lambda: "--queues reports" in screen_text(pilot))


async def test_run_alert_opens_that_run() -> None:
    async with running_app(screen_id=ScreenId.DASHBOARD) as pilot:
        await _move_to(pilot, "runs FAILED")
        await pilot.press("enter")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, WorkflowsScreen))


async def test_every_alert_line_ends_with_its_key() -> None:
    async with running_app(screen_id=ScreenId.DASHBOARD, settings=TuiConfig(keys={"op.sweep": "ctrl+w"})) as pilot:
        await _move_to(pilot, "stale RUNNING")
        assert "^w sweep" in lines(pilot)[3]
        assert all(any(key in line[-13:] for key in ("^w ", "R ", "P ", "⏎ ")) for line in lines(pilot)[3:11])


async def test_narrow_dashboard_shows_alerts_then_one_line_of_counters() -> None:
    async with running_app(screen_id=ScreenId.DASHBOARD) as pilot:
        await _move_to(pilot, "stale RUNNING")
        shown = lines(pilot)
        assert "Needs attention" in shown[2]
        assert shown[12].startswith(" PENDING ")
        assert "COMPLETED" in shown[12]
        assert "Last 30 min" in shown[13]
        assert "HOST:PID" not in screen_text(pilot)


async def test_wide_dashboard_shows_tables_and_events() -> None:
    async with running_app(screen_id=ScreenId.DASHBOARD, size=(120, 36)) as pilot:
        await eventually(pilot, lambda: "lost  silent for" in screen_text(pilot))
        assert "✖ unserved" in screen_text(pilot)
        assert "✖ lost 6m" in screen_text(pilot)
        assert sum(not line.strip() for line in lines(pilot)) <= 3


async def test_caption_of_the_demo_is_shown_below_the_tabs(tmp_path: Path) -> None:
    caption_file = tmp_path / "caption.txt"
    caption_file.write_text("worker 2 killed {age} ago: watch Stale (4)")
    async with running_app(screen_id=ScreenId.DASHBOARD, caption_file=caption_file) as pilot:
        await eventually(pilot, lambda: "worker 2 killed" in screen_text(pilot))
        assert "s ago: watch Stale (4)" in screen_text(pilot)
        caption_file.write_text("worker 1 recovered 3 tasks")
        await eventually(pilot, lambda: "worker 1 recovered" in screen_text(pilot))


@pytest.mark.parametrize("key", ["3", "4", "6"])
async def test_caption_does_not_push_the_rows_of_a_new_screen_down(key: str, tmp_path: Path) -> None:
    caption_file = tmp_path / "caption.txt"
    caption_file.write_text("worker 1 recovered 3 tasks")
    async with running_app(screen_id=ScreenId.DASHBOARD, caption_file=caption_file) as pilot:
        await eventually(pilot, lambda: "worker 1 recovered" in screen_text(pilot))
        await pilot.press(key)
        # Without waiting for a timer.
        await pilot.pause()
        assert f"[{key}" in screen_text(pilot)
        assert "worker 1 recovered" in lines(pilot)[2]


async def test_recovery_stays_above_other_events() -> None:
    async with running_app(screen_id=ScreenId.DASHBOARD, size=(120, 36)) as pilot:
        await eventually(pilot, lambda: "recovered  re" in screen_text(pilot))
        text = screen_text(pilot)
        assert text.index("recovered  re") < text.index("listening")


async def test_alerts_without_room_are_counted() -> None:
    async with running_app(screen_id=ScreenId.DASHBOARD, size=(80, 20)) as pilot:
        screen = await _move_to(pilot, "stale RUNNING")
        assert len(screen.list.rows) == 9
        assert screen.list.page_size == 4
        assert "5 more, G goes to the last" in screen_text(pilot)


async def test_r_is_labelled_by_the_alert() -> None:
    async with running_app(screen_id=ScreenId.DASHBOARD) as pilot:
        await _move_to(pilot, f"dead {LOST_WORKER.worker_id}")
        assert "R recover" in lines(pilot)[-1]
        await _move_to(pilot, "runs FAILED")
        assert "R retry" in lines(pilot)[-1]


@pytest.mark.parametrize("width", [100, 110, 120, 140, 160, 200])
async def test_charts_of_queues_are_not_cut(width: int) -> None:
    async with running_app(screen_id=ScreenId.DASHBOARD, size=(width, 44)) as pilot:
        region = pilot.app.screen.query_one("#queues", Pane).region

        def queues() -> list[str]:
            return [line[region.x : region.right].rstrip() for line in lines(pilot)[region.y : region.bottom]]

        await eventually(pilot, lambda: any("scraping" in line for line in queues()))
        await until_stable(pilot)
        (scraping,) = (line for line in queues() if "scraping" in line)
        assert scraping[-1] in SPARKS
