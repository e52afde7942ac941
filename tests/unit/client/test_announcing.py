"""Which sends tell workers, and the one message after those that did not."""

from __future__ import annotations

import asyncio
import time

from horsies.client.notify import IN_A_ROW, PAUSE_S, SPEAK_EVERY_S, Announcements
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
        self.announcements = Announcements(Heard().announce, clock=self.clock)
        for _ in range(sends):
            self.speak()

    def speak(self) -> None:
        asked_at, self.clock.now = self.clock.now, self.clock.now + 0.0005
        self.announcements.announced("mail", asked_at=asked_at)

    def may_be_silent(self, queue: str = "mail") -> bool:
        return self.announcements.may_be_silent(queue, asked_at=self.clock.now)


def test_the_first_sends_in_a_row_all_speak() -> None:
    row = Row(0)
    for _ in range(IN_A_ROW):
        assert not row.may_be_silent()
        row.speak()
    assert row.may_be_silent()


def test_a_row_is_of_one_queue() -> None:
    assert not Row(IN_A_ROW).may_be_silent("sms")


def test_a_pause_ends_the_row() -> None:
    row = Row(IN_A_ROW)
    row.clock.now += PAUSE_S
    assert not row.may_be_silent()
    row.speak()
    assert not row.may_be_silent()


async def test_one_every_few_milliseconds_speaks_however_long_the_row() -> None:
    row = Row(IN_A_ROW)
    spoken_at = row.clock.now - 0.0005
    while row.clock.now < spoken_at + SPEAK_EVERY_S:
        assert row.may_be_silent()
        asked_at, row.clock.now = row.clock.now, row.clock.now + 0.001
        row.announcements.stored_silently("mail", asked_at=asked_at)
    assert not row.may_be_silent()


async def test_whoever_misses_its_turn_does_not_try_again_at_once_and_is_spoken_for() -> None:
    heard, clock = Heard(), Clock()
    announcements = Announcements(heard.announce, clock=clock)
    for _ in range(IN_A_ROW):
        announcements.missed_its_turn("mail", asked_at=clock.now)
    assert announcements.may_be_silent("mail", asked_at=clock.now)
    await announcements.say_all()
    assert heard.messages == [["mail"]]


async def test_silent_sends_are_announced_together_once_a_queue() -> None:
    heard = Heard()
    announcements = Announcements(heard.announce)
    for queue in ("mail", "sms", "mail", "mail"):
        announcements.stored_silently(queue, asked_at=time.monotonic())
    assert heard.messages == []
    await heard.came.wait()
    assert [sorted(queues) for queues in heard.messages] == [["mail", "sms"]]


async def test_the_next_burst_is_announced_too() -> None:
    heard = Heard()
    announcements = Announcements(heard.announce)
    for _ in range(2):
        heard.came.clear()
        announcements.stored_silently("mail", asked_at=time.monotonic())
        await heard.came.wait()
    assert heard.messages == [["mail"], ["mail"]]


async def test_what_was_stored_after_a_message_waits_for_its_own() -> None:
    heard = Heard()
    announcements = Announcements(heard.announce)
    announcements.stored_silently("mail", asked_at=time.monotonic())
    announcements.announced("mail", asked_at=time.monotonic() + 1)
    announcements.stored_silently("mail", asked_at=time.monotonic())
    await heard.came.wait()
    assert heard.messages == [["mail"]]


async def test_a_send_that_left_later_and_was_announced_speaks_for_those_before_it() -> None:
    heard = Heard()
    announcements = Announcements(heard.announce)
    announcements.stored_silently("mail", asked_at=time.monotonic())
    announcements.stored_silently("sms", asked_at=time.monotonic())
    announcements.announced("mail", asked_at=time.monotonic() + 1)
    await announcements.close()
    assert heard.messages == [["sms"]]


async def test_a_send_that_was_under_way_already_speaks_for_itself_alone() -> None:
    heard = Heard()
    announcements = Announcements(heard.announce)
    asked_at = time.monotonic()
    announcements.stored_silently("mail", asked_at=asked_at)
    announcements.announced("mail", asked_at=asked_at)
    await announcements.close()
    assert heard.messages == [["mail"]]


async def test_closing_waits_for_the_message_that_is_under_way() -> None:
    has_begun, may_end = asyncio.Event(), asyncio.Event()
    told: list[str] = []

    async def announce(queues: list[str]) -> None:
        has_begun.set()
        await may_end.wait()
        told.extend(queues)

    announcements = Announcements(announce)
    announcements.stored_silently("mail", asked_at=time.monotonic())
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

    announcements = Announcements(announce)
    announcements.stored_silently("mail", asked_at=time.monotonic())
    await has_begun.wait()
    (telling,) = asyncio.all_tasks() - {asyncio.current_task()}
    telling.cancel()
    await announcements.close()
    assert told == [["mail"], ["mail"]]


async def test_what_is_stored_after_the_close_is_left_to_the_poll() -> None:
    heard = Heard()
    announcements = Announcements(heard.announce)
    await announcements.close()
    announcements.stored_silently("mail", asked_at=time.monotonic())
    assert not announcements.are_due


async def test_a_message_that_cannot_be_sent_is_left_to_the_workers_poll() -> None:
    async def fail(_: list[str]) -> None:
        raise DatabaseUnreachable("gone")

    announcements = Announcements(fail)
    announcements.stored_silently("mail", asked_at=time.monotonic())
    await announcements.close()
    await announcements.close()
