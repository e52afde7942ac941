"""Stale, Maintenance and Events screens against PostgreSQL; effects are checked in the database."""

from __future__ import annotations

from datetime import timedelta

from textual.widgets import Input

from horsies_tui.keys import ScreenId
from horsies_tui.screens.stale import StaleScreen
from tests.support.rows import count_rows, insert_finished_task, insert_listening_worker, insert_owned_task
from tests.support.tui import eventually, fetch_rows, running_tui, screen_text, until_plan_dialog

STATUS = "SELECT status, error_code FROM horsies_tasks WHERE id = $1"


async def test_sweep_recovers_listed_tasks_and_is_audited(database_url: str) -> None:
    lost = await insert_listening_worker(database_url, state="lost", silent_s=900)
    await insert_listening_worker(database_url)
    claimed = await insert_owned_task(database_url, "CLAIMED", owner=lost, silent_s=400)
    running = await insert_owned_task(database_url, "RUNNING", owner=lost, silent_s=400)
    async with running_tui(database_url, screen_id=ScreenId.STALE) as pilot:
        await eventually(pilot, lambda: "2 stale" in screen_text(pilot))
        await pilot.press("S")
        await until_plan_dialog(pilot)
        await pilot.press("y")
        await eventually(pilot, lambda: "Swept" in screen_text(pilot))
    (requeued,), (failed,) = (
        await fetch_rows(database_url, STATUS, claimed),
        await fetch_rows(database_url, STATUS, running),
    )
    assert requeued["status"] == "PENDING"
    assert tuple(failed) == ("FAILED", "WORKER_CRASHED")
    (audit,) = await fetch_rows(database_url, "SELECT actor, action, via, matched, affected FROM horsies_audit")
    assert tuple(audit) == ("ana", "sweep", "tui", 2, 2)


async def test_failing_silent_task_of_live_worker_warns(database_url: str) -> None:
    alive = await insert_listening_worker(database_url)
    task_id = await insert_owned_task(database_url, "RUNNING", owner=alive, silent_s=400)
    async with running_tui(database_url, screen_id=ScreenId.STALE) as pilot:
        await eventually(pilot, lambda: "? alive" in screen_text(pilot))
        await pilot.press("F")
        await until_plan_dialog(pilot)
        assert "still running" in screen_text(pilot)
        await pilot.press("y")
        await pilot.press("1", "enter")
        await eventually(pilot, lambda: "changed 1" in screen_text(pilot))
    (row,) = await fetch_rows(database_url, STATUS, task_id)
    assert tuple(row) == ("FAILED", "OPERATOR_FAILED")


async def test_threshold_below_two_heartbeats_is_rejected(database_url: str) -> None:
    owner = await insert_listening_worker(database_url)
    await insert_owned_task(database_url, "RUNNING", owner=owner, silent_s=400)
    async with running_tui(database_url, screen_id=ScreenId.STALE) as pilot:
        await eventually(pilot, lambda: "1 stale" in screen_text(pilot))
        screen = pilot.app.screen
        assert isinstance(screen, StaleScreen)
        await pilot.press("comma")
        await eventually(pilot, lambda: isinstance(pilot.app.focused, Input))
        await pilot.press(*"5s", "enter")
        await eventually(pilot, lambda: not any(worker.group == "limits" for worker in pilot.app.workers))
        assert screen.options.sweep_threshold is None


async def test_cleanup_deletes_counted_rows(database_url: str) -> None:
    for _ in range(3):
        await insert_finished_task(database_url, age=timedelta(days=31))
    kept = await insert_finished_task(database_url, age=timedelta(days=1))
    async with running_tui(database_url, screen_id=ScreenId.MAINTENANCE) as pilot:
        await eventually(pilot, lambda: "31d" in screen_text(pilot))
        await pilot.press("D")
        await until_plan_dialog(pilot)
        await pilot.press(*"delete test", "enter")
        await eventually(pilot, lambda: "deleted 3 rows" in screen_text(pilot))
    assert [row["id"] for row in await fetch_rows(database_url, "SELECT id FROM horsies_tasks")] == [kept]
    (audit,) = await fetch_rows(database_url, "SELECT action, via, affected, dry_run FROM horsies_audit")
    assert tuple(audit) == ("cleanup", "tui", 3, False)


async def test_viewing_maintenance_writes_nothing(database_url: str) -> None:
    await insert_finished_task(database_url, age=timedelta(days=31))
    async with running_tui(database_url, screen_id=ScreenId.MAINTENANCE, read_only=True) as pilot:
        await eventually(pilot, lambda: "31d" in screen_text(pilot))
        await pilot.press("D", "S")
        assert "RO" in screen_text(pilot)
    assert await count_rows(database_url, "horsies_tasks") == 1
    assert await count_rows(database_url, "horsies_audit") == 0


async def test_events_screen_shows_recorded_events_and_changes(database_url: str) -> None:
    worker = await insert_listening_worker(database_url)
    async with running_tui(database_url, screen_id=ScreenId.EVENTS) as pilot:
        await eventually(pilot, lambda: "listening" in screen_text(pilot))
        await fetch_rows(
            database_url,
            "INSERT INTO horsies_events (kind, worker_id, evidence) VALUES ('worker_lost', $1, '{\"silence_s\": 301}')",
            worker,
        )
        moved = '{"kind": "moved", "queue": "mail", "from": "CLAIMED", "to": "RUNNING", "count": 38, "ids": []}'
        await fetch_rows(database_url, "SELECT pg_notify('horsies_events', $1)", moved)
        await eventually(pilot, lambda: "×38 in mail" in screen_text(pilot))
        await eventually(pilot, lambda: "worker lost" in screen_text(pilot))
        assert "silence_s=301" in screen_text(pilot)
