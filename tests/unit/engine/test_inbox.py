"""What a child has been handed and has not begun."""

from __future__ import annotations

import threading

from horsies.engine.child.runner import Inbox
from horsies.engine.pool.protocol import Assignment
from tests.support.pool import assignment


def _any(_: Assignment) -> bool:
    return True


def test_what_was_put_is_taken_in_order() -> None:
    inbox, given = Inbox(), [assignment("noop") for _ in range(3)]
    inbox.put(given[:2])
    inbox.put(given[2:])
    assert [inbox.take(matches=_any) for _ in range(4)] == [*given, None]


def test_nothing_is_taken_past_one_that_does_not_suit() -> None:
    inbox = Inbox()
    inbox.put([assignment("noop"), assignment("nap")])
    assert inbox.take(matches=lambda each: each.task_name == "nap") is None


def test_what_was_recalled_is_never_taken() -> None:
    inbox, given = Inbox(), [assignment("noop") for _ in range(3)]
    inbox.put(given)
    assert inbox.recall(given[1].key) == (given[1].key,)
    assert inbox.recall() == (given[0].key, given[2].key)
    assert inbox.take(matches=_any) is None


def test_a_waiting_thread_is_woken_by_what_comes() -> None:
    inbox, given = Inbox(), assignment("noop")
    waiting = threading.Thread(target=inbox.wait)
    waiting.start()
    inbox.put([given])
    waiting.join(5)
    assert not waiting.is_alive()


def test_an_inbox_is_over_when_it_is_closed_and_empty() -> None:
    inbox = Inbox()
    inbox.put([assignment("noop")])
    inbox.close()
    assert not inbox.is_exhausted
    inbox.take(matches=_any)
    assert inbox.is_exhausted
    inbox.wait()
