"""Rows written past the library, for tests of what is read."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import asyncpg

from horsies.codec.ids import IDS
from horsies.model.task import TASK_TERMINAL_STATES
from tests.support.moments import Moment

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID


async def insert_task(database_url: str, **columns: Any) -> UUID:
    """Store a task with these columns; the others are as in a task that was just sent."""
    now = datetime.now(UTC)
    row: dict[str, Any] = {
        "id": IDS.next(),
        "task_name": "mail.send",
        "sent_at": now,
        "enqueue_sha": "0" * 64,
    } | columns
    if row.get("status") in TASK_TERMINAL_STATES:
        row.setdefault("terminal_at", now)
        if row["status"] != "COMPLETED":
            row.setdefault("error_code", "UNHANDLED_EXCEPTION")
    await insert(database_url, "horsies_tasks", **row)
    return row["id"]


async def insert(database_url: str, table: str, **columns: Any) -> None:
    """Store one row; values that are lists of JSON or objects go into jsonb columns, moments are counted from now."""
    places = ", ".join(f"${number + 1}" for number in range(len(columns)))
    connection = await asyncpg.connect(database_url)
    try:
        for kind in ("json", "jsonb"):
            await connection.set_type_codec(kind, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})"
        await connection.execute(statement, *_written(columns.values()))
    finally:
        await connection.close()


def _written(values: Iterable[object]) -> list[object]:
    now = datetime.now(UTC)
    return [value.instant(now) if isinstance(value, Moment) else value for value in values]
