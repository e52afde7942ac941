"""The list of tasks over a real server: what is done on the screen is read back from the database."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import asyncpg

from horsies.model.settings import AppConfig, PostgresConfig, TuiConfig
from horsies_ops.ops import open_ops
from horsies_tui.actions import Place
from horsies_tui.app import HorsiesApp
from horsies_tui.screens.tasks import TasksScreen
from horsies_tui.widgets.plan_dialog import PlanDialog
from tests.support.screens import eventually, shown
from tests.support.task_rows import insert, insert_task

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from textual.pilot import Pilot

    from horsies_tui.source import Source


class Real:
    """Opens a test's database as `horsies tui` opens the configured one."""

    def __init__(self, url: str) -> None:
        self._settings = AppConfig(broker=PostgresConfig.model_validate({"database_url": url}))

    @asynccontextmanager
    async def __call__(self, *, read_only: bool) -> AsyncGenerator[Source]:
        async with open_ops(self._settings, read_only=read_only, actor="ana", via="tui") as ops:
            yield ops


@asynccontextmanager
async def _screens(url: str, *, read_only: bool = False) -> AsyncGenerator[Pilot[None]]:
    app = HorsiesApp(Real(url), TuiConfig(), database="test", read_only=read_only, start=Place.TASKS)
    async with app.run_test(size=(120, 36)) as pilot:
        await eventually(pilot, lambda: "LIVE" in shown(pilot))
        yield pilot


async def _ask(url: str, sql: str, *values: object) -> list[Any]:
    connection: asyncpg.Connection[Any] = await asyncpg.connect(url)
    try:
        return await connection.fetch(sql, *values)
    finally:
        await connection.close()


async def test_what_is_cancelled_on_the_screen_is_cancelled_in_the_database_and_on_record(database_url: str) -> None:
    task_id = await insert_task(database_url)
    async with _screens(database_url) as pilot:
        await eventually(pilot, lambda: str(task_id)[-8:] in shown(pilot))
        await pilot.press("C")
        await eventually(pilot, lambda: isinstance(pilot.app.screen, PlanDialog))
        dialog = pilot.app.screen
        assert isinstance(dialog, PlanDialog)
        await dialog.heeds.wait()
        await pilot.press("y")
        await eventually(pilot, lambda: "changed 1" in shown(pilot))
    (row,) = await _ask(database_url, "SELECT status FROM horsies_tasks WHERE id = $1", task_id)
    (audit,) = await _ask(database_url, "SELECT actor, action, via, affected FROM horsies_audit")
    assert row["status"] == "CANCELLED"
    assert tuple(audit) == ("ana", "cancel", "tui", 1)


async def test_a_new_task_is_on_the_screen_without_a_poll(database_url: str) -> None:
    async with _screens(database_url) as pilot:
        await eventually(pilot, lambda: "no tasks yet" in shown(pilot))
        task_id = await insert_task(database_url, task_name="fresh.task")
        await _ask(database_url, "SELECT pg_notify('horsies_task_new', 'default')")
        await eventually(pilot, lambda: str(task_id)[-8:] in shown(pilot), within_s=5)


async def test_the_age_of_a_heartbeat_falls_back_to_nothing_when_a_beat_is_told(database_url: str) -> None:
    long_ago = datetime.now(UTC) - timedelta(minutes=4)
    task_id = await insert_task(database_url, status="RUNNING", claimed_at=long_ago, started_at=long_ago, claim_token=1)
    async with _screens(database_url) as pilot:
        await eventually(pilot, lambda: "4m0" in shown(pilot))
        await insert(
            database_url, "horsies_heartbeats", task_id=task_id, claim_token=1, role="runner", sender_id="w",
            sent_at=datetime.now(UTC),
        )  # fmt: skip
        await _ask(database_url, """SELECT pg_notify('horsies_events', '{"kind":"beats","count":1}')""")
        await eventually(pilot, lambda: "4m0" not in shown(pilot).split("─ ")[0], within_s=5)


async def test_a_killed_listener_is_told_and_comes_back_with_what_was_missed(database_url: str) -> None:
    async with _screens(database_url) as pilot:
        await pilot.press("space")
        await _ask(
            database_url,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        task_id = await insert_task(database_url)
        await eventually(pilot, lambda: str(task_id)[-8:] in shown(pilot))
        await eventually(pilot, lambda: "LIVE" in shown(pilot))


async def test_escape_sequences_in_a_name_are_shown_and_not_obeyed(database_url: str) -> None:
    await insert_task(database_url, task_name="evil\x1b]52;c;aGk=\x07[/red]")
    async with _screens(database_url) as pilot:
        await eventually(pilot, lambda: "evil" in shown(pilot))
        assert "\x1b" not in shown(pilot)
        assert "[/red]" in shown(pilot)


async def test_read_only_screens_are_refused_by_the_database_itself(database_url: str) -> None:
    task_id = await insert_task(database_url)
    async with _screens(database_url, read_only=True) as pilot:
        await eventually(pilot, lambda: str(task_id)[-8:] in shown(pilot))
        await pilot.press("C")
        assert isinstance(pilot.app.screen, TasksScreen)
        assert "RO" in shown(pilot)
