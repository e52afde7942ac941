"""`python -m bench.storm URL SECONDS`: tasks that move and say so, 500 times a second, in a process of its own."""

from __future__ import annotations

import asyncio
import sys
import time

from bench.server import connected

PER_SECOND = 500
EVERY_S = 0.02

# Which of them move does not matter; every tenth of a second some others of the newest.
MOVE = """
    UPDATE horsies_tasks SET priority = 1 + (priority + 1) % 100
     WHERE id IN (SELECT id FROM horsies_tasks ORDER BY id DESC LIMIT 10)
"""
TELL = """
    SELECT pg_notify('horsies_events', json_build_object(
               'kind', 'claim', 'queue', 'mail', 'from', 'PENDING', 'to', 'CLAIMED', 'count', 1, 'number', n)::text)
      FROM generate_series($1::int + 1, $1::int + $2::int) AS n
"""


async def storm(url: str, seconds: float, *, per_second: int = PER_SECOND) -> int:
    """How many notifications were sent; they come as fast as that whatever each round took."""
    sent, began = 0, time.monotonic()
    async with connected(url) as connection:
        while (passed := time.monotonic() - began) < seconds:
            due = int(passed * per_second) - sent
            if due > 0:
                await connection.execute(MOVE)
                await connection.execute(TELL, sent, due)
                sent += due
            await asyncio.sleep(EVERY_S)
    return sent


if __name__ == "__main__":
    print(asyncio.run(storm(sys.argv[1], float(sys.argv[2]))))
