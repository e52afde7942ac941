"""Entries of the event stream: texts, folding, filtering."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies_ops.reads.changes import Change, FeedStatus, Topic
from horsies_ops.reads.events import AuditRow, EventRow
from horsies_ops.reads.filters import FilterFault, parse_filter
from horsies_tui.data.queries import ChangeLog, LoggedChange
from horsies_tui.screens.entries import (
    EntryKind,
    StreamEntry,
    entry_from_audit,
    entry_from_change,
    entry_from_event,
    matches,
    short_log_line,
    target_text,
)
from horsies_tui.screens.events import MAX_LINES_PER_SECOND, fold_entries
from horsies_tui.widgets.row_list import Heading
from tests.support.fake_system.catalog import KINDS
from tests.support.fake_system.system import FakeSystem
from tests.support.tui import NOON

NO_OFFSET = timedelta(0)
SYSTEM = FakeSystem(lambda: NOON)
TASK = SYSTEM.send(KINDS[0])


def _logged_change(number: int = 1, **fields: Any) -> LoggedChange:
    defaults: dict[str, Any] = {
        "topic": Topic.STATUS_CHANGE,
        "kind": "moved",
        "at": NOON,
        "queue": "mail",
        "from_status": "CLAIMED",
        "to_status": "RUNNING",
    }
    return LoggedChange(number, Change(**defaults | fields))


def _entry(number: int, **fields: Any) -> StreamEntry:
    return entry_from_change(_logged_change(number, **fields), {TASK.id: TASK}, offset=NO_OFFSET)


def test_single_task_change_shows_name_and_transition() -> None:
    entry = _entry(1, ids=(TASK.id,))
    assert (entry.subject, entry.summary) == (f"{str(TASK.id)[-8:]} mail.send", "CLAIMED → RUNNING")


def test_several_tasks_show_count_and_name_or_queue() -> None:
    assert _entry(1, count=38, ids=(UUID(int=5), TASK.id)).subject == "×38 mail.send"
    assert _entry(1, count=38).subject == "×38 in mail"


def test_failure_shows_error_code() -> None:
    failed = replace(TASK, status="FAILED", error_code="SMTP_TIMEOUT")
    entry = entry_from_change(_logged_change(to_status="FAILED", ids=(TASK.id,)), {TASK.id: failed}, offset=NO_OFFSET)
    assert entry.note == "SMTP_TIMEOUT"


def test_times_use_the_database_clock() -> None:
    assert entry_from_change(_logged_change(), {}, offset=timedelta(hours=1)).at == NOON + timedelta(hours=1)


def test_lost_feed_shows_first_line_of_reason() -> None:
    lost = Change(topic=Topic.FEED, kind=FeedStatus.LOST, at=NOON, detail="server closed the connection\nhint: wait")
    entry = entry_from_change(LoggedChange(1, lost), {}, offset=NO_OFFSET)
    assert (entry.summary, entry.note) == ("connection lost", "server closed the connection")


def test_recorded_events_and_operator_actions_become_entries() -> None:
    event = EventRow(
        id=7,
        at=NOON,
        kind="worker_lost",
        task_id=None,
        workflow_id=None,
        worker_id=UUID(int=0xA7),
        claim_token=None,
        queue=None,
        evidence_json='{"silence_s": 301, "sweeper": null}',
    )
    action = AuditRow(
        id=8,
        at=NOON,
        actor="ana",
        host="h",
        action="retry",
        reason="smtp is back",
        filter_json=None,
        dry_run=False,
        matched=41,
        affected=41,
        skipped=0,
        via="tui",
        task_ids=(),
    )
    assert short_log_line(action) == '12:04:31 ana      retry    ×41 "smtp is back"'
    lost, done = entry_from_event(event, {}), entry_from_audit(action)
    assert (lost.kind, lost.subject, lost.summary, lost.note) == (
        EntryKind.WORKER,
        "000000a7",
        "worker lost",
        "silence_s=301",
    )
    assert lost.headline == "silent for 5m01s"
    assert (done.kind, done.subject, done.summary) == (EntryKind.OPERATOR, "ana retry", "41 changed, 0 skipped")


def _recovered(evidence: Mapping[str, object]) -> EventRow:
    """The event of a recovered task."""
    return EventRow(
        id=7,
        at=NOON,
        kind="task_recovered",
        task_id=TASK.id,
        workflow_id=None,
        worker_id=None,
        claim_token=2,
        queue="mail",
        evidence_json=json.dumps(evidence),
    )


@pytest.mark.parametrize(("silence_s", "text"), [(12.4, "12s"), (-5, "0s"), (1e300, "11574d"), (10**400, "11574d")])
def test_recovery_headline_is_decision_and_silence(silence_s: float, text: str) -> None:
    evidence = {"owner": str(UUID(int=7)), "decision": "retry", "code": None, "silence_s": silence_s}
    assert entry_from_event(_recovered(evidence), {}).headline == f"retry, silent for {text}"


def test_worker_ids_come_after_the_decision_and_its_reason() -> None:
    evidence = {"code": "WORKER_CRASHED", "owner": "w-1", "reason": "OWNER_LOST", "sweeper": "w-2", "decision": "fail"}
    note = "code=WORKER_CRASHED reason=OWNER_LOST decision=fail owner=w-1 sweeper=w-2"
    assert entry_from_event(_recovered(evidence), {}).note == note


def test_action_on_an_empty_value_has_a_line() -> None:
    action = AuditRow(
        id=1,
        at=NOON,
        actor="ana",
        host="h",
        action="retry",
        reason=None,
        filter_json='{"filter": [{"value": "", "is_wanted": true}]}',
        dry_run=False,
        matched=41,
        affected=41,
        skipped=0,
        via="tui",
        task_ids=(),
    )
    assert short_log_line(action) == "12:04:31 ana      retry    ×41 "


def test_similar_entries_of_one_second_fold_with_stable_key() -> None:
    first, second = _entry(1), _entry(2, count=4)
    (before,), (after,) = fold_entries([first]), fold_entries([second, first])
    assert isinstance(before, StreamEntry)
    assert isinstance(after, StreamEntry)
    assert (after.key, after.count, after.subject) == (before.key, 5, "×5 in mail")


def test_large_burst_is_cut_and_counted() -> None:
    lines = fold_entries(_entry(number, queue=f"queue {number}", count=10) for number in range(30))
    assert len(lines) == MAX_LINES_PER_SECOND + 1
    assert lines[-1] == Heading("12:04:31  180 more folded, z unfolds")


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["mail", "default"]), st.integers(1, 50)), max_size=60))
def test_folding_keeps_counts_and_order(changes: list[tuple[int, str, int]]) -> None:
    changes.sort(reverse=True)
    entries = [
        _entry(number, at=NOON + timedelta(seconds=second), queue=queue, count=count)
        for number, (second, queue, count) in enumerate(changes)
    ]
    lines = [line for line in fold_entries(entries) if isinstance(line, StreamEntry)]
    assert sum(line.count for line in lines) == sum(count for *_, count in changes)
    assert [line.at for line in lines] == sorted((line.at for line in lines), reverse=True)


@pytest.mark.parametrize(
    ("text", "is_match"),
    [
        ("", True),
        ("queue:mail", True),
        ("queue:default", False),
        ("-queue:mail", False),
        ("status:running", True),
        ("status:failed", False),
        ("name:mail.*", True),
        ("err:Timeout*", False),
        ("age<1h", True),
        ("hb>60s", False),
    ],
)
def test_task_filter_applies_to_entries(text: str, *, is_match: bool) -> None:
    task_filter = parse_filter(text)
    assert not isinstance(task_filter, FilterFault)
    assert matches(_entry(1, ids=(TASK.id,)), task_filter, NOON) is is_match


def test_change_log_keeps_newest_and_ignores_heartbeats() -> None:
    log = ChangeLog(max_changes=2)
    for number in range(3):
        log.append(_logged_change(count=number + 1).change)
    log.append(Change(topic=Topic.HEARTBEATS, kind="heartbeats", at=NOON))
    assert [(logged.number, logged.change.count) for logged in log.changes] == [(2, 2), (3, 3)]


def test_rate_counts_evicted_changes_of_last_minute() -> None:
    log = ChangeLog(max_changes=1)
    for ago_s in (90, 30, 5):
        log.append(_logged_change(count=10, at=NOON - timedelta(seconds=ago_s)).change)
    assert log.per_minute(NOON) == 20
    assert log.per_minute(NOON + timedelta(minutes=1)) == 0


@pytest.mark.parametrize(("condition", "text"), [("true", "mail.send due later"), ("false", "mail.send not due later")])
def test_condition_without_a_value_is_named(condition: str, text: str) -> None:
    terms = f'{{"filter": [{{"names": ["mail.send"], "due_later": {condition}}}]}}'
    action = AuditRow(
        id=1,
        at=NOON,
        actor="ana",
        host="h",
        action="cancel",
        reason=None,
        filter_json=terms,
        dry_run=False,
        matched=1,
        affected=1,
        skipped=0,
        via="tui",
        task_ids=(),
    )
    assert target_text(action) == text
