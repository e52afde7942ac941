"""`python -m bench.storm URL SECONDS`: changes tasks and sends 500 notifications per second, in its own process."""

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


async def storm(url: str, seconds: float, *, per_second: int = PER_SECOND) -> int:
    """Send notifications at a constant rate and return their number."""
    sent, started = 0, time.monotonic()
    async with connect(url) as connection:
        while (elapsed_s := time.monotonic() - started) < seconds:
            due = int(elapsed_s * per_second) - sent
            if due > 0:
                await connection.execute(UPDATE_NEWEST)
                await connection.execute(NOTIFY, sent, due)
                sent += due
            await asyncio.sleep(INTERVAL_S)
    return sent


if __name__ == "__main__":
    print(asyncio.run(storm(sys.argv[1], float(sys.argv[2]))))
