"""F18: a worker crashes before or after each statement of a run; the run ends in the same state."""

from __future__ import annotations

from collections import Counter
from typing import Any

import asyncpg
import pytest

from horsies.model.workflow.plan import JoinType, NodePlan
from horsies.store.connection import ConnectionSpec
from horsies.workflows.healing import heal
from tests.support.faults import CrashingDatabase, SimulatedCrash
from tests.support.store import Connection
from tests.support.workflows import FakeDefinitions, WorkflowDriver, node, plan, sub_node

CHILD = plan(node(0, name="c0"), node(1, 0, name="c1", args_from={"x": 0}), definition_key="child", output_index=1)
KNOWN = FakeDefinitions({"child": CHILD})

SHAPES: dict[str, tuple[NodePlan, ...]] = {
    "plain": (node(0),),
    "dag": (node(0), node(1, 0), node(2, 0), node(3, 1, 2, args_from={"a": 1}), node(4, 1, 2, join=JoinType.ANY)),
    "sub-workflow": (node(0), sub_node(1, "child", 0), node(2, 1, args_from={"r": 1})),
}
REQUEUE = """
UPDATE horsies_tasks
   SET status = 'PENDING', claimed = false, claimed_at = NULL, claimed_by_worker_id = NULL, started_at = NULL
 WHERE status IN ('CLAIMED', 'RUNNING')
"""
STATE = """
SELECT w.name, w.status, w.result, w.error, w.depth, n.node_id, n.status AS state, n.result AS document
  FROM horsies_workflows AS w
  JOIN horsies_workflow_tasks AS n ON n.workflow_id = w.id
 ORDER BY w.depth, n.task_index
"""


TABLES = ("horsies_workflow_outbox", "horsies_workflows", "horsies_tasks", "horsies_task_attempts")


class CrashRuns:
    """Executes the same run repeatedly in one database, with a crash at a chosen statement."""

    def __init__(self, survivor: CrashingDatabase, connection: Connection) -> None:
        self._survivor = survivor
        self._connection = connection

    async def execute(
        self, shape: str, crash_at: int | None, *, is_after: bool
    ) -> tuple[list[str], list[dict[str, Any]], list[str]]:
        """Returns the statements before the crash, the final state, and the tasks started before and after it."""
        for table in TABLES:
            await self._connection.execute(f"DELETE FROM {table}")
        async with CrashingDatabase(self._survivor.connection_spec, crash_at, after_statement=is_after) as first:
            one, other = WorkflowDriver(first, known=KNOWN), WorkflowDriver(self._survivor, known=KNOWN)
            await other.start_run(*SHAPES[shape])
            try:
                await one.run(at_once=1)
            except SimulatedCrash:
                # What recovery does with tasks of a dead worker whose policy lists crashes.
                await self._connection.execute(REQUEUE)
            # A worker of another app may advance any run, but knows no definitions.
            await WorkflowDriver(self._survivor).outbox.process()
            await heal(self._survivor, KNOWN)
            await other.run()
            return first.statements, await self._state(), one.started + other.started

    async def _state(self) -> list[dict[str, Any]]:
        rows = await self._connection.fetch(STATE)
        return [dict(row) for row in rows]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("shape", SHAPES)
async def test_crash_at_any_statement_changes_nothing(database_url: str, shape: str, is_after: bool) -> None:
    connection = await asyncpg.connect(database_url)
    async with CrashingDatabase(ConnectionSpec(url=database_url, masked_url=database_url)) as survivor:
        runs = CrashRuns(survivor, connection)
        statements, undisturbed, starts = await runs.execute(shape, None, is_after=is_after)
        assert Counter(starts) == Counter(set(starts)), "each task starts once"
        assert undisturbed[0]["status"] == "COMPLETED"
        for number, name in enumerate(statements):
            _, state, started = await runs.execute(shape, number, is_after=is_after)
            assert state == undisturbed, (number, name)
            extra = Counter(started) - Counter(starts)
            assert sum(extra.values()) <= 1, (number, name, extra)
    await connection.close()
