"""What the server did to answer a statement."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import asyncpg


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
