"""Workers seen through the database: what they wrote about themselves, and a call that they answer."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from horsies.errors import DatabaseUnreachable
from horsies.model.broker import WorkerStateSnapshot
from horsies.store.failures import explain, is_failure_of_database
from horsies.store.queries import Query, load

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from datetime import datetime
    from uuid import UUID

    from horsies.store.db import Database
    from horsies.store.link import Link

_JSON_COLUMNS = frozenset({"queue_priorities", "queue_max_concurrency", "recovery_config"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    is_sent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRow:
    worker_id: str
    snapshot_at: datetime
    hostname: str
    pid: int
    processes: int
    max_claim_batch: int
    max_claim_per_worker: int
    cluster_wide_cap: int | None
    queues: list[str]
    queue_priorities: str
    queue_max_concurrency: str
    recovery_config: str
    tasks_running: int
    tasks_claimed: int
    memory_usage_mb: float | None
    memory_percent: float | None
    cpu_percent: float | None
    children_memory_mb: float | None
    worker_started_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerQueries:
    ping: Query[Sent]
    newest_states: Query[StateRow]
    state_history: Query[StateRow]


WORKERS = load(WorkerQueries, "horsies.store", "workers")


@dataclass(frozen=True, slots=True)
class WorkerStore:
    """Workers of one database."""

    database: Database

    async def newest_states(self) -> list[WorkerStateSnapshot]:
        """The newest snapshot of each worker, newest first."""
        return [_snapshot(row) for row in await self.database.fetch(WORKERS.newest_states)]

    async def state_history(self, worker_id: UUID, limit: int | None) -> list[WorkerStateSnapshot]:
        """The snapshots of one worker, newest first."""
        return [_snapshot(row) for row in await self.database.fetch(WORKERS.state_history, worker_id, limit)]


class PingLine:
    """A connection on which a ping was sent and its answers arrive."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._heard: asyncio.Queue[str | None] = asyncio.Queue()

    async def answer(self) -> str:
        """The next answer, as it was sent; raises when the connection is lost."""
        payload = await self._heard.get()
        if payload is None:
            raise DatabaseUnreachable(f"the connection to {self._link.masked_url} was lost while waiting for workers")
        return payload

    def hear(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        self._heard.put_nowait(str(payload))

    def hear_the_end(self, _connection: object) -> None:
        self._heard.put_nowait(None)


@asynccontextmanager
async def pinging(link: Link, *, reply_channel: str, message: str) -> AsyncGenerator[PingLine]:
    """Listen on the reply channel, then ping all workers; a direct link, for LISTEN needs a connection of its own."""
    line = PingLine(link)
    connection = await link.connect()
    try:
        connection.add_termination_listener(line.hear_the_end)
        await connection.add_listener(reply_channel, line.hear)
        await connection.fetch(WORKERS.ping.sql, message)
        yield line
    except Exception as error:
        if is_failure_of_database(error) and not isinstance(error, TimeoutError):
            raise explain(error, where=link.masked_url) from error
        raise
    finally:
        connection.remove_termination_listener(line.hear_the_end)
        connection.terminate()


def _snapshot(row: StateRow) -> WorkerStateSnapshot:
    values: dict[str, Any] = {each.name: getattr(row, each.name) for each in fields(row)}
    parsed = {name: json.loads(values[name]) for name in _JSON_COLUMNS}
    return WorkerStateSnapshot(**values | parsed)
