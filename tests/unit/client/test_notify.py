"""NOTIFY coalescing: which sends notify, and the flush for those that did not."""

from __future__ import annotations

import asyncio
import time

from horsies.client.notify import BURST_GAP_S, MIN_BURST_LENGTH, NOTIFY_INTERVAL_S, NotifyCoalescer
from horsies.errors import DatabaseUnreachable


class FakeNotify:
    """Records the notifications."""

    def __init__(self) -> None:
        self.sent: list[list[str]] = []
        self.was_called = asyncio.Event()

    async def notify_queues(self, queues: list[str]) -> None:
        self.sent.append(queues)
        self.was_called.set()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Burst:
    """Sends to one queue in quick succession, which all notify; uses a fake clock."""

    def __init__(self, sends: int) -> None:
        self.clock = Clock()
        self.coalescer = NotifyCoalescer(FakeNotify().notify_queues, clock=self.clock)
        for _ in range(sends):
            self.notify()

    def notify(self) -> None:
        started_at, self.clock.now = self.clock.now, self.clock.now + 0.0005
        self.coalescer.record_notified("mail", send_started_at=started_at)

    def may_defer(self, queue: str = "mail") -> bool:
        return self.coalescer.may_defer(queue, send_started_at=self.clock.now)


def test_first_sends_of_a_burst_notify() -> None:
    burst = Burst(0)
    for _ in range(MIN_BURST_LENGTH):
        assert not burst.may_defer()
        burst.notify()
    assert burst.may_defer()


def test_bursts_are_counted_per_queue() -> None:
    assert not Burst(MIN_BURST_LENGTH).may_defer("sms")


def test_a_pause_ends_the_burst() -> None:
    burst = Burst(MIN_BURST_LENGTH)
    burst.clock.now += BURST_GAP_S
    assert not burst.may_defer()
    burst.notify()
    assert not burst.may_defer()


async def test_long_burst_notifies_once_per_interval() -> None:
    burst = Burst(MIN_BURST_LENGTH)
    notified_at = burst.clock.now - 0.0005
    while burst.clock.now < notified_at + NOTIFY_INTERVAL_S:
        assert burst.may_defer()
        started_at, burst.clock.now = burst.clock.now, burst.clock.now + 0.001
        burst.coalescer.record_deferred("mail", send_started_at=started_at)
    assert not burst.may_defer()


async def test_contended_send_waits_an_interval_and_is_flushed() -> None:
    notify, clock = FakeNotify(), Clock()
    coalescer = NotifyCoalescer(notify.notify_queues, clock=clock)
    for _ in range(MIN_BURST_LENGTH):
        coalescer.record_contended("mail", send_started_at=clock.now)
    assert coalescer.may_defer("mail", send_started_at=clock.now)
    await coalescer.flush()
    assert notify.sent == [["mail"]]


async def test_deferred_sends_share_one_notification_per_queue() -> None:
    notify = FakeNotify()
    coalescer = NotifyCoalescer(notify.notify_queues)
    for queue in ("mail", "sms", "mail", "mail"):
        coalescer.record_deferred(queue, send_started_at=time.monotonic())
    assert notify.sent == []
    await notify.was_called.wait()
    assert [sorted(queues) for queues in notify.sent] == [["mail", "sms"]]


async def test_each_burst_is_flushed() -> None:
    notify = FakeNotify()
    coalescer = NotifyCoalescer(notify.notify_queues)
    for _ in range(2):
        notify.was_called.clear()
        coalescer.record_deferred("mail", send_started_at=time.monotonic())
        await notify.was_called.wait()
    assert notify.sent == [["mail"], ["mail"]]


async def test_send_deferred_after_a_notification_needs_its_own() -> None:
    notify = FakeNotify()
    coalescer = NotifyCoalescer(notify.notify_queues)
    coalescer.record_deferred("mail", send_started_at=time.monotonic())
    coalescer.record_notified("mail", send_started_at=time.monotonic() + 1)
    coalescer.record_deferred("mail", send_started_at=time.monotonic())
    await notify.was_called.wait()
    assert notify.sent == [["mail"]]


async def test_notification_covers_sends_stored_before_it() -> None:
    notify = FakeNotify()
    coalescer = NotifyCoalescer(notify.notify_queues)
    coalescer.record_deferred("mail", send_started_at=time.monotonic())
    coalescer.record_deferred("sms", send_started_at=time.monotonic())
    coalescer.record_notified("mail", send_started_at=time.monotonic() + 1)
    await coalescer.close()
    assert notify.sent == [["sms"]]


async def test_notification_does_not_cover_concurrent_sends() -> None:
    notify = FakeNotify()
    coalescer = NotifyCoalescer(notify.notify_queues)
    started_at = time.monotonic()
    coalescer.record_deferred("mail", send_started_at=started_at)
    coalescer.record_notified("mail", send_started_at=started_at)
    await coalescer.close()
    assert notify.sent == [["mail"]]


async def test_close_waits_for_a_running_flush() -> None:
    has_started, may_finish = asyncio.Event(), asyncio.Event()
    notified: list[str] = []

    async def notify_queues(queues: list[str]) -> None:
        has_started.set()
        await may_finish.wait()
        notified.extend(queues)

    coalescer = NotifyCoalescer(notify_queues)
    coalescer.record_deferred("mail", send_started_at=time.monotonic())
    await has_started.wait()
    closing = asyncio.create_task(coalescer.close())
    may_finish.set()
    await closing
    assert notified == ["mail"]


async def test_close_repeats_a_cancelled_flush() -> None:
    has_started = asyncio.Event()
    notified: list[list[str]] = []

    async def notify_queues(queues: list[str]) -> None:
        notified.append(queues)
        has_started.set()
        await asyncio.sleep(0 if len(notified) > 1 else 60)

    coalescer = NotifyCoalescer(notify_queues)
    coalescer.record_deferred("mail", send_started_at=time.monotonic())
    await has_started.wait()
    (flush_task,) = asyncio.all_tasks() - {asyncio.current_task()}
    flush_task.cancel()
    await coalescer.close()
    assert notified == [["mail"], ["mail"]]


async def test_send_after_close_schedules_no_flush() -> None:
    notify = FakeNotify()
    coalescer = NotifyCoalescer(notify.notify_queues)
    await coalescer.close()
    coalescer.record_deferred("mail", send_started_at=time.monotonic())
    assert not coalescer.has_deferred


async def test_failed_flush_is_ignored() -> None:
    async def fail(_: list[str]) -> None:
        raise DatabaseUnreachable("gone")

    coalescer = NotifyCoalescer(fail)
    coalescer.record_deferred("mail", send_started_at=time.monotonic())
    await coalescer.close()
    await coalescer.close()
