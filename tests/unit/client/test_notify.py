"""NOTIFY coalescing: which sends notify, and the flush for those that did not."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from horsies import AppConfig, Horsies, TaskError, TaskResult
from horsies.client.delivery import BURST_GAP_S, BURST_LENGTH, NotifyCoalescer
from horsies.client.payload import SendOptions
from horsies.errors import DatabaseUnreachable
from horsies.model.send import SendOutcome, TaskSendPayload
from horsies.store.tasks import EnqueueResult, Notify, TaskStore


def greet(name: str) -> TaskResult[str, TaskError]:
    return TaskResult(ok=name)


GREET = Horsies(AppConfig()).task("greet")(greet)


def payload(queue: str = "mail", **options: Any) -> TaskSendPayload:
    return GREET.payload_builder.build(SendOptions(**options), ("ann",), {})._replace(queue_name=queue)


class FakeTasks:
    """Records how sends notify; each takes half a millisecond of its own clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.modes: list[Notify] = []
        self.notified: list[list[str]] = []
        self.has_notified = asyncio.Event()
        self.error: Exception | None = None
        self.is_contended = False

    async def enqueue(
        self,
        payload: TaskSendPayload,
        *,
        notify: Notify,
        timeout_s: float | None = None,  # noqa: ARG002
    ) -> EnqueueResult:
        self.now += 0.0005
        self.modes.append(notify)
        if self.error is not None:
            raise self.error
        is_notified = notify is not Notify.NEVER and not self.is_contended
        return EnqueueResult(SendOutcome.STORED, payload.task_id, is_notified)

    async def notify_queues(self, queues: list[str]) -> None:
        self.notified.append(queues)
        self.has_notified.set()
        if self.error is not None:
            raise self.error


@pytest.fixture
def tasks() -> FakeTasks:
    return FakeTasks()


@pytest.fixture
def coalescer(tasks: FakeTasks) -> NotifyCoalescer:
    return NotifyCoalescer(cast("TaskStore", tasks), clock=lambda: tasks.now)


async def send_burst(coalescer: NotifyCoalescer, sends: int = BURST_LENGTH + 1) -> None:
    for _ in range(sends):
        await coalescer.enqueue(payload())


async def test_first_sends_of_a_burst_notify(tasks: FakeTasks, coalescer: NotifyCoalescer) -> None:
    await send_burst(coalescer, BURST_LENGTH + 2)
    assert tasks.modes == [Notify.UNLESS_CONTENDED] * BURST_LENGTH + [Notify.NEVER] * 2


async def test_bursts_are_counted_per_queue(tasks: FakeTasks, coalescer: NotifyCoalescer) -> None:
    await send_burst(coalescer)
    await coalescer.enqueue(payload("sms"))
    assert tasks.modes[-1] is Notify.UNLESS_CONTENDED


async def test_a_pause_ends_the_burst(tasks: FakeTasks, coalescer: NotifyCoalescer) -> None:
    await send_burst(coalescer)
    tasks.now += BURST_GAP_S
    await send_burst(coalescer, BURST_LENGTH)
    assert tasks.modes[-BURST_LENGTH:] == [Notify.UNLESS_CONTENDED] * BURST_LENGTH


async def test_waiting_for_a_result_ends_the_burst(tasks: FakeTasks, coalescer: NotifyCoalescer) -> None:
    for _ in range(BURST_LENGTH + 2):
        await coalescer.enqueue(payload())
        coalescer.on_wait()
    assert set(tasks.modes) == {Notify.UNLESS_CONTENDED}


async def test_waiting_for_a_result_flushes_at_once(
    tasks: FakeTasks, coalescer: NotifyCoalescer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horsies.client.delivery.FLUSH_AFTER_S", 3600.0)
    await send_burst(coalescer)
    coalescer.on_wait()
    await asyncio.wait_for(tasks.has_notified.wait(), 10)
    assert tasks.notified == [["mail"]]


async def test_sends_that_notify_need_no_flush(tasks: FakeTasks, coalescer: NotifyCoalescer) -> None:
    await send_burst(coalescer, BURST_LENGTH)
    assert not coalescer.has_deferred
    await coalescer.close()
    assert tasks.notified == []


async def test_contended_send_is_flushed(tasks: FakeTasks, coalescer: NotifyCoalescer) -> None:
    tasks.is_contended = True
    await coalescer.enqueue(payload())
    await tasks.has_notified.wait()
    assert tasks.notified == [["mail"]]


async def test_only_tasks_due_within_a_minute_are_notified(tasks: FakeTasks, coalescer: NotifyCoalescer) -> None:
    await coalescer.enqueue(payload(delay=90))
    await coalescer.enqueue(payload(delay=5))
    assert tasks.modes == [Notify.NEVER, Notify.UNLESS_CONTENDED]
    assert not coalescer.has_deferred


async def test_deferred_sends_share_one_notification(tasks: FakeTasks, coalescer: NotifyCoalescer) -> None:
    tasks.is_contended = True
    for queue in ("mail", "sms", "mail", "mail"):
        await coalescer.enqueue(payload(queue))
    assert tasks.notified == []
    await tasks.has_notified.wait()
    assert tasks.notified == [["mail", "sms"]]


async def test_each_burst_is_flushed(tasks: FakeTasks, coalescer: NotifyCoalescer) -> None:
    for _ in range(2):
        tasks.has_notified.clear()
        await send_burst(coalescer)
        await tasks.has_notified.wait()
    assert tasks.notified == [["mail"], ["mail"]]


@pytest.mark.parametrize("error", [DatabaseUnreachable("gone"), asyncio.CancelledError()])
async def test_failed_deferred_send_is_flushed_as_it_may_be_stored(
    tasks: FakeTasks, coalescer: NotifyCoalescer, error: BaseException
) -> None:
    await send_burst(coalescer, BURST_LENGTH)
    tasks.error = cast("Exception", error)
    with pytest.raises(type(error)):
        await coalescer.enqueue(payload())
    tasks.error = None
    await coalescer.close()
    assert tasks.notified == [["mail"]]


async def test_send_that_ends_during_a_flush_is_flushed_next(tasks: FakeTasks, coalescer: NotifyCoalescer) -> None:
    await send_burst(coalescer)
    await tasks.has_notified.wait()
    await send_burst(coalescer, 1)
    while len(tasks.notified) < 2:
        tasks.has_notified.clear()
        await tasks.has_notified.wait()
    assert tasks.notified == [["mail"], ["mail"]]


class SlowTasks(FakeTasks):
    """Waits in the first notification until it may finish."""

    def __init__(self) -> None:
        super().__init__()
        self.may_finish = asyncio.Event()

    async def notify_queues(self, queues: list[str]) -> None:
        await super().notify_queues(queues)
        if len(self.notified) == 1:
            await self.may_finish.wait()


async def test_close_waits_for_a_running_flush() -> None:
    tasks = SlowTasks()
    coalescer = NotifyCoalescer(cast("TaskStore", tasks), clock=lambda: tasks.now)
    await send_burst(coalescer)
    await tasks.has_notified.wait()
    closing = asyncio.create_task(coalescer.close())
    await asyncio.sleep(0)
    assert not closing.done()
    tasks.may_finish.set()
    await closing
    assert tasks.notified == [["mail"]]


async def test_close_repeats_a_cancelled_flush() -> None:
    tasks = SlowTasks()
    coalescer = NotifyCoalescer(cast("TaskStore", tasks), clock=lambda: tasks.now)
    await send_burst(coalescer)
    await tasks.has_notified.wait()
    (flush_task,) = asyncio.all_tasks() - {asyncio.current_task()}
    flush_task.cancel()
    await coalescer.close()
    assert tasks.notified == [["mail"], ["mail"]]


async def test_send_after_close_schedules_no_flush(coalescer: NotifyCoalescer) -> None:
    await coalescer.close()
    await send_burst(coalescer)
    assert not coalescer.has_deferred


async def test_failed_flush_is_ignored(tasks: FakeTasks, coalescer: NotifyCoalescer) -> None:
    await send_burst(coalescer)
    tasks.error = DatabaseUnreachable("gone")
    await coalescer.close()
    await coalescer.close()
    assert tasks.notified == [["mail"]]
