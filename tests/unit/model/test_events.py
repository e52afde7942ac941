"""What the engine reports, and what of it is written down."""

from __future__ import annotations

import dataclasses
import inspect
import json
from datetime import UTC, datetime

import pytest

from horsies.model import events
from horsies.model.events import (
    ChildDied,
    Event,
    EventKind,
    EventRecord,
    ListenerRestored,
    OutageGraceStarted,
    TaskClaimed,
    TaskEvent,
    to_record,
)

EVENTS = [
    found
    for _, found in inspect.getmembers(events, inspect.isclass)
    if issubclass(found, Event) and found not in (Event, TaskEvent)
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_every_event_is_listed_at_the_top_of_the_page(event: type[Event]) -> None:
    assert event.__name__ in (events.__doc__ or "")


def test_no_two_events_are_written_down_as_the_same_kind() -> None:
    kinds = [event.kind for event in EVENTS if event.kind is not None]

    assert len(kinds) == len(set(kinds))


def test_a_kind_is_written_in_lower_case() -> None:
    assert all(kind.value == kind.name.lower() for kind in EventKind)


def test_what_is_only_reported_leaves_no_row() -> None:
    assert to_record(TaskClaimed(worker_id="w", task_id="t", claim_token=1, queue_name="q")) is None


def test_what_has_no_column_is_evidence() -> None:
    died = ChildDied(
        worker_id="w",
        task_id="t",
        claim_token=3,
        queue_name="q",
        pid=7,
        cause="CHILD_SIGNAL",
        signal=9,
        exit_status=None,
    )

    assert to_record(died) == EventRecord(
        kind=EventKind.CHILD_DIED,
        worker_id="w",
        task_id="t",
        queue_name="q",
        claim_token=3,
        evidence={"pid": 7, "cause": "CHILD_SIGNAL", "signal": 9, "exit_status": None},
    )


def test_an_event_of_a_worker_names_no_task() -> None:
    record = to_record(ListenerRestored(worker_id="w"))

    assert record is not None
    assert dataclasses.asdict(record) == {
        "kind": "listener_restored",
        "worker_id": "w",
        "task_id": None,
        "queue_name": None,
        "claim_token": None,
        "evidence": {},
    }


def test_evidence_can_be_written_as_json() -> None:
    record = to_record(OutageGraceStarted(worker_id="w", until=datetime(2026, 1, 1, tzinfo=UTC), outage_s=1.5))

    assert record is not None
    assert json.loads(json.dumps(record.evidence)) == {"until": "2026-01-01T00:00:00+00:00", "outage_s": 1.5}
