"""The due poller with a store that answers by the test's own clock."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

from horsies.engine.dispatcher import DuePoller, Wakeup
from horsies.model.capacity import Fence
from horsies.model.settings import RecoveryConfig
from horsies.store.workers import DueWork, WorkerStore


class DueStore:
    """Says that a task is due from the second question on, and knows no later one."""

    def __init__(self) -> None:
        self.questions = 0
        self.asked = asyncio.Event()

    async def due_work(self, _queues: object) -> DueWork:
        self.questions += 1
        self.asked.set()
        return DueWork(has_due_tasks=self.questions > 1, next_due_s=None, has_outbox_entries=False)


async def test_task_that_became_due_before_a_look_is_claimed_without_a_poll() -> None:
    """A look after a notification may come after the claim that missed the task, and before the next poll."""
    wakeup, store = Wakeup(), DueStore()
    wakeup.open_kinds = cast("Any", frozenset())
    poller = DuePoller(
        wakeup=wakeup,
        worker_store=cast("WorkerStore", store),
        queues=["default"],
        poll_s=3600.0,
        claim_lock=asyncio.Lock(),
        fence=Fence(RecoveryConfig(), now=time.monotonic()),
        workflows_due=asyncio.Event(),
    )
    stop = asyncio.Event()
    running = asyncio.create_task(poller.run(stop))
    await store.asked.wait()
    wakeup.event.clear()
    poller.look_in(0.0)
    async with asyncio.timeout(5):
        await wakeup.event.wait()
    assert wakeup.open_kinds
    stop.set()
    await running
