"""A tree of runs grows while somebody ends it: whoever comes first, nothing of it lives on."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from horsies.store.database import Database
from horsies.workflows import control
from tests.support.faults import CommitGate, WriteCondition
from tests.support.store import Connection, until_lock_waiters
from tests.support.workflows import FakeDefinitions, WorkflowDriver, node, plan, sub_node

CHILD = {"child": plan(sub_node(0, "grandchild"))}
GRANDCHILD = {"grandchild": plan(node(0))}
GROWTH = WriteCondition("horsies_workflows", "INSERT", "NEW.depth = 2")
END = WriteCondition("horsies_workflows", "UPDATE", "NEW.depth = 0 AND NEW.status = 'CANCELLED'")


@pytest.fixture
async def root(database: Database) -> UUID:
    """A run with one below it, which would like to have one below it, and a process that does not know how."""
    bench = WorkflowDriver(database, known=FakeDefinitions(CHILD))
    root = await bench.start_run(sub_node(0, "child"))
    await bench.outbox.process()
    return root


async def test_nothing_is_added_to_a_tree_while_its_root_is_locked(
    database: Database, connection: Connection, root: UUID
) -> None:
    async with connection.transaction():
        await connection.execute("SELECT FROM horsies_workflows WHERE id = $1 FOR NO KEY UPDATE", root)
        growing = _grow(database)
        await until_lock_waiters(connection)
        assert await _statuses(connection) == ["RUNNING", "RUNNING"]
    await growing
    assert await _statuses(connection) == ["RUNNING"] * 3


async def test_a_cancel_also_ends_the_run_that_was_being_added_when_it_came(
    database: Database, database_url: str, connection: Connection, root: UUID
) -> None:
    async with CommitGate.at(database_url, GROWTH) as gate:
        growing = _grow(database)
        await gate.wait_for_commit()
        cancelling = asyncio.create_task(control.cancel(database, root))
        await until_lock_waiters(connection, sessions=2)
        await gate.open()
        await asyncio.gather(growing, cancelling)
    assert await _statuses(connection) == ["CANCELLED"] * 3
    assert await connection.fetchval("SELECT status FROM horsies_tasks") == "CANCELLED"


async def test_a_run_that_comes_too_late_is_not_added_to_a_tree_that_was_cancelled(
    database: Database, database_url: str, connection: Connection, root: UUID
) -> None:
    async with CommitGate.at(database_url, END) as gate:
        cancelling = asyncio.create_task(control.cancel(database, root))
        await gate.wait_for_commit()
        growing = _grow(database)
        await until_lock_waiters(connection, sessions=2)
        await gate.open()
        await asyncio.gather(growing, cancelling)
    assert await _statuses(connection) == ["CANCELLED"] * 2


def _grow(database: Database) -> asyncio.Task[bool]:
    return asyncio.create_task(WorkflowDriver(database, known=FakeDefinitions(CHILD | GRANDCHILD)).outbox.process())


async def _statuses(connection: Connection) -> list[str]:
    return [row["status"] for row in await connection.fetch("SELECT status FROM horsies_workflows ORDER BY id")]
