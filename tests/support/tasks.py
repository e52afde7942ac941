"""An app on a test's database, and the part of a worker that its tasks need to come to an end."""

from __future__ import annotations

import asyncio
from datetime import date
from typing import TYPE_CHECKING, Any

import asyncpg

from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SETTLE = """
UPDATE horsies_tasks SET status = $2, result = $3::text::jsonb, terminal_at = now() WHERE id = ANY($1::text[]::uuid[])
"""


def double(n: int, note: str = "") -> TaskResult[int, TaskError]:
    return TaskResult(ok=2 * n)


def tomorrow(today: date) -> TaskResult[date, TaskError]:
    return TaskResult(ok=date.fromordinal(today.toordinal() + 1))


def app_on(url: str, *, settings: dict[str, Any] | None = None, **config: Any) -> Horsies:
    """An app with the tasks `double` and `tomorrow`; `settings` are of its broker."""
    app = Horsies(AppConfig(broker=PostgresConfig(database_url=url, **(settings or {})), **config))
    app.task("double")(double)
    app.task("tomorrow")(tomorrow)
    return app


async def settle(
    connection: asyncpg.Connection[Any],
    task_ids: Iterable[str],
    document: str | None = '{"ok": 10}',
    *,
    status: str = "COMPLETED",
    announced: bool = True,
) -> None:
    """Bring tasks to an end as a worker does, with or without telling those who wait."""
    ids = list(task_ids)
    await connection.execute(_SETTLE, ids, status, document)
    if announced:
        for start in range(0, len(ids), 200):
            await connection.execute("SELECT pg_notify('horsies_task_done', $1)", ",".join(ids[start : start + 200]))


async def heard_on(connection: asyncpg.Connection[Any], channel: str) -> asyncio.Queue[str]:
    """What is said on `channel` from now on."""
    heard: asyncio.Queue[str] = asyncio.Queue()

    def keep(_connection: object, _pid: int, _channel: str, payload: object) -> None:
        heard.put_nowait(str(payload))

    await connection.add_listener(channel, keep)
    return heard


def ask(url: str, sql: str, *arguments: object) -> Sequence[tuple[Any, ...]]:
    """Rows of one statement, for tests without an event loop."""

    async def fetch() -> Sequence[tuple[Any, ...]]:
        connection = await asyncpg.connect(url)
        try:
            return [tuple(row) for row in await connection.fetch(sql, *arguments)]
        finally:
            await connection.close()

    return asyncio.run(fetch())


def count_tasks(url: str) -> int:
    return ask(url, "SELECT count(*) FROM horsies_tasks")[0][0]
