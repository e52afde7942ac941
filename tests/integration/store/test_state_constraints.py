"""Constraints on the state of a task."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from tests.support.rows import insert_task

NOW = datetime(2026, 1, 2, tzinfo=UTC)
INVALID_STATES: list[tuple[str, dict[str, Any]]] = [
    ("horsies_tasks_status", {"status": "DONE"}),
    ("horsies_tasks_priority", {"priority": 0}),
    ("horsies_tasks_priority", {"priority": 101}),
    ("horsies_tasks_claimed", {"claimed": True}),
    ("horsies_tasks_claimed", {"status": "RUNNING", "claimed": True}),
    ("horsies_tasks_terminal", {"status": "RUNNING", "terminal_at": NOW}),
    ("horsies_tasks_terminal", {"status": "FAILED", "terminal_at": None}),
    ("horsies_tasks_no_restart", {"no_restart": "stopped"}),
]


@pytest.mark.parametrize(("constraint", "columns"), INVALID_STATES)
async def test_insert_of_invalid_state_is_rejected_by_named_constraint(
    database_url: str, constraint: str, columns: dict[str, Any]
) -> None:
    with pytest.raises(asyncpg.CheckViolationError, match=constraint):
        await insert_task(database_url, **columns)


@pytest.mark.parametrize(("constraint", "columns"), INVALID_STATES)
async def test_update_to_invalid_state_is_rejected(database_url: str, constraint: str, columns: dict[str, Any]) -> None:
    task_id = await insert_task(database_url)
    changes = ", ".join(f"{name} = ${number}" for number, name in enumerate(columns, 2))
    connection = await asyncpg.connect(database_url)
    try:
        with pytest.raises(asyncpg.CheckViolationError, match=constraint):
            await connection.execute(f"UPDATE horsies_tasks SET {changes} WHERE id = $1", task_id, *columns.values())
    finally:
        await connection.close()


@pytest.mark.parametrize(
    "columns",
    [
        {"priority": 1},
        {"status": "CLAIMED", "claimed": True},
        {"status": "RUNNING", "no_restart": "paused"},
        {"status": "FAILED", "terminal_at": NOW},
    ],
)
async def test_valid_state_is_stored(database_url: str, columns: dict[str, Any]) -> None:
    task_id = await insert_task(database_url, **columns)
    connection = await asyncpg.connect(database_url)
    stored = await connection.fetchrow("SELECT * FROM horsies_tasks WHERE id = $1", task_id)
    await connection.close()
    assert stored is not None
    assert {name: stored[name] for name in columns} == columns
