"""A database in which time passes at a word: every instant in its rows is moved back."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import asyncpg

from horsies.store.connection import Link
from horsies.store.database import Database
from tests.support.chronicle import StoredAttempt, StoredTask, Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from tests.support.work import Connection

R = TypeVar("R")

TICK_S: Final = 600.0
"""So long that no stall of the machine is taken for time that has passed."""

TASKS = """
SELECT id, status, claim_token, claimed_by_worker_id, overlap_possible, retry_count, crash_count,
       (result->>'ok')::integer
  FROM horsies_tasks
"""
ATTEMPTS = "SELECT task_id, claim_token, outcome, will_retry FROM horsies_task_attempts"
WORKERS = "SELECT id FROM horsies_workers"

TABLES = ("horsies_tasks", "horsies_task_attempts", "horsies_heartbeats", "horsies_workers", "horsies_queues")
INSTANTS = """
SELECT table_name::text, string_agg(format('%1$I = %1$I - $1::interval', column_name), ', ') AS moves
  FROM information_schema.columns
 WHERE table_name = ANY($1::text[]) AND data_type = 'timestamp with time zone'
 GROUP BY table_name
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One database and one event loop for many short lives."""

    database: Database
    _runner: asyncio.Runner
    _connection: Connection
    _ageing: tuple[str, ...]

    @classmethod
    @contextmanager
    def open(cls, url: str, database_of: Callable[[Link], Database] = Database) -> Generator[Stage]:
        with asyncio.Runner() as runner:
            connection = runner.run(asyncpg.connect(url))
            database = database_of(Link(url=url, masked_url=url))
            moved = runner.run(connection.fetch(INSTANTS, TABLES))
            ageing = tuple(f"UPDATE {row['table_name']} SET {row['moves']}" for row in moved)
            try:
                yield cls(database=database, _runner=runner, _connection=connection, _ageing=ageing)
            finally:
                runner.run(database.close())
                runner.run(connection.close())

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        return self._runner.run(work)

    async def clear(self) -> None:
        """Begin anew; cheaper than another database."""
        await self._connection.execute(f"TRUNCATE {', '.join(TABLES)}, horsies_events")

    async def age(self) -> None:
        """Let one tick pass."""
        for statement in self._ageing:
            await self._connection.execute(statement, timedelta(seconds=TICK_S))

    async def tables(self) -> Tables:
        fetch = self._connection.fetch
        return Tables(
            tasks=[StoredTask(*row) for row in await fetch(TASKS)],
            attempts=[StoredAttempt(*row) for row in await fetch(ATTEMPTS)],
            worker_ids=[row["id"] for row in await fetch(WORKERS)],
        )
