"""Aggregation of task changes into NOTIFY payloads."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.model.events import ChangeSummary, TaskChange
from horsies.model.task import TaskStatus

DONE = TaskChange(kind="complete", queue="mail", source=TaskStatus.RUNNING, target=TaskStatus.COMPLETED)
FAILED = TaskChange(kind="fail", queue="mail", source=TaskStatus.RUNNING, target=TaskStatus.FAILED)
LONG_AGO, LATER = 0.0, 1e9

changes = st.builds(
    TaskChange,
    kind=st.sampled_from(["claim", "claim and start", "complete", "take over expired lease"]),
    queue=st.text(max_size=100),
    source=st.sampled_from(TaskStatus),
    target=st.sampled_from(TaskStatus),
)


def ids(count: int) -> list[str]:
    return [f"01890a5d-ac96-774b-bcce-{number:012x}" for number in range(count)]


def drained(summary: ChangeSummary, now: float = LATER) -> list[dict[str, Any]]:
    return [json.loads(payload) for payload in summary.drain(now)]


def test_changes_of_one_kind_and_queue_share_a_message() -> None:
    summary = ChangeSummary()
    summary.add(DONE, ["a", "b"])
    summary.add(FAILED, ["c"])
    summary.add(DONE, ["d"])

    assert drained(summary) == [
        {"kind": "complete", "queue": "mail", "from": "RUNNING", "to": "COMPLETED", "count": 3, "ids": ["a", "b", "d"]},
        {"kind": "fail", "queue": "mail", "from": "RUNNING", "to": "FAILED", "count": 1, "ids": ["c"]},
    ]


def test_message_lists_sixteen_ids_and_counts_all() -> None:
    summary = ChangeSummary()
    summary.add(DONE, ids(10))
    summary.add(DONE, ids(500))
    (message,) = drained(summary)

    assert (message["count"], len(message["ids"])) == (510, 16)


def test_changes_are_drained_once() -> None:
    summary = ChangeSummary()
    assert summary.due_at() is None
    assert drained(summary) == []

    summary.add(DONE, ids(1))
    assert drained(summary, LONG_AGO) != []
    assert drained(summary, LATER) == []


def test_messages_are_at_least_a_quarter_second_apart() -> None:
    summary = ChangeSummary()
    summary.add(DONE, ids(1))
    assert summary.drain(100.0)

    summary.add(DONE, ids(2))
    assert summary.due_at() == 100.25
    assert not summary.drain(100.24)
    assert [message["count"] for message in drained(summary, 100.25)] == [2]


@pytest.mark.parametrize("queue", ["m" * 100, "\N{HORSE}" * 100, '"\\\x00' * 33, "\N{HORSE}" * 9_000])
def test_payload_stays_short_for_any_queue_name(queue: str) -> None:
    summary = ChangeSummary()
    summary.add(TaskChange(kind="claim", queue=queue, source=TaskStatus.PENDING, target=TaskStatus.CLAIMED), ids(100))
    (payload,) = summary.drain(LATER)

    assert len(payload.encode()) < 8_000
    assert json.loads(payload)["count"] == 100


@given(st.lists(st.tuples(st.floats(0, 0.3), changes, st.integers(1, 40)), max_size=60))
def test_every_change_is_counted_once_at_the_limited_rate(
    arrivals: list[tuple[float, TaskChange, int]],
) -> None:
    summary, now = ChangeSummary(), 0.0
    added, received = Counter[str](), Counter[str]()
    drained_at: list[float] = []
    for pause_s, change, count in [*arrivals, (1.0, DONE, 1)]:
        now += pause_s
        summary.add(change, ids(count))
        added[change.kind] += count
        if messages := drained(summary, now):
            drained_at.append(now)
            for message in messages:
                received[message["kind"]] += message["count"]

    assert received == added
    assert all(later - earlier >= 0.25 - 1e-9 for earlier, later in pairwise(drained_at))
