"""Tasks in the hands of a worker, for tests of what a worker writes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import date
from typing import Any, TypeAlias
from uuid import UUID, uuid4

import asyncpg

from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult
from horsies.model.capacity import QueueCapacity
from horsies.store.claims import ClaimedRow, ClaimRef, ClaimRequest, ClaimStore
from horsies.store.database import Database

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

WORKER = uuid4()
DEFAULT = (QueueCapacity(name="default", capacity=1000),)

FILL = """
INSERT INTO horsies_tasks (id, task_name, queue_name, sent_at, enqueue_sha, enqueued_at)
SELECT gen_random_uuid(), 'mail.send', $1, now(), '', clock_timestamp() + make_interval(secs => $3)
  FROM generate_series(1, $2::integer)
"""


async def insert_pending(connection: Connection, *, count: int, queue: str = "default", due_in_s: float = 0.0) -> None:
    """Many tasks of one queue, due since or in so many seconds."""
    await connection.execute(FILL, queue, count, due_in_s)


async def claim(
    database: Database,
    *,
    queues: Sequence[QueueCapacity] = DEFAULT,
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


def claim_ref(row: ClaimedRow, worker_id: UUID = WORKER) -> ClaimRef:
    return ClaimRef(task_id=row.id, claim_token=row.claim_token, worker_id=worker_id)


async def claim_and_start(database: Database) -> ClaimRef:
    """The next task, started in the child 7."""
    (row,) = await claim(database, limit=1, pids=[7])
    return claim_ref(row)


async def claim_one(database: Database, **others: Any) -> ClaimRef:
    (row,) = await claim(database, limit=1, **others)
    return claim_ref(row)


async def only_row(connection: Connection, table: str, *columns: str) -> tuple[Any, ...]:
    """The columns of the only row of a table."""
    (row,) = await connection.fetch(f"SELECT {', '.join(columns)} FROM {table}")
    return tuple(row)


@asynccontextmanager
async def collect_notifications(url: str, *channels: str) -> AsyncGenerator[Callable[[], Any]]:
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


# An app on a test's database, and the part of a worker that its tasks need to come to an end.

_SETTLE = """
UPDATE horsies_tasks SET status = $2, result = $3::text::jsonb, terminal_at = now() WHERE id = ANY($1::text[]::uuid[])
"""


def double(n: int, note: str = "") -> TaskResult[int, TaskError]:
    return TaskResult(ok=2 * n)


def tomorrow(today: date) -> TaskResult[date, TaskError]:
    return TaskResult(ok=date.fromordinal(today.toordinal() + 1))


def make_app(url: str, *, settings: dict[str, Any] | None = None, **config: Any) -> Horsies:
    """An app with the tasks `double` and `tomorrow`; `settings` are of its broker."""
    app = Horsies(AppConfig(broker=PostgresConfig(database_url=url, **(settings or {})), **config))
    app.task("double")(double)
    app.task("tomorrow")(tomorrow)
    return app


async def finish_tasks(
    connection: asyncpg.Connection[Any],
    task_ids: Iterable[str],
    document: str | None = '{"ok": 10}',
    *,
    status: str = "COMPLETED",
    notify: bool = True,
) -> None:
    """Bring tasks to an end as a worker does, with or without telling those who wait."""
    ids = list(task_ids)
    await connection.execute(_SETTLE, ids, status, document)
    if notify:
        for start in range(0, len(ids), 200):
            await connection.execute("SELECT pg_notify('horsies_task_done', $1)", ",".join(ids[start : start + 200]))


async def listen_on(connection: asyncpg.Connection[Any], channel: str) -> asyncio.Queue[str]:
    """What is said on `channel` from now on."""
    heard: asyncio.Queue[str] = asyncio.Queue()

    def keep(_connection: object, _pid: int, _channel: str, payload: object) -> None:
        heard.put_nowait(str(payload))

    await connection.add_listener(channel, keep)
    return heard


def fetch_rows(url: str, sql: str, *arguments: object) -> Sequence[tuple[Any, ...]]:
    """Rows of one statement, for tests without an event loop."""

    async def fetch() -> Sequence[tuple[Any, ...]]:
        connection = await asyncpg.connect(url)
        try:
            return [tuple(row) for row in await connection.fetch(sql, *arguments)]
        finally:
            await connection.close()

    return asyncio.run(fetch())


def count_tasks(url: str) -> int:
    return fetch_rows(url, "SELECT count(*) FROM horsies_tasks")[0][0]


# Sessions that wait for each other.

SOMEONE_WAITS = """
SELECT count(*) >= $1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


async def until_lock_waiters(connection: Connection, *, sessions: int = 1) -> None:
    """Look until so many sessions of this database wait for a lock; also from inside a transaction."""
    async with asyncio.timeout(30):
        while not await connection.fetchval(SOMEONE_WAITS, sessions):
            # What a transaction has seen of the others' activity, it sees until its end unless it asks anew.
            await connection.execute("SELECT pg_stat_clear_snapshot()")
            await asyncio.sleep(0.01)


# Deadlocks, as the server counts them.

# ruff: noqa: ASYNC110  # the database sets no events


OTHERS = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


async def count_deadlocks(connection: Connection) -> int:
    """How many there were in this database; asked when all others have left it, for a session counts as it goes."""
    async with asyncio.timeout(20):
        while await connection.fetchval(OTHERS):
            await asyncio.sleep(0.01)
    return await connection.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")


# What the server did to answer a statement.


async def rows_read(
    connection: asyncpg.Connection[asyncpg.Record], sql: str, *arguments: object, table: str = "horsies_tasks"
) -> int:
    """How many rows of a table a statement goes through, kept or not."""
    text = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", *arguments)
    scans = [node for node in _nodes(json.loads(text)[0]["Plan"]) if node.get("Relation Name") == table]
    return sum(
        int((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]) for node in scans
    )


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)
