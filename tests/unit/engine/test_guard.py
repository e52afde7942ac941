"""A child's guard counts silence only while it could have asked."""

from __future__ import annotations

import time

from horsies.engine.child.lifetime import ParentWatchdog


def test_a_child_that_stood_still_itself_gets_time_to_be_answered() -> None:
    guard = ParentWatchdog(0, unanswered_limit_s=300.0)
    now = time.monotonic()
    guard.mark_answered()
    guard._extend_after_pause(now + 1_000)
    assert not guard._is_unanswered(now + 1_002)
    assert guard._is_unanswered(now + 1_004)


def test_an_excuse_never_shortens_the_time_that_is_left() -> None:
    guard = ParentWatchdog(0, unanswered_limit_s=300.0)
    now = time.monotonic()
    guard.mark_answered()
    guard._extend_after_pause(now + 3)
    assert not guard._is_unanswered(now + 299)
    assert guard._is_unanswered(now + 301)


def test_before_the_first_answer_nobody_is_forsaken() -> None:
    assert not ParentWatchdog(0, unanswered_limit_s=1.0)._is_unanswered(time.monotonic() + 1_000)
