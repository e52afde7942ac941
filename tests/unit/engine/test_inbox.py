"""The inbox of a child: assignments that have not begun."""

from __future__ import annotations

import threading

from horsies.engine.child.runner import Inbox
from horsies.engine.pool.protocol import RunTasks, TaskRef
from tests.support.pool import assignment


def command(*names: str, chunk: int = 0, first: int = 0) -> RunTasks:
    return RunTasks(chunk, first, "a worker", tuple(assignment(name) for name in names))


def taken(inbox: Inbox) -> TaskRef | None:
    attempt = inbox.head()
    return TaskRef(attempt.chunk, attempt.position) if attempt and inbox.take(attempt) else None


def test_assignments_are_taken_in_order() -> None:
    inbox = Inbox()
    inbox.put(command("noop", "noop", chunk=7))
    inbox.put(command("noop", chunk=7, first=2))
    assert [taken(inbox) for _ in range(4)] == [TaskRef(7, 0), TaskRef(7, 1), TaskRef(7, 2), None]


def test_attempt_recalled_after_a_look_at_it_is_not_taken() -> None:
    inbox = Inbox()
    inbox.put(command("noop"))
    attempt = inbox.head()
    assert attempt is not None
    inbox.recall()
    assert not inbox.take(attempt)


def test_each_attempt_is_taken_or_recalled_by_one_of_two_threads() -> None:
    inbox, recalled = Inbox(), list[TaskRef]()
    recaller = threading.Thread(target=lambda: [recalled.extend(inbox.recall()) for _ in range(300)])
    took = list[TaskRef]()
    recaller.start()
    for chunk in range(300):
        inbox.put(command(*["noop"] * 8, chunk=chunk))
        while (ref := taken(inbox)) is not None:
            took.append(ref)
    recaller.join()
    recalled.extend(inbox.recall())
    assert sorted([*took, *recalled]) == [TaskRef(chunk, position) for chunk in range(300) for position in range(8)]


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
