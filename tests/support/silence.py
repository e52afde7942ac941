"""Workers and tasks whose last sign of life was so long ago."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from horsies.model.recovery.fleet import OperatorJudge
from horsies.model.settings import RecoveryConfig
from tests.support.task_rows import insert, insert_task

if TYPE_CHECKING:
    from tests.support.work import Connection

BY_HAND = OperatorJudge(local=RecoveryConfig())
CRASH_RETRY = {"retry_policy": {"max_retries": 1, "intervals": [5], "auto_retry_for": ["WORKER_CRASHED"]}}


def ago(seconds: float) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=seconds)


async def a_worker(
    url: str, *, state: str = "running", silent_s: float = 0, listens_s: float | None = 86_400, **config: Any
) -> UUID:
    """The row of a worker with these settings, which has beaten and listened for so long."""
    worker_id = uuid4()
    since = None if listens_s is None else ago(listens_s).isoformat()
    await insert(
        url,
        "horsies_workers",
        id=worker_id,
        hostname="there",
        pid=7,
        version="1",
        processes=1,
        state=state,
        last_heartbeat_at=ago(silent_s),
        recovery_config=RecoveryConfig(**config).model_dump(mode="json"),
        health={"listening_since": since},
    )
    return worker_id


async def a_task(url: str, status: str, *, owner: UUID | None, silent_s: float, **columns: Any) -> UUID:
    """A CLAIMED or RUNNING task without a sign of life since then; its claim or start is the only one."""
    held: dict[str, Any] = {"claimed": status == "CLAIMED", "claimed_at": ago(silent_s), "claim_token": 1}
    if status == "RUNNING":
        held |= {"started_at": ago(silent_s), "worker_pid": 8, "worker_hostname": "there"}
    return await insert_task(url, status=status, claimed_by_worker_id=owner, **held | columns)


async def a_beat(url: str, task_id: UUID, *, silent_s: float, role: str = "runner", token: int = 1) -> None:
    await insert(
        url, "horsies_heartbeats", task_id=task_id, claim_token=token, role=role, sender_id="x", sent_at=ago(silent_s)
    )


async def one(connection: Connection, task_id: UUID, *columns: str) -> tuple[Any, ...]:
    """Columns of one task."""
    row = await connection.fetchrow(f"SELECT {', '.join(columns)} FROM horsies_tasks WHERE id = $1", task_id)
    assert row is not None
    return tuple(row)
