"""Starting sub-workflows while their root run is cancelled."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from horsies.store.database import Database
from horsies.workflows import control
from tests.support.faults import CommitGate, WriteCondition
from tests.support.store import Connection, until_lock_waiters
from tests.support.workflows import FakeDefinitions, WorkflowDriver, node, plan, sub_node

SUB_WORKFLOW = {"sub": plan(sub_node(0, "nested"))}
NESTED = {"nested": plan(node(0))}
NESTED_START = WriteCondition("horsies_workflows", "INSERT", "NEW.depth = 2")
ROOT_CANCEL = WriteCondition("horsies_workflows", "UPDATE", "NEW.depth = 0 AND NEW.status = 'CANCELLED'")


@pytest.fixture
async def root(database: Database) -> UUID:
    """A run with a sub-workflow, whose own sub-workflow is pending because the driver does not know its definition."""
    driver = WorkflowDriver(database, known=FakeDefinitions(SUB_WORKFLOW))
    root = await driver.start_run(sub_node(0, "sub"))
    await driver.outbox.process()
    return root


async def test_sub_workflow_start_waits_for_the_root_lock(
    database: Database, connection: Connection, root: UUID
) -> None:
    async with connection.transaction():
        await connection.execute("SELECT FROM horsies_workflows WHERE id = $1 FOR NO KEY UPDATE", root)
        starting = _start_nested(database)
        await until_lock_waiters(connection)
        assert await _run_statuses(connection) == ["RUNNING", "RUNNING"]
    await starting
    assert await _run_statuses(connection) == ["RUNNING"] * 3


async def test_cancel_includes_a_sub_workflow_being_started(
    database: Database, database_url: str, connection: Connection, root: UUID
) -> None:
    async with CommitGate.at(database_url, NESTED_START) as gate:
        starting = _start_nested(database)
        await gate.wait_for_commit()
        cancelling = asyncio.create_task(control.cancel(database, root))
        await until_lock_waiters(connection, sessions=2)
        await gate.open()
        await asyncio.gather(starting, cancelling)
    assert await _run_statuses(connection) == ["CANCELLED"] * 3
    assert await connection.fetchval("SELECT status FROM horsies_tasks") == "CANCELLED"


async def test_sub_workflow_is_not_started_after_a_cancel(
    database: Database, database_url: str, connection: Connection, root: UUID
) -> None:
    async with CommitGate.at(database_url, ROOT_CANCEL) as gate:
        cancelling = asyncio.create_task(control.cancel(database, root))
        await gate.wait_for_commit()
        starting = _start_nested(database)
        await until_lock_waiters(connection, sessions=2)
        await gate.open()
        await asyncio.gather(starting, cancelling)
    assert await _run_statuses(connection) == ["CANCELLED"] * 2


def _start_nested(database: Database) -> asyncio.Task[bool]:
    return asyncio.create_task(WorkflowDriver(database, known=FakeDefinitions(SUB_WORKFLOW | NESTED)).outbox.process())


async def _run_statuses(connection: Connection) -> list[str]:
    return [row["status"] for row in await connection.fetch("SELECT status FROM horsies_workflows ORDER BY id")]
