"""A child's watchdog counts silence only while it could have asked."""

from __future__ import annotations

import time

from horsies.engine.child.lifetime import ParentWatchdog


def test_a_child_that_stood_still_itself_gets_time_to_be_answered() -> None:
    watchdog = ParentWatchdog(0, ack_timeout_s=300.0)
    now = time.monotonic()
    watchdog.record_ack()
    watchdog.extend_after_pause(now + 1_000)
    assert not watchdog.is_ack_overdue(now + 1_002)
    assert watchdog.is_ack_overdue(now + 1_004)


def test_an_excuse_never_shortens_the_time_that_is_left() -> None:
    watchdog = ParentWatchdog(0, ack_timeout_s=300.0)
    now = time.monotonic()
    watchdog.record_ack()
    watchdog.extend_after_pause(now + 3)
    assert not watchdog.is_ack_overdue(now + 299)
    assert watchdog.is_ack_overdue(now + 301)


def test_before_the_first_answer_nobody_is_forsaken() -> None:
    assert not ParentWatchdog(0, ack_timeout_s=1.0).is_ack_overdue(time.monotonic() + 1_000)
