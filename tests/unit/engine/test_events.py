"""Worker events and their records in `horsies_events`."""

from __future__ import annotations

import dataclasses
import inspect
import json
from datetime import UTC, datetime

import pytest

from horsies.engine import events
from horsies.engine.events import ChildDied, Event, ListenerRestored, OutageGraceStarted, TaskEvent, TasksRan, to_record
from horsies.model.events import EventKind, EventRecord

EVENTS = [
    event
    for _, event in inspect.getmembers(events, inspect.isclass)
    if issubclass(event, Event) and event not in (Event, TaskEvent)
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_module_docstring_lists_every_event(event: type[Event]) -> None:
    assert event.__name__ in (events.__doc__ or "")


def test_event_kinds_are_unique() -> None:
    kinds = [event.kind for event in EVENTS if event.kind is not None]

    assert len(kinds) == len(set(kinds))


def test_event_kinds_are_lower_case() -> None:
    assert all(kind.value == kind.name.lower() for kind in EventKind)


def test_event_without_kind_has_no_record() -> None:
    assert to_record(TasksRan(worker_id="w", count=1, failed=0, retried=0, within_s=60.0)) is None


def test_fields_without_a_column_are_evidence() -> None:
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


def test_worker_event_has_no_task_columns() -> None:
    record = to_record(ListenerRestored(worker_id="w"))

    assert record is not None
    assert dataclasses.asdict(record) == {
        "kind": "listener_restored",
        "worker_id": "w",
        "task_id": None,
        "workflow_id": None,
        "queue_name": None,
        "claim_token": None,
        "evidence": {},
    }


def test_evidence_is_json_serializable() -> None:
    record = to_record(OutageGraceStarted(worker_id="w", until=datetime(2026, 1, 1, tzinfo=UTC), outage_s=1.5))

    assert record is not None
    assert json.loads(json.dumps(record.evidence)) == {"until": "2026-01-01T00:00:00+00:00", "outage_s": 1.5}
