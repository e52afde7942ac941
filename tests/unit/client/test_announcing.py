"""Which sends tell workers, and the one message after those that did not."""

from __future__ import annotations

import asyncio
import time

from horsies.client.notify import BURST_GAP_S, MIN_BURST_LENGTH, NOTIFY_INTERVAL_S, NotifyCoalescer
from horsies.errors import DatabaseUnreachable


class Heard:
    def __init__(self) -> None:
        self.messages: list[list[str]] = []
        self.came = asyncio.Event()

    async def announce(self, queues: list[str]) -> None:
        self.messages.append(queues)
        self.came.set()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Row:
    """Sends to one queue, one directly after the other, that all speak; times are the test's own."""

    def __init__(self, sends: int) -> None:
        self.clock = Clock()
        self.announcements = NotifyCoalescer(Heard().announce, clock=self.clock)
        for _ in range(sends):
            self.speak()

    def speak(self) -> None:
        asked_at, self.clock.now = self.clock.now, self.clock.now + 0.0005
        self.announcements.record_notified("mail", send_started_at=asked_at)

    def may_be_silent(self, queue: str = "mail") -> bool:
        return self.announcements.may_defer(queue, send_started_at=self.clock.now)


def test_the_first_sends_in_a_row_all_speak() -> None:
    row = Row(0)
    for _ in range(MIN_BURST_LENGTH):
        assert not row.may_be_silent()
        row.speak()
    assert row.may_be_silent()


def test_a_row_is_of_one_queue() -> None:
    assert not Row(MIN_BURST_LENGTH).may_be_silent("sms")


def test_a_pause_ends_the_row() -> None:
    row = Row(MIN_BURST_LENGTH)
    row.clock.now += BURST_GAP_S
    assert not row.may_be_silent()
    row.speak()
    assert not row.may_be_silent()


async def test_one_every_few_milliseconds_speaks_however_long_the_row() -> None:
    row = Row(MIN_BURST_LENGTH)
    spoken_at = row.clock.now - 0.0005
    while row.clock.now < spoken_at + NOTIFY_INTERVAL_S:
        assert row.may_be_silent()
        asked_at, row.clock.now = row.clock.now, row.clock.now + 0.001
        row.announcements.record_deferred("mail", send_started_at=asked_at)
    assert not row.may_be_silent()


async def test_whoever_misses_its_turn_does_not_try_again_at_once_and_is_spoken_for() -> None:
    heard, clock = Heard(), Clock()
    announcements = NotifyCoalescer(heard.announce, clock=clock)
    for _ in range(MIN_BURST_LENGTH):
        announcements.record_contended("mail", send_started_at=clock.now)
    assert announcements.may_defer("mail", send_started_at=clock.now)
    await announcements.flush()
    assert heard.messages == [["mail"]]


async def test_silent_sends_are_announced_together_once_a_queue() -> None:
    heard = Heard()
    announcements = NotifyCoalescer(heard.announce)
    for queue in ("mail", "sms", "mail", "mail"):
        announcements.record_deferred(queue, send_started_at=time.monotonic())
    assert heard.messages == []
    await heard.came.wait()
    assert [sorted(queues) for queues in heard.messages] == [["mail", "sms"]]


async def test_the_next_burst_is_announced_too() -> None:
    heard = Heard()
    announcements = NotifyCoalescer(heard.announce)
    for _ in range(2):
        heard.came.clear()
        announcements.record_deferred("mail", send_started_at=time.monotonic())
        await heard.came.wait()
    assert heard.messages == [["mail"], ["mail"]]


async def test_what_was_stored_after_a_message_waits_for_its_own() -> None:
    heard = Heard()
    announcements = NotifyCoalescer(heard.announce)
    announcements.record_deferred("mail", send_started_at=time.monotonic())
    announcements.record_notified("mail", send_started_at=time.monotonic() + 1)
    announcements.record_deferred("mail", send_started_at=time.monotonic())
    await heard.came.wait()
    assert heard.messages == [["mail"]]


async def test_a_send_that_left_later_and_was_announced_speaks_for_those_before_it() -> None:
    heard = Heard()
    announcements = NotifyCoalescer(heard.announce)
    announcements.record_deferred("mail", send_started_at=time.monotonic())
    announcements.record_deferred("sms", send_started_at=time.monotonic())
    announcements.record_notified("mail", send_started_at=time.monotonic() + 1)
    await announcements.close()
    assert heard.messages == [["sms"]]


async def test_a_send_that_was_under_way_already_speaks_for_itself_alone() -> None:
    heard = Heard()
    announcements = NotifyCoalescer(heard.announce)
    asked_at = time.monotonic()
    announcements.record_deferred("mail", send_started_at=asked_at)
    announcements.record_notified("mail", send_started_at=asked_at)
    await announcements.close()
    assert heard.messages == [["mail"]]


async def test_closing_waits_for_the_message_that_is_under_way() -> None:
    has_begun, may_end = asyncio.Event(), asyncio.Event()
    told: list[str] = []

    async def announce(queues: list[str]) -> None:
        has_begun.set()
        await may_end.wait()
        told.extend(queues)

    announcements = NotifyCoalescer(announce)
    announcements.record_deferred("mail", send_started_at=time.monotonic())
    await has_begun.wait()
    closing = asyncio.create_task(announcements.close())
    may_end.set()
    await closing
    assert told == ["mail"]


async def test_a_message_that_is_cut_off_is_said_by_whoever_closes() -> None:
    has_begun = asyncio.Event()
    told: list[list[str]] = []

    async def announce(queues: list[str]) -> None:
        told.append(queues)
        has_begun.set()
        await asyncio.sleep(0 if len(told) > 1 else 60)

    announcements = NotifyCoalescer(announce)
    announcements.record_deferred("mail", send_started_at=time.monotonic())
    await has_begun.wait()
    (telling,) = asyncio.all_tasks() - {asyncio.current_task()}
    telling.cancel()
    await announcements.close()
    assert told == [["mail"], ["mail"]]


async def test_what_is_stored_after_the_close_is_left_to_the_poll() -> None:
    heard = Heard()
    announcements = NotifyCoalescer(heard.announce)
    await announcements.close()
    announcements.record_deferred("mail", send_started_at=time.monotonic())
    assert not announcements.has_deferred


async def test_a_message_that_cannot_be_sent_is_left_to_the_workers_poll() -> None:
    async def fail(_: list[str]) -> None:
        raise DatabaseUnreachable("gone")

    announcements = NotifyCoalescer(fail)
    announcements.record_deferred("mail", send_started_at=time.monotonic())
    await announcements.close()
    await announcements.close()
