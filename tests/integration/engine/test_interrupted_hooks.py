"""`on_interrupted` hooks for tasks interrupted on their own worker: called once, after the outcome is stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from horsies import Horsies, RecoveryContext, RecoveryReason, TaskStatus
from horsies.engine import events
from tests.support.ledger import Ledger
from tests.support.workers import worker_in_process


class RecordingHook:
    """A hook that queues its contexts for the test."""

    def __init__(self) -> None:
        self.contexts: asyncio.Queue[RecoveryContext] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def __call__(self, context: RecoveryContext) -> None:
        self._loop.call_soon_threadsafe(self.contexts.put_nowait, context)

    async def next(self) -> RecoveryContext:
        async with asyncio.timeout(10):
            return await self.contexts.get()


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    async with Ledger.open(database_url) as ledger:
        yield ledger


@pytest.fixture
async def hook() -> RecordingHook:
    return RecordingHook()


async def test_hook_is_called_after_a_child_died(ledger: Ledger, database_url: str, hook: RecordingHook) -> None:
    async with worker_in_process(database_url, processes=1, register=lambda app: app.on_interrupted(hook)) as worker:
        task_id = await worker.send("kill_self")
        context = await hook.next()
        assert (context.task.task_id, context.task.status) == (task_id, TaskStatus.FAILED)
        assert (context.reason, context.dry_run) == (RecoveryReason.CHILD_DIED, False)
        assert context.previous_worker_id == context.recovering_worker_id == worker.worker_id
        await ledger.until_terminal(await worker.send("work"))
    assert hook.contexts.empty()


async def test_hook_is_called_before_the_worker_stops(ledger: Ledger, database_url: str, hook: RecordingHook) -> None:
    async with worker_in_process(
        database_url, processes=1, grace_s=0, register=lambda app: app.on_interrupted(hook)
    ) as worker:
        task_id = await worker.send("work_again", 30)
        await ledger.until_started(task_id)
        await worker.stop()
        context = hook.contexts.get_nowait()
        assert (context.task.task_id, context.task.status) == (task_id, TaskStatus.PENDING)
        assert (context.reason, context.task.retry_count) == (RecoveryReason.SHUTDOWN, 1)


async def test_failures_and_timeouts_are_not_interruptions(
    ledger: Ledger, database_url: str, hook: RecordingHook
) -> None:
    async with worker_in_process(database_url, processes=1, register=lambda app: app.on_interrupted(hook)) as worker:
        sent = [await worker.send("raise_error", "bang"), await worker.send("work_briefly", 10)]
        await ledger.until_terminal(*sent)
    assert hook.contexts.empty()


async def test_failed_hook_is_reported_and_the_worker_continues(ledger: Ledger, database_url: str) -> None:
    def register(app: Horsies) -> None:
        @app.on_interrupted
        async def fail(_: RecoveryContext) -> None:  # pyright: ignore[reportUnusedFunction]
            raise LookupError("not found")

    async with worker_in_process(database_url, processes=1, register=register) as worker:
        task_id = await worker.send("kill_self")
        failed = await worker.wait_for_event(events.HookFailed)
        assert (failed.task_id, failed.error) == (task_id, "LookupError: not found")
        await ledger.until(lambda: ledger.events("hook_failed"))
        await ledger.until_terminal(await worker.send("work"))
