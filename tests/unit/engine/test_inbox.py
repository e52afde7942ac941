"""The inbox of a child: assignments that have not begun."""

from __future__ import annotations

import threading

from horsies.engine.child.runner import Inbox
from horsies.engine.pool.protocol import Assignment
from tests.support.pool import assignment


def _any(_: Assignment) -> bool:
    return True


def test_assignments_are_taken_in_order() -> None:
    inbox, assignments = Inbox(), [assignment("noop") for _ in range(3)]
    inbox.put(assignments[:2])
    inbox.put(assignments[2:])
    assert [inbox.take(matches=_any) for _ in range(4)] == [*assignments, None]


def test_take_returns_nothing_if_the_head_does_not_match() -> None:
    inbox = Inbox()
    inbox.put([assignment("noop"), assignment("nap")])
    assert inbox.take(matches=lambda assigned: assigned.task.task_name == "nap") is None


def test_recalled_assignments_are_never_taken() -> None:
    inbox, assignments = Inbox(), [assignment("noop") for _ in range(3)]
    inbox.put(assignments)
    assert inbox.recall(assignments[1].key) == (assignments[1].key,)
    assert inbox.recall() == (assignments[0].key, assignments[2].key)
    assert inbox.take(matches=_any) is None


def test_put_wakes_a_waiting_thread() -> None:
    inbox, assignments = Inbox(), assignment("noop")
    waiting = threading.Thread(target=inbox.wait)
    waiting.start()
    inbox.put([assignments])
    waiting.join(5)
    assert not waiting.is_alive()


def test_inbox_is_exhausted_when_closed_and_empty() -> None:
    inbox = Inbox()
    inbox.put([assignment("noop")])
    inbox.close()
    assert not inbox.is_exhausted
    inbox.take(matches=_any)
    assert inbox.is_exhausted
    inbox.wait()
