"""A worker to be killed: it prints the process ids of two busy children and of what their tasks have started."""

from __future__ import annotations

import asyncio

from tests.support.pool import stable


async def main() -> None:
    async with stable(2) as pool:
        for child in pool.free:
            pool.give("leave_someone_behind", to=child)
        await pool.events.until(lambda: len(pool.events.lines) == 2)
        for pid in [child.pid for child in pool.free] + [int(line) for _, _, line in pool.events.lines]:
            print(pid, flush=True)  # noqa: T201
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
