"""Pauses, resumes and cancels raced against real workers; when a task began, it says itself."""

# ruff: noqa: S311  # a seed makes a race almost repeatable

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Any

import asyncpg
import pytest

from horsies import Horsies, SubWorkflowNode, WorkflowHandle, WorkflowSpec
from tests.support.ledger import Entry, Ledger
from tests.support.ledger_app import ledger_app
from tests.support.store import Connection, count_deadlocks
from tests.support.workers import worker_process
from tests.support.workflow_app import LOCATOR, Doubled, register_workflow_tasks, task_of

SEED = 11
RUNS = 8
RUNNING = """
SELECT clock_timestamp() AS since, coalesce(array_agg(t.id::text), '{}') AS ids,
       coalesce(array_agg(t.claim_token), '{}') AS tokens
  FROM horsies_tasks AS t
  JOIN horsies_workflows AS w ON w.id = t.workflow_id
 WHERE w.root_workflow_id = $1::text::uuid AND t.status = 'RUNNING'
"""
TASKS = """
SELECT t.id::text
  FROM horsies_tasks AS t
  JOIN horsies_workflows AS w ON w.id = t.workflow_id
 WHERE w.root_workflow_id = $1::text::uuid
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stillness:
    """From an answer to the next resume, nothing of a run may begin; a cancel has no end."""

    run: str
    since: datetime
    until: datetime | None
    running: Collection[tuple[str, int]]
    """What had its start stored before, and may have got to its first line later."""

    def breaks(self, start: Entry) -> bool:
        is_within = self.since < start.at and (self.until is None or start.at < self.until)
        return is_within and (start.task_id, start.claim_token) not in self.running


@pytest.mark.timeout(240)
async def test_no_task_begins_between_the_answer_to_a_pause_or_a_cancel_and_a_resume(database_url: str) -> None:
    app = ledger_app(database_url)
    register_workflow_tasks(app)
    async with Ledger.open(database_url) as ledger:
        async with (
            worker_process(database_url, "--processes", "2", locator=LOCATOR),
            worker_process(database_url, "--processes", "2", locator=LOCATOR),
        ):
            runs = [(await _spec(app).start_async()).unwrap() for _ in range(RUNS)]
            disturbed = [_disturb(database_url, run, Random(SEED + each)) for each, run in enumerate(runs)]
            stillnesses = [each for one in await asyncio.gather(*disturbed) for each in one]
            ends = [await run.get_async(60_000) for run in runs]
            sent = [row["id"] for row in await ledger.fetch("SELECT id::text FROM horsies_tasks")]
            await ledger.until_terminal(*sent)
            assert await ledger.violations(sent) == []
        await app.close_async()
        starts = await ledger.starts()
        for stillness in stillnesses:
            tasks = {row["id"] for row in await ledger.fetch(TASKS, stillness.run)}
            assert [start for start in starts if start.task_id in tasks and stillness.breaks(start)] == []
        assert {end.ok if end.is_ok() else end.err_value.error_code for end in ends} == {3, "WORKFLOW_CANCELLED"}
    connection: Any = await asyncpg.connect(database_url)
    assert await count_deadlocks(connection) == 0
    await connection.close()


def _spec(app: Horsies) -> WorkflowSpec[int]:
    """Tasks side by side, one that fails and starts again, and a sub-workflow."""
    first = task_of(app, "step").node(node_id="first")(value=1, seconds=0.05)
    again = app.tasks["fail_times"].node(node_id="again", waits_for=[first])(times=1)
    child: SubWorkflowNode[int] = SubWorkflowNode(Doubled, kwargs={"value": 5}, waits_for=[first], node_id="child")
    last = task_of(app, "step").node(node_id="last", waits_for=[again, child])(value=3)
    return app.workflow("raced", [first, again, child, last], output=last, definition_key="tests.raced")


async def _disturb(database_url: str, run: WorkflowHandle[int], chance: Random) -> list[Stillness]:
    connection: Connection = await asyncpg.connect(database_url)
    stillnesses: list[Stillness] = []
    for _ in range(4):
        await asyncio.sleep(chance.random() * 0.4)
        if (await run.pause_async()).unwrap():
            since, running = await _answered(connection, run)
            await asyncio.sleep(chance.random() * 0.3)
            until = await connection.fetchval("SELECT clock_timestamp()")
            stillnesses.append(Stillness(run=run.workflow_id, since=since, until=until, running=running))
            await run.resume_async()
    if chance.random() < 0.5:
        (await run.cancel_async()).unwrap()
        since, running = await _answered(connection, run)
        stillnesses.append(Stillness(run=run.workflow_id, since=since, until=None, running=running))
    await connection.close()
    return stillnesses


async def _answered(connection: Connection, run: WorkflowHandle[int]) -> tuple[datetime, set[tuple[str, int]]]:
    """When the answer was there, and what ran then: one statement, or a start in between would be excused."""
    (row,) = await connection.fetch(RUNNING, run.workflow_id)
    return row["since"], set(zip(row["ids"], row["tokens"], strict=True))
