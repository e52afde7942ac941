"""Common check of the fault tests: compares what tasks recorded in the ledger with the queue's tables.

C1  every task ends; none is lost
C2  a task has one final outcome, a claim at most one attempt
C3  executions of one task do not overlap
C4  retries and crashes stay within their limits
C5  each execution has one attempt row, with the right pid
C6  no unfinished task belongs to a stopped, lost or unknown worker
C7  no process of a child outlives its worker
C8  no database connection is left open
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any

import asyncpg
from uuid_utils.compat import uuid7

from tests.support.ledger_app import QUICK_RECOVERY, retried

# ruff: noqa: ASYNC110  # other processes have to be polled


TABLE = """
CREATE TABLE ledger (
    task_id uuid NOT NULL, claim_token bigint NOT NULL, attempt integer NOT NULL, pid integer NOT NULL,
    what text NOT NULL CHECK (what IN ('start', 'end')), at timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""

ROWS = """
SELECT id::text, task_name, status, retry_count, max_retries, attempts, crash_count, error_code, result, claim_token,
       terminal_at, sent_at, enqueued_at, claimed_at, started_at, completed_at, failed_at, failed_reason, worker_pid
  FROM horsies_tasks
 WHERE id = ANY($1::text[]::uuid[])
"""
ATTEMPTS = """
SELECT task_id::text, attempt, claim_token, outcome, will_retry, error_code, error_message, started_at, finished_at,
       worker_pid
  FROM horsies_task_attempts
 WHERE task_id = ANY($1::text[]::uuid[])
 ORDER BY task_id, attempt
"""
ORPHANS = """
SELECT t.id::text
  FROM horsies_tasks AS t
  LEFT JOIN horsies_workers AS w ON w.id = t.claimed_by_worker_id
 WHERE t.status IN ('CLAIMED', 'RUNNING')
   AND (w.id IS NULL OR w.state IN ('stopped', 'lost'))
"""

POLL_S = 0.01
LIMIT_S = 20.0
"""When a wait gives up. On a busy machine a condition may become true late; tests of a time limit name the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A ledger row: the start or end of a task body."""

    task_id: str
    claim_token: int
    attempt: int
    pid: int
    what: str
    at: datetime


class Ledger:
    """The ledger of a test database, with reads of the queue's tables."""

    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self._connection = connection

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncGenerator[Ledger]:
        """Create the ledger; at the end all connections opened meanwhile must be closed (C8)."""
        connection: asyncpg.Connection[Any] = await asyncpg.connect(url)
        try:
            await connection.execute(TABLE)
            ledger = cls(connection)
            baseline = await ledger.connections()
            yield ledger
            await ledger.until_connections_are(baseline)
        finally:
            await connection.close()

    async def fetch(self, sql: str, *arguments: object) -> list[dict[str, Any]]:
        return [dict(row) for row in await self._connection.fetch(sql, *arguments)]

    async def now(self) -> datetime:
        """The database clock."""
        ((at,),) = await self._connection.fetch("SELECT clock_timestamp()")
        return at

    async def entries(self) -> list[Entry]:
        rows = await self.fetch("SELECT task_id::text, claim_token, attempt, pid, what, at FROM ledger ORDER BY at")
        return [Entry(**row) for row in rows]

    async def starts(self, *task_ids: str) -> list[Entry]:
        """Starts in order; only of `task_ids` if given."""
        return [
            entry
            for entry in await self.entries()
            if entry.what == "start" and (not task_ids or entry.task_id in task_ids)
        ]

    async def rows(self, *task_ids: str) -> dict[str, dict[str, Any]]:
        """Rows of horsies_tasks, by id."""
        return {row["id"]: row for row in await self.fetch(ROWS, list(task_ids))}

    async def row(self, task_id: str) -> dict[str, Any]:
        return (await self.rows(task_id))[task_id]

    async def attempts(self, *task_ids: str) -> list[dict[str, Any]]:
        return await self.fetch(ATTEMPTS, list(task_ids))

    async def events(self, kind: str) -> list[dict[str, Any]]:
        return await self.fetch("SELECT *, task_id::text FROM horsies_events WHERE kind = $1 ORDER BY id", kind)

    async def until(self, condition: Callable[[], Awaitable[object]], *, within_s: float = LIMIT_S) -> None:
        """Poll until the condition is true."""
        async with asyncio.timeout(within_s):
            while not await condition():
                await asyncio.sleep(POLL_S)

    async def until_started(self, *task_ids: str, within_s: float = LIMIT_S) -> None:
        async def have_started() -> bool:
            return set(task_ids) <= {entry.task_id for entry in await self.starts()}

        await self.until(have_started, within_s=within_s)

    async def until_terminal(self, *task_ids: str, within_s: float = LIMIT_S) -> dict[str, dict[str, Any]]:
        """Wait until these tasks have ended and return their rows."""

        async def are_terminal() -> bool:
            sql = "SELECT count(*) FROM horsies_tasks WHERE id = ANY($1::text[]::uuid[]) AND terminal_at IS NOT NULL"
            return await self._connection.fetchval(sql, list(task_ids)) == len(task_ids)

        await self.until(are_terminal, within_s=within_s)
        return await self.rows(*task_ids)

    async def connections(self) -> int:
        """Number of other connections to this database."""
        sql = """
        SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
        """
        return await self._connection.fetchval(sql)

    async def until_connections_are(self, baseline: int) -> None:
        """Wait until at most `baseline` other connections are left (C8)."""

        async def are_closed() -> bool:
            return await self.connections() <= baseline

        await self.until(are_closed, within_s=20)

    async def violations(
        self,
        task_ids: Sequence[str],
        *,
        held: Collection[str] = (),
        unrecorded: Collection[str] = (),
        max_crashes: int = 10,
        may_overlap: bool = False,
        unbegun: int = 0,
    ) -> list[str]:
        """All violations of C1 to C6. C7 is checked when a worker has ended, C8 when the ledger is closed.

        Tasks in `held` may be unfinished; those in `unrecorded` write no ledger rows. Up to `unbegun` attempts may lack
        a start: RUNNING tasks of a chunk that had not begun when the whole worker died.
        """
        rows, attempts, entries = await self.rows(*task_ids), await self.attempts(*task_ids), await self.entries()
        entries = [entry for entry in entries if entry.task_id in rows]
        recorded = [attempt for attempt in attempts if attempt["task_id"] not in unrecorded]
        violations: list[str] = [
            *_unfinished(rows, task_ids, held),
            *_duplicate_outcomes(attempts),
            *(() if may_overlap else _overlaps(entries, attempts)),
            *_limits_exceeded(rows, max_crashes),
            *_attempt_mismatches(recorded, entries, unbegun),
        ]
        violations += [f"C6 {row['id']} has a dead owner" for row in await self.fetch(ORPHANS)]
        return violations


def _unfinished(rows: dict[str, dict[str, Any]], task_ids: Sequence[str], held: Collection[str]) -> Iterator[str]:
    for task_id in task_ids:
        if task_id not in rows:
            yield f"C1 {task_id} is gone"
        elif rows[task_id]["terminal_at"] is None and task_id not in held:
            yield f"C1 {task_id} is {rows[task_id]['status']}"


def _duplicate_outcomes(attempts: list[dict[str, Any]]) -> Iterator[str]:
    last = Counter(attempt["task_id"] for attempt in attempts if not attempt["will_retry"])
    yield from (f"C2 {task_id} has {count} outcomes" for task_id, count in last.items() if count > 1)
    tokens = Counter((attempt["task_id"], attempt["claim_token"]) for attempt in attempts)
    yield from (f"C2 {key} has {count} attempts" for key, count in tokens.items() if count > 1)


def _overlaps(entries: list[Entry], attempts: list[dict[str, Any]]) -> Iterator[str]:
    """Starts before the previous execution of the same task had ended or was known to be dead."""
    ends = {(attempt["task_id"], attempt["claim_token"]): attempt["finished_at"] for attempt in attempts}
    ends |= {(entry.task_id, entry.claim_token): entry.at for entry in entries if entry.what == "end"}
    by_task: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.what == "start":
            by_task[entry.task_id].append(entry)
    for task_id, starts in by_task.items():
        for first, second in pairwise(starts):
            end = ends.get((task_id, first.claim_token))
            if end is None or end > second.at:
                yield f"C3 {task_id}: claim {second.claim_token} started before claim {first.claim_token} ended"


def _limits_exceeded(rows: dict[str, dict[str, Any]], max_crashes: int) -> Iterator[str]:
    for row in rows.values():
        if row["retry_count"] > row["max_retries"]:
            yield f"C4 {row['id']}: {row['retry_count']} retries of {row['max_retries']}"
        if row["crash_count"] > max_crashes:
            yield f"C4 {row['id']}: {row['crash_count']} crashes"


def _attempt_mismatches(attempts: list[dict[str, Any]], entries: list[Entry], unbegun: int) -> Iterator[str]:
    starts = [entry for entry in entries if entry.what == "start"]
    runs = Counter((start.task_id, start.claim_token) for start in starts)
    pids = {(attempt["task_id"], attempt["claim_token"]): attempt["worker_pid"] for attempt in attempts}
    yield from (f"C5 {key} ran {count} times" for key, count in runs.items() if count > 1)
    yield from (f"C5 {key} ran without an attempt row" for key in runs.keys() - pids.keys())
    if len(pids.keys() - runs.keys()) > unbegun:
        yield from (f"C5 {key} has an attempt row but never ran" for key in pids.keys() - runs.keys())
    for start in starts:
        recorded_pid = pids.get((start.task_id, start.claim_token), start.pid)
        if recorded_pid != start.pid:
            yield f"C5 {start.task_id} ran in process {start.pid}, but its attempt says {recorded_pid}"


# Inserted tasks

_INSERT_PENDING = """
INSERT INTO horsies_tasks (id, task_name, queue_name, priority, args, sent_at, enqueued_at, enqueue_sha)
SELECT gen_random_uuid(), $1, $2, $3, $4::text::jsonb, now(), clock_timestamp(), '' FROM generate_series(1, $5::integer)
RETURNING id::text
"""


async def insert_pending_tasks(
    ledger: Ledger, task: str, *args: object, queue: str = "default", priority: int = 100, count: int = 1
) -> list[str]:
    """Insert PENDING tasks in any queue; returns their ids, oldest first."""
    rows = await ledger.fetch(_INSERT_PENDING, task, queue, priority, json.dumps(args), count)
    return [row["id"] for row in rows]


async def statuses(ledger: Ledger, *task_ids: str) -> list[str]:
    return sorted(row["status"] for row in (await ledger.rows(*task_ids)).values())


# Tasks of dead workers

_INSERT_OWNER = """
INSERT INTO horsies_workers (id, hostname, pid, version, processes, state, started_at, last_heartbeat_at,
                             recovery_config)
VALUES ($1, 'elsewhere', 1, '0', 1, $2, now() - make_interval(secs => $3), now() - make_interval(secs => $3),
        $4::text::jsonb)
"""
_INSERT_OWNED_TASK = """
INSERT INTO horsies_tasks (id, task_name, status, claimed, claim_token, sent_at, enqueued_at, claimed_at, started_at,
                           claimed_by_worker_id, enqueue_sha, max_retries, task_options, flags, good_until)
SELECT $1, $2, $3, $3 = 'CLAIMED', 1, since, since, since, CASE WHEN $3 = 'RUNNING' THEN since END, $5, '', $6,
       $7::text::jsonb, $8::text::jsonb, now() + make_interval(secs => $9)
  FROM (SELECT now() - make_interval(secs => $4) AS since) AS silence
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanedTask:
    """A task whose owner sent its last heartbeat `silent_s` seconds ago; without a `state` the owner has no row."""

    task: str = "work"
    status: str = "RUNNING"
    silent_s: float = 60.0
    state: str | None = "running"
    retries: int = 0
    """Retries after WORKER_CRASHED, each delayed by one second."""
    flags: dict[str, bool] = field(default_factory=dict[str, bool])
    good_for_s: float | None = None
    thresholds: dict[str, Any] = field(default_factory=dict[str, Any])
    """Recovery settings of the owner that differ from QUICK_RECOVERY."""

    async def insert(self, ledger: Ledger) -> str:
        """Insert the task and its owner; returns the task id."""
        task_id, owner_id = uuid7(), uuid7()
        if self.state is not None:
            config = json.dumps(QUICK_RECOVERY | self.thresholds)
            await ledger.fetch(_INSERT_OWNER, owner_id, self.state, self.silent_s, config)
        policy = retried("WORKER_CRASHED", times=self.retries).model_dump(mode="json") if self.retries else None
        options = json.dumps({"retry_policy": policy} if policy else {})
        await ledger.fetch(
            _INSERT_OWNED_TASK,
            task_id,
            self.task,
            self.status,
            self.silent_s,
            owner_id,
            self.retries,
            options,
            json.dumps(self.flags),
            self.good_for_s,
        )
        return str(task_id)
