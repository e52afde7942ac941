"""The list of tasks over a real server: what is done on the screen is read back from the database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from horsies_tui.proposals.dialog import PlanDialog
from horsies_tui.screens.tasks.screen import TasksScreen
from tests.support.rows import insert, insert_task
from tests.support.tui import ask, eventually, screens, shown


async def test_what_is_cancelled_on_the_screen_is_cancelled_in_the_database_and_on_record(database_url: str) -> None:
    task_id = await insert_task(database_url)
    async with screens(database_url) as pilot:
        await eventually(pilot, lambda: str(task_id)[-8:] in shown(pilot))
        await pilot.press("C")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, PlanDialog))
        dialog = pilot.app.screen
        assert isinstance(dialog, PlanDialog)
        await dialog.heeds.wait()
        await pilot.press("y")
        await eventually(pilot, lambda: "changed 1" in shown(pilot))
    (row,) = await ask(database_url, "SELECT status FROM horsies_tasks WHERE id = $1", task_id)
    (audit,) = await ask(database_url, "SELECT actor, action, via, affected FROM horsies_audit")
    assert row["status"] == "CANCELLED"
    assert tuple(audit) == ("ana", "cancel", "tui", 1)


async def test_a_new_task_is_on_the_screen_without_a_poll(database_url: str) -> None:
    async with screens(database_url) as pilot:
        await eventually(pilot, lambda: "no tasks yet" in shown(pilot))
        task_id = await insert_task(database_url, task_name="fresh.task")
        await ask(database_url, "SELECT pg_notify('horsies_task_new', 'default')")
        await eventually(pilot, lambda: str(task_id)[-8:] in shown(pilot), within_s=5)


async def test_the_age_of_a_heartbeat_falls_back_to_nothing_when_a_beat_is_told(database_url: str) -> None:
    long_ago = datetime.now(UTC) - timedelta(minutes=4)
    task_id = await insert_task(database_url, status="RUNNING", claimed_at=long_ago, started_at=long_ago, claim_token=1)
    async with screens(database_url) as pilot:
        await eventually(pilot, lambda: "4m0" in shown(pilot))
        await insert(
            database_url, "horsies_heartbeats", task_id=task_id, claim_token=1, role="runner", sender_id="w",
            sent_at=datetime.now(UTC),
        )  # fmt: skip
        await ask(database_url, """SELECT pg_notify('horsies_events', '{"kind":"beats","count":1}')""")
        await eventually(pilot, lambda: "4m0" not in shown(pilot).split("─ ")[0], within_s=5)


async def test_a_killed_listener_is_told_and_comes_back_with_what_was_missed(database_url: str) -> None:
    async with screens(database_url) as pilot:
        await pilot.press("space")
        await ask(
            database_url,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        task_id = await insert_task(database_url)
        await eventually(pilot, lambda: str(task_id)[-8:] in shown(pilot))
        await eventually(pilot, lambda: "LIVE" in shown(pilot))


async def test_escape_sequences_in_a_name_are_shown_and_not_obeyed(database_url: str) -> None:
    await insert_task(database_url, task_name="evil\x1b]52;c;aGk=\x07[/red]")
    async with screens(database_url) as pilot:
        await eventually(pilot, lambda: "evil" in shown(pilot))
        assert "\x1b" not in shown(pilot)
        assert "[/red]" in shown(pilot)


async def test_read_only_screens_are_refused_by_the_database_itself(database_url: str) -> None:
    task_id = await insert_task(database_url)
    async with screens(database_url, read_only=True) as pilot:
        await eventually(pilot, lambda: str(task_id)[-8:] in shown(pilot))
        await pilot.press("C")
        assert isinstance(pilot.app.screen, TasksScreen)
        assert "RO" in shown(pilot)
