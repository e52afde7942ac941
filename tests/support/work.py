"""Tasks in the hands of a worker, for tests of what a worker writes."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID, uuid4

import asyncpg

from horsies.model.capacity import QueueRoom
from horsies.store.claims import ClaimedRow, ClaimRequest, ClaimStore, Hold

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from horsies.store.database import Database

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

WORKER = uuid4()
DEFAULT = (QueueRoom(name="default", room=1000),)

FILL = """
INSERT INTO horsies_tasks (id, task_name, queue_name, sent_at, enqueue_sha, enqueued_at)
SELECT gen_random_uuid(), 'mail.send', $1, now(), '', clock_timestamp() + make_interval(secs => $3)
  FROM generate_series(1, $2::integer)
"""


async def fill(connection: Connection, *, count: int, queue: str = "default", due_in_s: float = 0.0) -> None:
    """Many tasks of one queue, due since or in so many seconds."""
    await connection.execute(FILL, queue, count, due_in_s)


async def claim(
    database: Database,
    *,
    queues: Sequence[QueueRoom] = DEFAULT,
    limit: int = 100,
    pids: Sequence[int] = (),
    **others: Any,
) -> list[ClaimedRow]:
    request: dict[str, Any] = {
        "worker_id": WORKER,
        "hostname": "here",
        "queues": queues,
        "limit": limit,
        "pids": pids,
    } | others
    return await ClaimStore(database).claim(ClaimRequest(**request))


def held(row: ClaimedRow, worker_id: UUID = WORKER) -> Hold:
    return Hold(task_id=row.id, claim_token=row.claim_token, worker_id=worker_id)


async def one_running(database: Database) -> Hold:
    """The next task, started in the child 7."""
    (row,) = await claim(database, limit=1, pids=[7])
    return held(row)


async def one_claimed(database: Database, **others: Any) -> Hold:
    (row,) = await claim(database, limit=1, **others)
    return held(row)


async def columns_of(connection: Connection, table: str, *columns: str) -> tuple[Any, ...]:
    """The columns of the only row of a table."""
    (row,) = await connection.fetch(f"SELECT {', '.join(columns)} FROM {table}")
    return tuple(row)


@asynccontextmanager
async def hearing(url: str, *channels: str) -> AsyncGenerator[Callable[[], Any]]:
    """Yields a call that returns what was said on these channels until now, as (channel, payload)."""
    connection = await asyncpg.connect(url)
    said: list[tuple[str, object]] = []
    fence = asyncio.Event()

    def hear(_connection: object, _pid: int, channel: str, payload: object) -> None:
        fence.set() if channel == "fence" else said.append((channel, payload))

    async def heard() -> list[tuple[str, object]]:
        # Notifications arrive in the order of their commits, so this one closes the list.
        await connection.execute("NOTIFY fence")
        await fence.wait()
        fence.clear()
        return sorted(said)

    try:
        for channel in (*channels, "fence"):
            await connection.add_listener(channel, hear)
        yield heard
    finally:
        await connection.close()
