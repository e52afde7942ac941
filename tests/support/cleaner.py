"""A process that cleans without end, to be killed: `python -m tests.support.cleaner URL`."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

from horsies.recovery.retention import Windows, clean
from horsies.store.connection import Link
from horsies.store.database import Database

SECOND = timedelta(seconds=1)
WINDOWS = Windows(heartbeats=SECOND, worker_states=SECOND, terminal_records=SECOND, audit=SECOND, batch_size=4)


async def main(url: str) -> None:
    async with Database(Link(url=url, masked_url=url)) as database:
        sys.stdout.write("cleaning\n")
        sys.stdout.flush()
        while True:
            await clean(database, WINDOWS, budget_s=None)
            await asyncio.sleep(0.01)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
