"""Tasks screen against PostgreSQL; effects are checked in the database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from horsies_tui.proposals.dialog import ProposalDialog
from horsies_tui.screens.tasks.screen import TasksScreen
from tests.support.rows import insert, insert_task
from tests.support.tui import eventually, fetch_rows, running_tui, screen_text


async def test_cancelling_task_updates_database_and_audit(database_url: str) -> None:
    task_id = await insert_task(database_url)
    async with running_tui(database_url) as pilot:
        await eventually(pilot, lambda: str(task_id)[-8:] in screen_text(pilot))
        await pilot.press("C")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, ProposalDialog))
        dialog = pilot.app.screen
        assert isinstance(dialog, ProposalDialog)
        await dialog.keys_enabled.wait()
        await pilot.press("y")
        await eventually(pilot, lambda: "changed 1" in screen_text(pilot))
    (row,) = await fetch_rows(database_url, "SELECT status FROM horsies_tasks WHERE id = $1", task_id)
    (audit,) = await fetch_rows(database_url, "SELECT actor, action, via, affected FROM horsies_audit")
    assert row["status"] == "CANCELLED"
    assert tuple(audit) == ("ana", "cancel", "tui", 1)


async def test_new_task_appears_without_poll(database_url: str) -> None:
    async with running_tui(database_url) as pilot:
        await eventually(pilot, lambda: "no tasks yet" in screen_text(pilot))
        task_id = await insert_task(database_url, task_name="fresh.task")
        await fetch_rows(database_url, "SELECT pg_notify('horsies_task_new', 'default')")
        await eventually(pilot, lambda: str(task_id)[-8:] in screen_text(pilot), within_s=5)


async def test_heartbeat_notification_resets_heartbeat_age(database_url: str) -> None:
    long_ago = datetime.now(UTC) - timedelta(minutes=4)
    task_id = await insert_task(database_url, status="RUNNING", claimed_at=long_ago, started_at=long_ago, claim_token=1)
    async with running_tui(database_url) as pilot:
        await eventually(pilot, lambda: "4m0" in screen_text(pilot))
        await insert(
            database_url,
            "horsies_heartbeats",
            task_id=task_id,
            claim_token=1,
            role="runner",
            sender_id="w",
            sent_at=datetime.now(UTC),
        )
        await fetch_rows(database_url, """SELECT pg_notify('horsies_events', '{"kind":"heartbeats","count":1}')""")
        await eventually(pilot, lambda: "4m0" not in screen_text(pilot).split("─ ")[0], within_s=5)


async def test_killed_listener_is_reported_and_catches_up(database_url: str) -> None:
    async with running_tui(database_url) as pilot:
        await pilot.press("space")
        await fetch_rows(
            database_url,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        task_id = await insert_task(database_url)
        await eventually(pilot, lambda: str(task_id)[-8:] in screen_text(pilot))
        await eventually(pilot, lambda: "LIVE" in screen_text(pilot))


async def test_escape_sequences_in_names_are_shown_not_executed(database_url: str) -> None:
    await insert_task(database_url, task_name="evil\x1b]52;c;aGk=\x07[/red]")
    async with running_tui(database_url) as pilot:
        # The list cuts the name; the preview, read by a query of its own, shows all of it.
        await eventually(pilot, lambda: "[/red]" in screen_text(pilot))
        assert "evil" in screen_text(pilot)
        assert "\x1b" not in screen_text(pilot)


async def test_database_refuses_changes_of_read_only_screens(database_url: str) -> None:
    task_id = await insert_task(database_url)
    async with running_tui(database_url, read_only=True) as pilot:
        await eventually(pilot, lambda: str(task_id)[-8:] in screen_text(pilot))
        await pilot.press("C")
        assert isinstance(pilot.app.screen, TasksScreen)
        assert "RO" in screen_text(pilot)
