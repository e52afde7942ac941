"""Notifications about changes are untrusted: any role that may connect can send them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from horsies_ops.reads.changes import MAX_COUNT, Topic, parse_event

NOW = datetime(2026, 1, 31, tzinfo=UTC)


@pytest.mark.parametrize(
    "payload",
    [
        "",
        "[]",
        "null",
        '"kind"',
        "{}",
        "[" * 5_000,
        "9" * 5_000,
        '{"kind": "x", "count": 1e999}',
        '{"kind": "x", "ids": 1}',
    ],
)
def test_malformed_message_is_no_change(payload: str) -> None:
    assert parse_event(payload, NOW) is None


@pytest.mark.parametrize(("count", "counted"), [("3", 3), ("-3", 0), ("1e300", MAX_COUNT)])
def test_count_is_clamped(count: str, counted: int) -> None:
    change = parse_event(f'{{"kind": "x", "count": {count}}}', NOW)
    assert change is not None
    assert change.count == counted


@pytest.mark.parametrize(
    ("kind", "topic"),
    [
        ("task_recovered", Topic.STATUS_CHANGE),
        ("overlap_possible", Topic.EVENT),
        ("task_poisoned", Topic.EVENT),
    ],
)
def test_recovered_task_changes_its_status_once(kind: str, topic: Topic) -> None:
    change = parse_event(f'{{"kind": "{kind}", "from": "RUNNING", "to": "PENDING", "count": 1}}', NOW)
    assert change is not None
    assert change.topic is topic
