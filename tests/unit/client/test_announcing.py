"""Which sends tell workers, and the one message after those that did not."""

from __future__ import annotations

import asyncio
import time

from horsies.client.announcing import IN_A_ROW, PAUSE_S, SPEAK_EVERY_S, Announcements
from horsies.errors import DatabaseUnreachable


class Heard:
    def __init__(self) -> None:
        self.messages: list[list[str]] = []
        self.came = asyncio.Event()

    async def announce(self, queues: list[str]) -> None:
        self.messages.append(queues)
        self.came.set()


def announcing_after_a_row() -> Announcements:
    """So many sends in a row to `mail` that the next may be silent, the last of which has spoken."""
    announcements = Announcements(Heard().announce)
    for _ in range(IN_A_ROW + 1):
        announcements.announced("mail", asked_at=time.monotonic())
    return announcements


async def test_the_first_sends_in_a_row_all_speak() -> None:
    announcements = Announcements(Heard().announce)
    for _ in range(IN_A_ROW):
        assert not announcements.may_be_silent("mail", asked_at=time.monotonic())
        announcements.announced("mail", asked_at=time.monotonic())


async def test_one_of_a_long_row_may_be_silent() -> None:
    assert announcing_after_a_row().may_be_silent("mail", asked_at=time.monotonic())


async def test_a_row_is_of_one_queue() -> None:
    assert not announcing_after_a_row().may_be_silent("sms", asked_at=time.monotonic())


async def test_a_pause_ends_the_row() -> None:
    announcements = announcing_after_a_row()
    after_a_pause = time.monotonic() + PAUSE_S
    assert not announcements.may_be_silent("mail", asked_at=after_a_pause)
    announcements.announced("mail", asked_at=after_a_pause)
    assert not announcements.may_be_silent("mail", asked_at=time.monotonic())


async def test_one_every_few_milliseconds_speaks_however_long_the_row() -> None:
    announcements = announcing_after_a_row()
    spoken_at = time.monotonic()
    announcements.announced("mail", asked_at=spoken_at - 2 * SPEAK_EVERY_S)
    assert not announcements.may_be_silent("mail", asked_at=spoken_at)


async def test_whoever_misses_its_turn_does_not_try_again_at_once_and_is_spoken_for() -> None:
    heard = Heard()
    announcements = Announcements(heard.announce)
    for _ in range(IN_A_ROW + 1):
        announcements.missed_its_turn("mail", asked_at=time.monotonic())
    assert announcements.may_be_silent("mail", asked_at=time.monotonic())
    await heard.came.wait()
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


async def test_a_message_that_cannot_be_sent_is_left_to_the_workers_poll() -> None:
    async def fail(_: list[str]) -> None:
        raise DatabaseUnreachable("gone")

    announcements = Announcements(fail)
    announcements.stored_silently("mail", asked_at=time.monotonic())
    await announcements.close()
    await announcements.close()
