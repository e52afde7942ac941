"""The one message after a burst of silent sends."""

from __future__ import annotations

import asyncio
import time

from horsies.client.announcing import Announcements
from horsies.errors import DatabaseUnreachable


class Heard:
    def __init__(self) -> None:
        self.messages: list[list[str]] = []
        self.came = asyncio.Event()

    async def announce(self, queues: list[str]) -> None:
        self.messages.append(queues)
        self.came.set()


async def test_silent_sends_are_announced_together_once_a_queue() -> None:
    heard = Heard()
    announcements = Announcements(heard.announce)
    for queue in ("mail", "sms", "mail", "mail"):
        announcements.stored_silently(queue)
    assert heard.messages == []
    await heard.came.wait()
    assert heard.messages == [["mail", "sms"]]


async def test_the_next_burst_is_announced_too() -> None:
    heard = Heard()
    announcements = Announcements(heard.announce)
    for _ in range(2):
        heard.came.clear()
        announcements.stored_silently("mail")
        await heard.came.wait()
    assert heard.messages == [["mail"], ["mail"]]


async def test_a_send_that_left_later_and_was_announced_speaks_for_those_before_it() -> None:
    heard = Heard()
    announcements = Announcements(heard.announce)
    announcements.stored_silently("mail")
    announcements.stored_silently("sms")
    announcements.announced("mail", asked_at=time.monotonic() + 1)
    await announcements.close()
    assert heard.messages == [["sms"]]


async def test_a_send_that_was_under_way_already_speaks_for_itself_alone() -> None:
    heard = Heard()
    announcements = Announcements(heard.announce)
    asked_at = time.monotonic()
    announcements.stored_silently("mail")
    announcements.announced("mail", asked_at=asked_at)
    await announcements.close()
    assert heard.messages == [["mail"]]


async def test_a_message_that_cannot_be_sent_is_left_to_the_workers_poll() -> None:
    async def fail(_: list[str]) -> None:
        raise DatabaseUnreachable("gone")

    announcements = Announcements(fail)
    announcements.stored_silently("mail")
    await announcements.close()
    await announcements.close()
