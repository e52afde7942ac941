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
    """Says that something is due from the second question on, and knows no later task."""

    def __init__(self, *, due_tasks: bool = False, outbox_entries: bool = False) -> None:
        self._has_tasks = due_tasks
        self._has_entries = outbox_entries
        self._questions = 0
        self.asked = asyncio.Event()

    async def due_work(self, _queues: object) -> DueWork:
        self._questions += 1
        self.asked.set()
        is_due = self._questions > 1
        return DueWork(
            has_due_tasks=is_due and self._has_tasks,
            next_due_s=None,
            has_outbox_entries=is_due and self._has_entries,
        )


def due_poller(
    store: DueStore, wakeup: Wakeup, *, poll_s: float = 3600.0, workflows_due: asyncio.Event | None = None
) -> DuePoller:
    return DuePoller(
        wakeup=wakeup,
        worker_store=cast("WorkerStore", store),
        queues=["default"],
        poll_s=poll_s,
        claim_lock=asyncio.Lock(),
        fence=Fence(RecoveryConfig(), now=time.monotonic()),
        workflows_due=workflows_due or asyncio.Event(),
    )


async def test_task_that_became_due_before_a_look_is_claimed_without_a_poll() -> None:
    """A look after a notification may come after the claim that missed the task, and before the next poll."""
    wakeup, store = Wakeup(), DueStore(due_tasks=True)
    wakeup.open_kinds = cast("Any", frozenset())
    poller = due_poller(store, wakeup)
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


async def test_poll_finds_a_due_run_whose_notification_is_lost() -> None:
    workflows_due, stop = asyncio.Event(), asyncio.Event()
    poller = due_poller(DueStore(outbox_entries=True), Wakeup(), poll_s=0.01, workflows_due=workflows_due)
    running = asyncio.create_task(poller.run(stop))
    async with asyncio.timeout(20):
        await workflows_due.wait()
    stop.set()
    await running
