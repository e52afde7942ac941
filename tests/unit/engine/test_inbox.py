"""The inbox of a child: assignments that have not begun."""

from __future__ import annotations

import threading

from horsies.engine.child.runner import Inbox
from horsies.engine.pool.protocol import Assignment, RunTasks, TaskRef
from tests.support.pool import assignment


def _any(_: Assignment) -> bool:
    return True


def command(*names: str, chunk: int = 0, first: int = 0) -> RunTasks:
    return RunTasks(chunk, first, tuple(assignment(name) for name in names))


def taken(inbox: Inbox) -> TaskRef | None:
    received = inbox.take(matches=_any)
    return received and received[0]


def test_assignments_are_taken_in_order() -> None:
    inbox = Inbox()
    inbox.put(command("noop", "noop", chunk=7))
    inbox.put(command("noop", chunk=7, first=2))
    assert [taken(inbox) for _ in range(4)] == [TaskRef(7, 0), TaskRef(7, 1), TaskRef(7, 2), None]


def test_take_returns_nothing_if_the_head_does_not_match() -> None:
    inbox = Inbox()
    inbox.put(command("noop", "nap"))
    assert inbox.take(matches=lambda assigned: assigned.task.task_name == "nap") is None


def test_recalled_assignments_are_never_taken() -> None:
    inbox = Inbox()
    inbox.put(command("noop", "noop", "noop"))
    assert inbox.recall(TaskRef(0, 1)) == (TaskRef(0, 1),)
    assert inbox.recall() == (TaskRef(0, 0), TaskRef(0, 2))
    assert taken(inbox) is None


def test_put_wakes_a_waiting_thread() -> None:
    inbox = Inbox()
    waiting = threading.Thread(target=inbox.wait)
    waiting.start()
    inbox.put(command("noop"))
    waiting.join(5)
    assert not waiting.is_alive()


def test_inbox_is_exhausted_when_closed_and_empty() -> None:
    inbox = Inbox()
    inbox.put(command("noop"))
    inbox.close()
    assert not inbox.is_exhausted
    taken(inbox)
    assert inbox.is_exhausted
    inbox.wait()
