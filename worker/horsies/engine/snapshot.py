"""Snapshots of a worker's load, for those who look later."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

from horsies.engine.held import Phase
from horsies.engine.service import run_until
from horsies.errors import HorsiesError
from horsies.store.fleet import FleetStore, Snapshot

if TYPE_CHECKING:
    from datetime import datetime

    from horsies.engine.parts import Parts

MB = 1024 * 1024


class Snapshots:
    """Writes one at every interval; one that cannot be written is left out."""

    name = "snapshots"

    def __init__(self, parts: Parts, started_at: datetime) -> None:
        self._parts = parts
        self._fleet = FleetStore(parts.claims.database)  # beats have their connection to themselves
        self._started_at = started_at
        self._process = psutil.Process()

    async def run(self, stop: asyncio.Event) -> None:
        await run_until(stop, self._write_for_ever())

    async def _write_for_ever(self) -> None:
        while True:
            with suppress(HorsiesError):
                await self._fleet.write_snapshot(self._look())
            await asyncio.sleep(self._parts.worker.snapshot_interval_ms / 1000)

    def _look(self) -> Snapshot:
        parts = self._parts
        queues = parts.app.custom_queues or ()
        children = sum(_rss_bytes(child.pid) for child in parts.pool.children)
        return Snapshot(
            run=parts.identity.run_of(parts.worker, parts.app),
            started_at=self._started_at,
            max_claim_batch=parts.worker.max_claim_batch,
            max_claim_per_worker=parts.worker.max_claim_per_worker,
            cluster_wide_cap=parts.app.cluster_wide_cap,
            queue_priorities={queue.name: queue.priority for queue in queues},
            queue_max_concurrency={queue.name: queue.max_concurrency for queue in queues},
            tasks_running=len(parts.desk.all(Phase.HANDED, Phase.STORING)),
            tasks_claimed=len(parts.desk.all(Phase.WAITING)),
            memory_usage_mb=self._process.memory_info().rss / MB,
            memory_percent=self._process.memory_percent(),
            cpu_percent=self._process.cpu_percent(),
            children_memory_mb=children / MB,
        )


def _rss_bytes(pid: int) -> int:
    try:
        return psutil.Process(pid).memory_info().rss
    except psutil.Error:
        return 0
