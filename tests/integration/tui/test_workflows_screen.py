"""Workflows screen against PostgreSQL; effects are checked in the database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from textual.pilot import Pilot

from horsies.store.database import Database
from horsies_tui.keys import ScreenId
from horsies_tui.screens.workflows import WorkflowsScreen
from tests.support.store import Connection
from tests.support.tui import eventually, running_tui, screen_text, until_plan_dialog
from tests.support.workflows import WorkflowDriver, node, node_statuses, run_row


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    """A plain asyncpg connection to the test's database."""
    connection: Any = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


@pytest.fixture
def driver(database: Database) -> WorkflowDriver:
    return WorkflowDriver(database)


async def _apply(pilot: Pilot[None], key: str, expected: str) -> None:
    """Press a key, apply its proposal and wait for the expected text."""
    await pilot.press(key)
    await until_plan_dialog(pilot)
    await pilot.press("y")
    await eventually(pilot, lambda: expected in screen_text(pilot))
    await pilot.press("enter")
    await eventually(pilot, lambda: isinstance(pilot.app.screen, WorkflowsScreen))


async def _status(connection: Connection, run: UUID) -> str:
    return (await run_row(connection, run))["status"]


async def test_run_is_paused_resumed_and_cancelled_with_audit(
    database_url: str, driver: WorkflowDriver, connection: Connection
) -> None:
    run = await driver.start_run(node(0), node(1, 0))
    async with running_tui(database_url, screen_id=ScreenId.WORKFLOWS) as pilot:
        await eventually(pilot, lambda: "[1] n1" in screen_text(pilot))
        await _apply(pilot, "P", "Paused")
        assert await _status(connection, run) == "PAUSED"
        await eventually(pilot, lambda: "PAUSED" in screen_text(pilot))
        await _apply(pilot, "P", "Resumed")
        assert await _status(connection, run) == "RUNNING"
        await _apply(pilot, "C", "Cancelled")
        assert await _status(connection, run) == "CANCELLED"
        assert await node_statuses(connection, run) == ["SKIPPED", "SKIPPED"]
    audits = await connection.fetch("SELECT action, via, affected FROM horsies_audit ORDER BY id")
    assert [tuple(row) for row in audits] == [
        ("pause_workflow", "tui", 1),
        ("resume_workflow", "tui", 1),
        ("cancel_workflow", "tui", 1),
    ]


async def test_failed_run_is_retried_from_failed_nodes(
    database_url: str, driver: WorkflowDriver, connection: Connection
) -> None:
    run = await driver.start_run(node(0), node(1, 0), node(2, 1))
    await driver.run(lambda name: "err" if name == "n1" else "ok")
    assert await node_statuses(connection, run) == ["COMPLETED", "FAILED", "SKIPPED"]
    async with running_tui(database_url, screen_id=ScreenId.WORKFLOWS) as pilot:
        await eventually(pilot, lambda: "skipped: [1] failed" in screen_text(pilot))
        assert "BROKEN" in screen_text(pilot)
        await _apply(pilot, "R", "retried, 2 nodes")
        assert await _status(connection, run) == "RUNNING"
        await driver.run()
        await eventually(pilot, lambda: "3/3 done" in screen_text(pilot), within_s=20)


async def test_node_opens_its_task_with_attempt(database_url: str, driver: WorkflowDriver) -> None:
    await driver.start_run(node(0))
    await driver.run(lambda _: "err")
    async with running_tui(database_url, screen_id=ScreenId.WORKFLOWS) as pilot:
        await eventually(pilot, lambda: "✗ [0] n0" in screen_text(pilot))
        await pilot.press("enter", "enter")
        await eventually(pilot, lambda: "#1 FAILED BROKEN" in screen_text(pilot))
        assert "‹ Flows" in screen_text(pilot)


async def test_screen_without_workflows_says_so(database_url: str) -> None:
    async with running_tui(database_url, screen_id=ScreenId.WORKFLOWS) as pilot:
        await eventually(pilot, lambda: "no workflows yet" in screen_text(pilot))


async def test_screen_without_schedules_says_so(database_url: str) -> None:
    async with running_tui(database_url, screen_id=ScreenId.SCHEDULES) as pilot:
        await eventually(pilot, lambda: "There are no schedules" in screen_text(pilot))
