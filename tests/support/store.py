"""Claims, notifications, lock waits and query plans, for tests of the store."""

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
from horsies.model.task import TaskAttemptOutcome
from horsies.store.claims import ClaimedRow, ClaimRef, ClaimRequest, ClaimStore, FinishedAttempt, claim_arrays
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database
from horsies_ops.ops import OperatorSession, Ops

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

WORKER = uuid4()
DEFAULT = (QueueCapacity(name="default", capacity=1000),)

_INSERT_PENDING = """
INSERT INTO horsies_tasks (id, task_name, queue_name, sent_at, enqueue_sha, enqueued_at)
SELECT gen_random_uuid(), 'mail.send', $1, now(), '', clock_timestamp() + make_interval(secs => $3)
  FROM generate_series(1, $2::integer)
"""


def ops_on(database: Database, *, direct_spec: ConnectionSpec | None = None) -> Ops:
    """The toolkit with default settings on an open database."""
    return Ops(
        reader=database,
        session=OperatorSession.for_actor("ada", via="library", database=database),
        direct_spec=direct_spec or database.connection_spec,
        settings=AppConfig(broker=PostgresConfig(database_url="postgresql://not-used")),
    )


async def insert_pending(connection: Connection, *, count: int, queue: str = "default", due_in_s: float = 0.0) -> None:
    """Insert `count` tasks of one queue; a negative `due_in_s` makes them overdue."""
    await connection.execute(_INSERT_PENDING, queue, count, due_in_s)


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
    """Claim the next task and start it in the child with pid 7."""
    (row,) = await claim(database, limit=1, pids=[7])
    return claim_ref(row)


async def finish_attempts(
    store: ClaimStore, finishes: Sequence[FinishedAttempt], *, events: Sequence[str] = ()
) -> list[str]:
    """Store outcomes as the completer does, completed ones first; returns the new statuses."""
    completed = [finish for finish in finishes if finish.outcome is TaskAttemptOutcome.COMPLETED]
    others = [finish for finish in finishes if finish.outcome is not TaskAttemptOutcome.COMPLETED]
    stored = 0
    if completed or not others:
        ids, tokens, worker_ids = claim_arrays([finish.claim for finish in completed])
        documents, pids = [finish.document for finish in completed], [finish.pid for finish in completed]
        stored = await store.complete(
            ids, tokens, documents, worker_ids=set(worker_ids), pids=pids, events=() if others else events
        )
    rows = await store.finish(others, events=events) if others else []
    return ["COMPLETED"] * stored + [row.status for row in rows]


async def claim_one(database: Database, **others: Any) -> ClaimRef:
    (row,) = await claim(database, limit=1, **others)
    return claim_ref(row)


async def only_row(connection: Connection, table: str, *columns: str) -> tuple[Any, ...]:
    """Columns of the only row of a table."""
    (row,) = await connection.fetch(f"SELECT {', '.join(columns)} FROM {table}")
    return tuple(row)


@asynccontextmanager
async def collect_notifications(url: str, *channels: str) -> AsyncGenerator[Callable[[], Any]]:
    """Yield a function that returns all notifications on these channels so far, as (channel, payload)."""
    connection = await asyncpg.connect(url)
    received: list[tuple[str, object]] = []
    has_last = asyncio.Event()

    def on_notification(_connection: object, _pid: int, channel: str, payload: object) -> None:
        has_last.set() if channel == "last" else received.append((channel, payload))

    async def notifications() -> list[tuple[str, object]]:
        # Notifications arrive in commit order, so all earlier ones have arrived when this one does.
        await connection.execute("NOTIFY last")
        await has_last.wait()
        has_last.clear()
        return sorted(received)

    try:
        for channel in (*channels, "last"):
            await connection.add_listener(channel, on_notification)
        yield notifications
    finally:
        await connection.close()


# An app on the test database, and helpers that finish its tasks in place of a worker

_FINISH = """
UPDATE horsies_tasks SET status = $2, result = $3::text::jsonb, terminal_at = now() WHERE id = ANY($1::text[]::uuid[])
"""


def double(n: int, note: str = "") -> TaskResult[int, TaskError]:
    return TaskResult(ok=2 * n)


def tomorrow(today: date) -> TaskResult[date, TaskError]:
    return TaskResult(ok=date.fromordinal(today.toordinal() + 1))


def make_app(url: str, *, settings: dict[str, Any] | None = None, **config: Any) -> Horsies:
    """An app with the tasks `double` and `tomorrow`; `settings` are broker settings."""
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
    """Finish tasks as a worker does; with `notify` waiters are notified too."""
    ids = list(task_ids)
    await connection.execute(_FINISH, ids, status, document)
    if notify:
        for start in range(0, len(ids), 200):
            await connection.execute("SELECT pg_notify('horsies_task_done', $1)", ",".join(ids[start : start + 200]))


async def listen_on(connection: asyncpg.Connection[Any], channel: str) -> asyncio.Queue[str]:
    """A queue of the payloads that arrive on `channel` from now on."""
    payloads: asyncio.Queue[str] = asyncio.Queue()

    def on_notification(_connection: object, _pid: int, _channel: str, payload: object) -> None:
        payloads.put_nowait(str(payload))

    await connection.add_listener(channel, on_notification)
    return payloads


def fetch_rows(url: str, sql: str, *arguments: object) -> Sequence[tuple[Any, ...]]:
    """Fetch the rows of one statement, in tests without an event loop."""

    async def fetch() -> Sequence[tuple[Any, ...]]:
        connection = await asyncpg.connect(url)
        try:
            return [tuple(row) for row in await connection.fetch(sql, *arguments)]
        finally:
            await connection.close()

    return asyncio.run(fetch())


def count_tasks(url: str) -> int:
    return fetch_rows(url, "SELECT count(*) FROM horsies_tasks")[0][0]


# Locks and deadlocks

# ruff: noqa: ASYNC110  # database state has to be polled

_HAS_LOCK_WAITERS = """
SELECT count(*) >= $1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


async def until_lock_waiters(connection: Connection, *, sessions: int = 1) -> None:
    """Wait until `sessions` sessions of this database wait for a lock; works inside a transaction too."""
    async with asyncio.timeout(30):
        while not await connection.fetchval(_HAS_LOCK_WAITERS, sessions):
            # A transaction keeps its first view of pg_stat_activity until it clears it.
            await connection.execute("SELECT pg_stat_clear_snapshot()")
            await asyncio.sleep(0.01)


_COUNT_OTHER_SESSIONS = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


async def count_deadlocks(connection: Connection) -> int:
    """Number of deadlocks in this database; waits for other sessions to end, because they report on exit."""
    async with asyncio.timeout(20):
        while await connection.fetchval(_COUNT_OTHER_SESSIONS):
            await asyncio.sleep(0.01)
    return await connection.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")


# Query plans


async def rows_read(
    connection: asyncpg.Connection[asyncpg.Record], sql: str, *arguments: object, table: str = "horsies_tasks"
) -> int:
    """Number of rows of a table that a statement reads, including those it filters out."""
    text = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", *arguments)
    scans = [node for node in _plan_nodes(json.loads(text)[0]["Plan"]) if node.get("Relation Name") == table]
    return sum(
        int((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]) for node in scans
    )


def _plan_nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _plan_nodes(child)
