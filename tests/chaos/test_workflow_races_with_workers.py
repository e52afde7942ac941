"""Pause, resume and cancel race with real workers; the ledger records when each task began."""

# ruff: noqa: S311  # the seed makes races nearly reproducible

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
class QuietInterval:
    """The time from the answer to a pause until the resume, in which nothing may begin; endless after a cancel."""

    run: str
    since: datetime
    until: datetime | None
    running: Collection[tuple[str, int]]
    """Tasks whose start was stored before; their code may begin later."""

    def is_violated_by(self, start: Entry) -> bool:
        is_within = self.since < start.at and (self.until is None or start.at < self.until)
        return is_within and (start.task_id, start.claim_token) not in self.running


@pytest.mark.timeout(240)
async def test_no_task_begins_while_a_run_is_paused_or_cancelled(database_url: str) -> None:
    app = ledger_app(database_url)
    register_workflow_tasks(app)
    async with Ledger.open(database_url) as ledger:
        async with (
            worker_process(database_url, "--processes", "2", locator=LOCATOR),
            worker_process(database_url, "--processes", "2", locator=LOCATOR),
        ):
            runs = [(await _spec(app).start_async()).unwrap() for _ in range(RUNS)]
            disturbed = [_disturb(database_url, run, Random(SEED + number)) for number, run in enumerate(runs)]
            quiet_intervals = [interval for intervals in await asyncio.gather(*disturbed) for interval in intervals]
            ends = [await run.get_async(60_000) for run in runs]
            sent = [row["id"] for row in await ledger.fetch("SELECT id::text FROM horsies_tasks")]
            await ledger.until_terminal(*sent)
            assert await ledger.violations(sent) == []
        await app.close_async()
        starts = await ledger.starts()
        for interval in quiet_intervals:
            tasks = {row["id"] for row in await ledger.fetch(TASKS, interval.run)}
            assert [start for start in starts if start.task_id in tasks and interval.is_violated_by(start)] == []
        assert {end.ok if end.is_ok() else end.err_value.error_code for end in ends} == {3, "WORKFLOW_CANCELLED"}
    connection: Any = await asyncpg.connect(database_url)
    assert await count_deadlocks(connection) == 0
    await connection.close()


def _spec(app: Horsies) -> WorkflowSpec[int]:
    """Parallel tasks, one that fails and is retried, and a sub-workflow."""
    first = task_of(app, "step").node(node_id="first")(value=1, seconds=0.05)
    again = app.tasks["fail_times"].node(node_id="again", waits_for=[first])(times=1)
    child: SubWorkflowNode[int] = SubWorkflowNode(Doubled, kwargs={"value": 5}, waits_for=[first], node_id="child")
    last = task_of(app, "step").node(node_id="last", waits_for=[again, child])(value=3)
    return app.workflow("raced", [first, again, child, last], output=last, definition_key="tests.raced")


async def _disturb(database_url: str, run: WorkflowHandle[int], rng: Random) -> list[QuietInterval]:
    connection: Connection = await asyncpg.connect(database_url)
    quiet_intervals: list[QuietInterval] = []
    for _ in range(4):
        await asyncio.sleep(rng.random() * 0.4)
        if (await run.pause_async()).unwrap():
            since, running = await _state_at_answer(connection, run)
            await asyncio.sleep(rng.random() * 0.3)
            until = await connection.fetchval("SELECT clock_timestamp()")
            quiet_intervals.append(QuietInterval(run=run.workflow_id, since=since, until=until, running=running))
            await run.resume_async()
    if rng.random() < 0.5:
        (await run.cancel_async()).unwrap()
        since, running = await _state_at_answer(connection, run)
        quiet_intervals.append(QuietInterval(run=run.workflow_id, since=since, until=None, running=running))
    await connection.close()
    return quiet_intervals


async def _state_at_answer(connection: Connection, run: WorkflowHandle[int]) -> tuple[datetime, set[tuple[str, int]]]:
    """The time of the answer and the tasks running then; one statement, so that no start falls in between."""
    (row,) = await connection.fetch(RUNNING, run.workflow_id)
    return row["since"], set(zip(row["ids"], row["tokens"], strict=True))
