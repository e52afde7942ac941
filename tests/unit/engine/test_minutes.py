"""The line a minute of a worker's log."""

from __future__ import annotations

import asyncio
from typing import cast

from horsies.engine.heartbeat import WorkerIdentity
from horsies.engine.reporter import PeriodicSummary, Reporter
from horsies.engine.service import Backoff
from horsies.model.events import Event, TasksRan
from horsies.model.settings import WorkerResilienceConfig
from horsies.model.task import TaskStatus
from horsies.store.operators import EventStore


async def test_what_was_run_is_told_after_the_time_and_then_no_more() -> None:
    reporter = Reporter(cast("EventStore", None), Backoff(WorkerResilienceConfig()))
    told: asyncio.Queue[Event] = asyncio.Queue()
    reporter.add_listener(told.put_nowait)
    minutes = asyncio.create_task(
        PeriodicSummary(reporter, WorkerIdentity.new(), interval_s=0.01).run(stop := asyncio.Event())
    )
    for count in (5, 7):
        reporter.totals.add_finished(TaskStatus.COMPLETED, count)
        event = await asyncio.wait_for(told.get(), 5)
        assert isinstance(event, TasksRan)
        assert (event.count, event.failed) == (count, 0)
    stop.set()
    await minutes
    assert told.empty()
