"""The watchdog of a child: when missing acknowledgements of the worker count."""

from __future__ import annotations

import time

from horsies.engine.child.lifetime import ParentWatchdog


def test_child_that_was_paused_gets_time_for_an_ack() -> None:
    watchdog = ParentWatchdog(0, ack_timeout_s=300.0)
    now = time.monotonic()
    watchdog.record_ack()
    watchdog.extend_after_pause(now + 1_000)
    assert not watchdog.is_ack_overdue(now + 1_002)
    assert watchdog.is_ack_overdue(now + 1_004)


def test_extension_never_shortens_the_remaining_time() -> None:
    watchdog = ParentWatchdog(0, ack_timeout_s=300.0)
    now = time.monotonic()
    watchdog.record_ack()
    watchdog.extend_after_pause(now + 3)
    assert not watchdog.is_ack_overdue(now + 299)
    assert watchdog.is_ack_overdue(now + 301)


def test_no_ack_is_overdue_before_the_first_one() -> None:
    assert not ParentWatchdog(0, ack_timeout_s=1.0).is_ack_overdue(time.monotonic() + 1_000)
