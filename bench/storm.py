"""`python -m bench.storm URL`: changes tasks and sends 500 notifications per second, until it is terminated."""

from __future__ import annotations

import asyncio
import sys
import time

from bench.server import connect

PER_SECOND = 500
INTERVAL_S = 0.02

UPDATE_NEWEST = """
    UPDATE horsies_tasks SET priority = 1 + (priority + 1) % 100
     WHERE id IN (SELECT id FROM horsies_tasks ORDER BY id DESC LIMIT 10)
"""
NOTIFY = """
    SELECT pg_notify('horsies_events', json_build_object(
               'kind', 'claim', 'queue', 'mail', 'from', 'PENDING', 'to', 'CLAIMED', 'count', 1, 'number', n)::text)
      FROM generate_series($1::int + 1, $1::int + $2::int) AS n
"""


async def storm(url: str) -> None:
    """Send notifications at a constant rate."""
    sent, started = 0, time.monotonic()
    async with connect(url) as connection:
        while True:
            due = int((time.monotonic() - started) * PER_SECOND) - sent
            if due > 0:
                await connection.execute(UPDATE_NEWEST)
                await connection.execute(NOTIFY, sent, due)
                sent += due
            await asyncio.sleep(INTERVAL_S)


if __name__ == "__main__":
    asyncio.run(storm(sys.argv[1]))
