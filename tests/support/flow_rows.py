"""Runs of workflows written past the library, for tests of what is read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from horsies.codec.ids import IDS
from tests.support.task_rows import insert

if TYPE_CHECKING:
    from uuid import UUID


async def insert_run(database_url: str, **columns: Any) -> UUID:
    """Store a run with these columns; the others are as in a root that runs."""
    run_id: UUID = columns.get("id") or IDS.next()
    row = {"id": run_id, "name": "digest", "status": "RUNNING", "on_error": "fail", "sent_at": datetime.now(UTC)}
    await insert(database_url, "horsies_workflows", **row | {"root_workflow_id": run_id} | columns)
    return run_id


async def insert_node(database_url: str, run_id: UUID, index: int, *waits_for: int, **columns: Any) -> None:
    """Store a node of a run that waits for the nodes with these indices."""
    row: dict[str, Any] = {
        "id": IDS.next(),
        "workflow_id": run_id,
        "task_index": index,
        "node_id": f"node:{index}",
        "task_name": f"step_{index}",
        "queue_name": "default",
        "priority": 100,
        "status": "PENDING",
        "dependencies": list(waits_for),
    }
    await insert(database_url, "horsies_workflow_tasks", **row | columns)
