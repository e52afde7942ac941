"""Many moves, few messages."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.model.events import MAX_PAYLOAD_BYTES, ChangeSummary, TaskChange
from horsies.model.task import TRANSITIONS, TaskStatus

DONE = TaskChange(kind="complete", queue="mail", source=TaskStatus.RUNNING, target=TaskStatus.COMPLETED)
FAILED = TaskChange(kind="fail", queue="mail", source=TaskStatus.RUNNING, target=TaskStatus.FAILED)
LONG_AGO, LATER = 0.0, 1e9

moves = st.builds(
    TaskChange,
    kind=st.sampled_from([move.name for move in TRANSITIONS]),
    queue=st.text(max_size=100),
    source=st.sampled_from(TaskStatus),
    target=st.sampled_from(TaskStatus),
)


def ids(count: int) -> list[str]:
    return [f"01890a5d-ac96-774b-bcce-{number:012x}" for number in range(count)]


def told(summary: ChangeSummary, now: float = LATER) -> list[dict[str, Any]]:
    return [json.loads(payload) for payload in summary.drain(now)]


def test_moves_of_one_kind_and_queue_are_one_message() -> None:
    summary = ChangeSummary()
    summary.add(DONE, ["a", "b"])
    summary.add(FAILED, ["c"])
    summary.add(DONE, ["d"])

    assert told(summary) == [
        {"kind": "complete", "queue": "mail", "from": "RUNNING", "to": "COMPLETED", "count": 3, "ids": ["a", "b", "d"]},
        {"kind": "fail", "queue": "mail", "from": "RUNNING", "to": "FAILED", "count": 1, "ids": ["c"]},
    ]


def test_sixteen_ids_are_named_and_all_are_counted() -> None:
    summary = ChangeSummary()
    summary.add(DONE, ids(10))
    summary.add(DONE, ids(500))
    (message,) = told(summary)

    assert (message["count"], len(message["ids"])) == (510, 16)


def test_nothing_is_told_twice_and_nothing_of_nothing() -> None:
    summary = ChangeSummary()
    assert summary.due_at() is None
    assert told(summary) == []

    summary.add(DONE, ids(1))
    assert told(summary, LONG_AGO) != []
    assert told(summary, LATER) == []


def test_the_first_move_is_told_at_once_and_the_next_a_quarter_of_a_second_later() -> None:
    summary = ChangeSummary()
    summary.add(DONE, ids(1))
    assert summary.drain(100.0)

    summary.add(DONE, ids(2))
    assert summary.due_at() == 100.25
    assert not summary.drain(100.24)
    assert [message["count"] for message in told(summary, 100.25)] == [2]


@pytest.mark.parametrize("queue", ["m" * 100, "\N{HORSE}" * 100, '"\\\x00' * 33, "\N{HORSE}" * 600])
def test_a_payload_is_short_whatever_a_queue_is_called(queue: str) -> None:
    summary = ChangeSummary()
    summary.add(TaskChange(kind="claim", queue=queue, source=TaskStatus.PENDING, target=TaskStatus.CLAIMED), ids(100))
    (payload,) = summary.drain(LATER)

    assert len(payload.encode()) <= MAX_PAYLOAD_BYTES
    assert json.loads(payload)["count"] == 100


@given(st.lists(st.tuples(st.floats(0, 0.3), moves, st.integers(1, 40)), max_size=60))
def test_every_move_is_counted_once_and_told_four_times_a_second_at_most(
    arrivals: list[tuple[float, TaskChange, int]],
) -> None:
    summary, now = ChangeSummary(), 0.0
    sent, heard = Counter[str](), Counter[str]()
    told_at: list[float] = []
    for pause_s, moved, count in [*arrivals, (1.0, DONE, 1)]:
        now += pause_s
        summary.add(moved, ids(count))
        sent[moved.kind] += count
        if messages := told(summary, now):
            told_at.append(now)
            for message in messages:
                heard[message["kind"]] += message["count"]

    assert heard == sent
    assert all(later - earlier >= 0.25 - 1e-9 for earlier, later in pairwise(told_at))
