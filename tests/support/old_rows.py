"""Rows that ended long ago, for tests of what retention takes and leaves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import asyncpg

from tests.support.task_rows import insert, insert_task

if TYPE_CHECKING:
    from uuid import UUID

HOUR = timedelta(hours=1)


def ago(age: timedelta) -> datetime:
    return datetime.now(UTC) - age


async def ended_task(url: str, *, age: timedelta, attempts: int = 1, **columns: Any) -> UUID:
    """A task that ended so long ago, with its attempts."""
    row = {"status": "COMPLETED", "terminal_at": ago(age), "attempts": attempts} | columns
    task_id = await insert_task(url, **row)
    for attempt in range(1, attempts + 1):
        spent = {"claim_token": attempt, "started_at": ago(age), "finished_at": ago(age), "outcome": "COMPLETED"}
        await insert(url, "horsies_task_attempts", task_id=task_id, attempt=attempt, **spent)
    return task_id


async def beat(url: str, task_id: UUID, *, age: timedelta, token: int = 1, role: str = "runner") -> None:
    columns = {"task_id": task_id, "claim_token": token, "role": role, "sender_id": "w", "sent_at": ago(age)}
    await insert(url, "horsies_heartbeats", **columns)


async def worker(url: str, *, state: str, age: timedelta) -> UUID:
    """A run of a worker that was last heard of so long ago."""
    worker_id = uuid4()
    ended = {"stopped": "stopped_at", "lost": "lost_at"}.get(state)
    columns: dict[str, Any] = {} if ended is None else {ended: ago(age)}
    about = {"hostname": "h", "pid": 1, "version": "1", "processes": 1, "last_heartbeat_at": ago(age)}
    await insert(url, "horsies_workers", id=worker_id, state=state, **about, **columns)
    return worker_id


async def workflow_run(
    url: str,
    *,
    age: timedelta,
    status: str = "COMPLETED",
    parent: UUID | None = None,
    root: UUID | None = None,
    tasks: tuple[str, ...] = ("COMPLETED",),
) -> UUID:
    """A run with a node and a backing task in each of these states; a child of `parent` in the tree of `root`."""
    run_id = uuid4()
    about = {"name": "flow", "on_error": "fail", "sent_at": ago(age), "completed_at": ago(age)}
    tree = {"parent_workflow_id": parent, "root_workflow_id": root or parent or run_id}
    await insert(url, "horsies_workflows", id=run_id, status=status, **about, **tree)
    for index, task_status in enumerate(tasks):
        link: dict[str, Any] = {"is_workflow_task": True, "workflow_id": run_id, "workflow_task_index": index}
        is_live = task_status in {"PENDING", "CLAIMED", "RUNNING"}
        task_id = (
            await insert_task(url, status=task_status, **link)
            if is_live
            else await ended_task(url, age=age, status=task_status, **link)
        )
        node = {"node_id": f"n{index}", "task_name": "mail.send", "queue_name": "default", "priority": 100}
        state = {"task_id": task_id, "status": "RUNNING" if is_live else "COMPLETED"}
        await insert(url, "horsies_workflow_tasks", id=uuid4(), workflow_id=run_id, task_index=index, **node, **state)
    return run_id


async def ids(url: str, table: str) -> set[Any]:
    """The ids that a table holds."""
    return {row[0] for row in await _fetch(url, f"SELECT id FROM {table}")}


async def count(url: str, table: str) -> int:
    return (await _fetch(url, f"SELECT count(*) FROM {table}"))[0][0]


async def _fetch(url: str, sql: str) -> list[Any]:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetch(sql)
    finally:
        await connection.close()
