"""The periodic summary in a worker's log."""

from __future__ import annotations

import asyncio
from typing import cast

from horsies.engine.events import Event, TasksRan
from horsies.engine.heartbeat import WorkerIdentity
from horsies.engine.reporter import PeriodicSummary, Reporter
from horsies.engine.service import Backoff
from horsies.model.settings import WorkerResilienceConfig
from horsies.model.task import TaskStatus
from horsies.store.operators import EventStore


async def test_each_interval_reports_the_tasks_since_the_last_one() -> None:
    reporter = Reporter(cast("EventStore", None), Backoff(WorkerResilienceConfig()))
    emitted: asyncio.Queue[Event] = asyncio.Queue()
    reporter.add_listener(emitted.put_nowait)
    summary = asyncio.create_task(
        PeriodicSummary(reporter, WorkerIdentity.new(), interval_s=0.01).run(stop := asyncio.Event())
    )
    for count in (5, 7):
        reporter.totals.add_finished(TaskStatus.COMPLETED, count)
        event = await asyncio.wait_for(emitted.get(), 5)
        assert isinstance(event, TasksRan)
        assert (event.count, event.failed) == (count, 0)
    stop.set()
    await summary
    assert emitted.empty()
