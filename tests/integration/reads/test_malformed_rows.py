"""Rows that break the rules of their table: new ones are rejected, old ones can be read, claimed and ended."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import asyncpg
import pytest

import horsies_ops
from horsies.model.events import EventKind, EventRecord
from horsies.store.database import Database
from horsies.store.operators import EventStore
from horsies_ops.doctor import CheckStatus, check_rows
from tests.support.cli import Executable
from tests.support.ledger import Ledger
from tests.support.rows import insert_task
from tests.support.workers import worker_in_process

MALFORMED = {
    "kwargs of a wrong type": ("kwargs", "'[]'"),
    "args of a wrong type": ("args", "'{}'"),
    "long integer": ("kwargs", """('{"n": ' || repeat('7', 5000) || '}')::jsonb"""),
    "large float": ("kwargs", """('{"n": 1' || repeat('0', 400) || '.5}')::jsonb"""),
    "deep nesting": ("kwargs", """('{"n": ' || repeat('[', 1200) || repeat(']', 1200) || '}')::jsonb"""),
    "flags of a wrong type": ("flags", "'7'"),
    "long queue name": ("queue_name", "repeat('q', 9000)"),
}
INVALID: list[tuple[str, Any]] = [
    ("args", {}),
    ("kwargs", []),
    ("task_options", []),
    ("flags", 7),
    ("queue_name", "q" * 256),
    ("task_name", ""),
]


async def spoil(url: str, column: str, value: str) -> UUID:
    """Store a task as it may have been stored before there were rules."""
    task_id = await insert_task(url)
    connection = await asyncpg.connect(url)
    await connection.execute("ALTER TABLE horsies_tasks DROP CONSTRAINT horsies_tasks_shape")
    await connection.execute(f"UPDATE horsies_tasks SET {column} = {value} WHERE id = $1", task_id)
    await connection.execute(CONSTRAINT)
    await connection.close()
    return task_id


CONSTRAINT = """
ALTER TABLE horsies_tasks ADD CONSTRAINT horsies_tasks_shape CHECK (
    claim_token > 0 OR terminal_at IS NOT NULL
    OR (ROW (jsonb_typeof(args), jsonb_typeof(kwargs), jsonb_typeof(task_options), jsonb_typeof(flags),
             length(task_name), length(queue_name))::horsies_sound_task_shape).args IS NOT NULL) NOT VALID
"""


@pytest.mark.parametrize(("column", "value"), INVALID)
async def test_malformed_task_is_rejected_by_a_named_rule(database_url: str, column: str, value: Any) -> None:
    with pytest.raises(asyncpg.CheckViolationError, match=f"horsies_tasks_{column}"):
        await insert_task(database_url, **{column: value})


@pytest.mark.parametrize("kind", MALFORMED)
async def test_malformed_task_can_be_shown(database_url: str, tmp_path: Any, kind: str) -> None:
    task_id = await spoil(database_url, *MALFORMED[kind])
    run = Executable(cwd=tmp_path, environment={"DATABASE_URL": database_url})
    for command in (("task", "show", str(task_id)), ("task", "show", str(task_id), "--json"), ("task", "list")):
        done = run(*command)
        assert done.code == 0, done.stderr


@pytest.mark.parametrize("kind", ["kwargs of a wrong type", "flags of a wrong type", "long queue name"])
async def test_doctor_lists_malformed_tasks(database_url: str, kind: str) -> None:
    task_id = await spoil(database_url, *MALFORMED[kind])
    async with horsies_ops.connect(database_url) as ops:
        finding = await check_rows(ops)
    assert finding.status is CheckStatus.FAIL
    assert f"{task_id} ({MALFORMED[kind][0]})" in finding.detail


@pytest.mark.parametrize("kind", ["kwargs of a wrong type", "args of a wrong type", "deep nesting"])
async def test_malformed_task_is_claimed_and_ends(database_url: str, kind: str) -> None:
    task_id = str(await spoil(database_url, *MALFORMED[kind]))
    async with (
        Ledger.open(database_url) as ledger,
        worker_in_process(database_url, config={"unknown_task_grace_s": 0}, processes=1),
    ):
        assert (await ledger.until_terminal(task_id))[task_id]["status"] == "FAILED"


def test_cancel_by_filter_accepts_long_queue_names(database_url: str, tmp_path: Any) -> None:
    asyncio.run(spoil(database_url, *MALFORMED["long queue name"]))
    asyncio.run(insert_task(database_url))
    run = Executable(cwd=tmp_path, environment={"DATABASE_URL": database_url})
    done = run("task", "cancel", "--filter", "status:PENDING", "--yes")
    assert done.code == 0, done.stderr
    assert "cancelled 2" in done.stdout


async def test_event_of_a_long_queue_name_is_recorded(database: Database) -> None:
    """A notification that repeats the whole name would be too long, and the event with it would be lost."""
    event = EventRecord(kind=EventKind.TASK_RECOVERED, queue_name="q" * 9_000)
    await EventStore(database).record(event)
