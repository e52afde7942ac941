"""Tasks as if they had been sent, in any queue and with any priority."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.ledger import Ledger

PUT = """
INSERT INTO horsies_tasks (id, task_name, queue_name, priority, args, sent_at, enqueued_at, enqueue_sha)
SELECT gen_random_uuid(), $1, $2, $3, $4::text::jsonb, now(), clock_timestamp(), '' FROM generate_series(1, $5::integer)
RETURNING id::text
"""


async def put(
    ledger: Ledger, task: str, *args: object, queue: str = "default", priority: int = 100, count: int = 1
) -> list[str]:
    """Their ids, oldest first."""
    rows = await ledger.fetch(PUT, task, queue, priority, json.dumps(args), count)
    return [row["id"] for row in rows]


async def statuses(ledger: Ledger, *task_ids: str) -> list[str]:
    return sorted(row["status"] for row in (await ledger.rows(*task_ids)).values())
