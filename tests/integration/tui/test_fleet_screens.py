"""Dashboard, Queues and Workers screens against PostgreSQL; effects are checked in the database."""

from __future__ import annotations

from datetime import UTC, datetime

from horsies_tui.keys import ScreenId
from horsies_tui.screens.dashboard import DashboardScreen
from horsies_tui.screens.queues import QueuesScreen
from horsies_tui.screens.workers import WorkersScreen
from tests.support.rows import (
    insert,
    insert_listening_worker,
    insert_owned_task,
    insert_snapshot,
    insert_task,
    insert_worker,
)
from tests.support.tui import eventually, fetch_rows, running_tui, screen_text, until_plan_dialog

NOW = datetime.now(UTC)


async def test_pausing_queue_updates_database_and_audit(database_url: str) -> None:
    await insert_task(database_url, queue_name="mail")
    async with running_tui(database_url, screen_id=ScreenId.QUEUES) as pilot:
        await eventually(pilot, lambda: "✖ unserved" in screen_text(pilot))
        await pilot.press("P")
        await until_plan_dialog(pilot)
        await pilot.press("tab", *"smtp is down", "enter", "y")
        await eventually(pilot, lambda: "mail is paused" in screen_text(pilot))
        await pilot.press("enter")
        await eventually(pilot, lambda: "‖ paused" in screen_text(pilot))
    (queue,) = await fetch_rows(database_url, "SELECT queue_name, paused_by, pause_reason FROM horsies_queues")
    (audit,) = await fetch_rows(database_url, "SELECT actor, action, via, affected, reason FROM horsies_audit")
    assert tuple(queue) == ("mail", "ana", "smtp is down")
    assert tuple(audit) == ("ana", "pause_queue", "tui", 1, "smtp is down")


async def test_sweep_of_worker_recovers_only_its_tasks(database_url: str) -> None:
    lost, other = [await insert_listening_worker(database_url, state="lost", silent_s=3_600) for _ in range(2)]
    claimed = await insert_owned_task(database_url, "CLAIMED", owner=lost, silent_s=3_600)
    running = await insert_owned_task(database_url, "RUNNING", owner=lost, silent_s=3_600)
    untouched = await insert_owned_task(database_url, "CLAIMED", owner=other, silent_s=3_600)
    async with running_tui(database_url, screen_id=ScreenId.WORKERS) as pilot:
        screen = pilot.app.screen
        assert isinstance(screen, WorkersScreen)
        screen.show_worker(lost)
        await eventually(pilot, lambda: "holds 2 tasks" in screen_text(pilot))
        await pilot.press("R")
        await until_plan_dialog(pilot)
        await pilot.press("y")
        await eventually(pilot, lambda: "requeued 1   failed 1" in screen_text(pilot))
    rows = await fetch_rows(database_url, "SELECT id, status FROM horsies_tasks")
    assert {row["id"]: row["status"] for row in rows} == {claimed: "PENDING", running: "FAILED", untouched: "CLAIMED"}


async def test_alerts_come_from_database(database_url: str) -> None:
    lost = await insert_listening_worker(database_url, state="lost", silent_s=400)
    await insert_owned_task(database_url, "RUNNING", owner=lost, silent_s=3_600)
    await insert_task(database_url, queue_name="orphans")
    await insert_task(database_url, status="FAILED", error_code="SMTP_TIMEOUT")
    async with running_tui(database_url, screen_id=ScreenId.DASHBOARD) as pilot:
        screen = pilot.app.screen
        assert isinstance(screen, DashboardScreen)
        await eventually(pilot, lambda: bool(screen.list.rows))
        keys = [alert.key for alert in screen.list.rows]
        assert keys == ["stale RUNNING", "queue orphans", f"dead {lost}", "failures"]


async def test_read_only_session_cannot_pause_queue(database_url: str) -> None:
    await insert_task(database_url, queue_name="mail")
    async with running_tui(database_url, screen_id=ScreenId.QUEUES, read_only=True) as pilot:
        await eventually(pilot, lambda: "✖ unserved" in screen_text(pilot))
        await pilot.press("P")
        assert isinstance(pilot.app.screen, QueuesScreen)
    assert await fetch_rows(database_url, "SELECT FROM horsies_queues") == []


async def test_control_sequences_in_names_are_harmless_on_fleet_screens(
    database_url: str,
) -> None:
    evil = "evil[/b]\x1b]52;c;x\x07\u202e[red"
    worker = await insert_worker(database_url, state="lost", hostname=evil, queues=[evil], last_heartbeat_at=NOW)
    await insert_snapshot(database_url, worker)
    await insert_owned_task(database_url, "RUNNING", owner=worker, silent_s=3_600, queue_name=evil, task_name=evil)
    await insert_task(database_url, queue_name=evil, task_name=evil)
    await insert_task(database_url, queue_name=evil, task_name=evil, status="FAILED", error_code=evil)
    await insert(database_url, "horsies_audit", actor=evil, host=evil, action="fail", reason=evil, via="cli")
    async with running_tui(database_url, screen_id=ScreenId.DASHBOARD) as pilot:
        for key, seen in (("1", "failure in 1h"), ("2", "served by"), ("5", "holds 1 task")):
            await pilot.press(key)
            await eventually(pilot, lambda seen=seen: seen in screen_text(pilot) and "evil" in screen_text(pilot))
            assert not set(screen_text(pilot)) & {"\x1b", "\x07", "\u202e"}
