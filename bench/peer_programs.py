"""The programs that `bench.peers` measures: `python peer_programs.py PEER fill|work URL TASKS`.

They run in the environment that has the peers and import nothing of horsies. Each task appends 16 bytes to a file, like
`noop_app.noop`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any

BATCH_SIZE = 100
"""Jobs per statement of pgqueuer."""
CONCURRENCY = 10
"""Concurrent jobs per worker of procrastinate."""
CELERY_PROCESSES = 2


def append_run() -> None:
    os.write(_runs_file, b"0123456789abcde\n")


async def pgqueuer(action: str, url: str, tasks: int) -> None:
    import asyncpg
    from pgqueuer.db import AsyncpgDriver
    from pgqueuer.models import Job
    from pgqueuer.qm import QueueManager
    from pgqueuer.queries import Queries

    queries = Queries(AsyncpgDriver(await asyncpg.connect(url)))
    if action == "fill":
        if not await queries.has_table("pgqueuer"):
            await queries.install()
        await queries.enqueue(["noop"] * tasks, [None] * tasks, [0] * tasks)
        return
    manager = QueueManager(queries)

    @manager.entrypoint("noop")
    async def noop(_job: Job) -> None:
        append_run()

    await manager.run(batch_size=BATCH_SIZE)


async def procrastinate(action: str, url: str, tasks: int) -> None:
    from procrastinate import App, PsycopgConnector

    app = App(connector=PsycopgConnector(conninfo=url))

    @app.task(name="noop")
    async def noop() -> None:
        append_run()

    async with app.open_async():
        if action == "work":
            await app.run_worker_async(concurrency=CONCURRENCY)
            return
        if not await app.check_connection_async():
            await app.schema_manager.apply_schema_async()
        await noop.batch_defer_async(*({} for _ in range(tasks)))


async def celery(action: str, url: str, tasks: int) -> None:
    from celery import Celery

    app = Celery("bench", broker=url, backend=url)

    @app.task(name="noop")
    def noop() -> None:
        append_run()

    if action == "fill":
        for _ in range(tasks):
            noop.delay()
    else:
        await asyncio.to_thread(app.worker_main, ["worker", f"--concurrency={CELERY_PROCESSES}", "--loglevel=error"])


PEERS: dict[str, Callable[[str, str, int], Coroutine[Any, Any, None]]] = {
    "pgqueuer": pgqueuer,
    "procrastinate": procrastinate,
    "celery": celery,
}

if __name__ == "__main__":
    _runs_file = os.open(os.environ["BENCH_RUNS_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    peer, action, url, tasks = sys.argv[1:]
    asyncio.run(PEERS[peer](action, url, int(tasks)))
