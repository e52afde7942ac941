"""The stream of events as lines: what each says, what is folded, and what a filter leaves."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies_ops.reads.events import AuditRow, EventRow
from horsies_ops.reads.filters import FilterFault, parse_filter
from horsies_ops.reads.live import Change, FeedStatus, Topic
from horsies_tui.data.queries import ChangeLog, LoggedChange
from horsies_tui.demo.system import DemoSystem
from horsies_tui.demo.workflows import KINDS
from horsies_tui.screens.entries import (
    EntryKind,
    StreamEntry,
    entry_from_audit,
    entry_from_change,
    entry_from_event,
    matches,
)
from horsies_tui.screens.events import MAX_LINES_PER_SECOND, fold_entries
from horsies_tui.widgets.row_list import Heading
from tests.support.tui import NOON

NOWHERE = timedelta(0)
SYSTEM = DemoSystem(lambda: NOON)
TASK = SYSTEM.send(KINDS[0])


def _moved(number: int = 1, **fields: Any) -> LoggedChange:
    usual: dict[str, Any] = {
        "topic": Topic.STATUS_CHANGE,
        "kind": "moved",
        "at": NOON,
        "queue": "mail",
        "from_status": "CLAIMED",
        "to_status": "RUNNING",
    }
    return LoggedChange(number, Change(**usual | fields))


def _entry(number: int, **fields: Any) -> StreamEntry:
    return entry_from_change(_moved(number, **fields), {TASK.id: TASK}, offset=NOWHERE)


def test_a_single_task_is_named_and_its_move_said() -> None:
    entry = _entry(1, ids=(TASK.id,))
    assert (entry.subject, entry.what) == (f"{str(TASK.id)[-8:]} mail.send", "CLAIMED → RUNNING")


def test_several_are_counted_under_their_queue_until_their_name_is_known() -> None:
    assert _entry(1, count=38, ids=(UUID(int=5), TASK.id)).subject == "×38 mail.send"
    assert _entry(1, count=38).subject == "×38 mail"


def test_a_failure_says_its_code() -> None:
    failed = replace(TASK, status="FAILED", error_code="SMTP_TIMEOUT")
    entry = entry_from_change(_moved(to_status="FAILED", ids=(TASK.id,)), {TASK.id: failed}, offset=NOWHERE)
    assert entry.note == "SMTP_TIMEOUT"


def test_times_are_those_of_the_database() -> None:
    assert entry_from_change(_moved(), {}, offset=timedelta(hours=1)).at == NOON + timedelta(hours=1)


def test_a_lost_feed_says_why_in_one_line() -> None:
    lost = Change(topic=Topic.FEED, kind=FeedStatus.LOST, at=NOON, detail="server closed the connection\nhint: wait")
    entry = entry_from_change(LoggedChange(1, lost), {}, offset=NOWHERE)
    assert (entry.what, entry.note) == ("connection lost", "server closed the connection")


def test_events_and_actions_are_lines_too() -> None:
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
    lost, done = entry_from_event(event, {}), entry_from_audit(action)
    assert (lost.kind, lost.subject, lost.what, lost.note) == (
        EntryKind.WORKER,
        "000000a7",
        "worker_lost",
        "silence_s=301",
    )
    assert (done.kind, done.subject, done.what) == (EntryKind.OPERATOR, "ana retry", "41 changed, 0 skipped")


def test_what_says_the_same_within_a_second_is_one_line_that_keeps_its_key() -> None:
    first, second = _entry(1), _entry(2, count=4)
    (before,), (after,) = fold_entries([first]), fold_entries([second, first])
    assert isinstance(before, StreamEntry)
    assert isinstance(after, StreamEntry)
    assert (after.key, after.count, after.subject) == (before.key, 5, "×5 mail")


def test_a_burst_of_many_kinds_leaves_a_few_lines_and_says_how_much_is_folded() -> None:
    lines = fold_entries(_entry(number, queue=f"queue {number}", count=10) for number in range(30))
    assert len(lines) == MAX_LINES_PER_SECOND + 1
    assert lines[-1] == Heading("12:04:31  180 more folded, z unfolds")


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["mail", "default"]), st.integers(1, 50)), max_size=60))
def test_folding_loses_nothing_and_keeps_the_order(moves: list[tuple[int, str, int]]) -> None:
    moves.sort(reverse=True)
    entries = [
        _entry(number, at=NOON + timedelta(seconds=second), queue=queue, count=count)
        for number, (second, queue, count) in enumerate(moves)
    ]
    lines = [line for line in fold_entries(entries) if isinstance(line, StreamEntry)]
    assert sum(line.count for line in lines) == sum(count for *_, count in moves)
    assert [line.at for line in lines] == sorted((line.at for line in lines), reverse=True)


@pytest.mark.parametrize(
    ("text", "fits"),
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
def test_a_filter_of_tasks_narrows_events_down(text: str, *, fits: bool) -> None:
    wanted = parse_filter(text)
    assert not isinstance(wanted, FilterFault)
    assert matches(_entry(1, ids=(TASK.id,)), wanted, NOON) is fits


def test_the_tape_keeps_the_newest_and_leaves_out_beats() -> None:
    tape = ChangeLog(max_changes=2)
    for number in range(3):
        tape.append(_moved(count=number + 1).change)
    tape.append(Change(topic=Topic.HEARTBEATS, kind="heartbeats", at=NOON))
    assert [(each.number, each.change.count) for each in tape.changes] == [(2, 2), (3, 3)]


def test_the_rate_counts_what_is_no_longer_kept_and_forgets_what_is_older_than_a_minute() -> None:
    tape = ChangeLog(max_changes=1)
    for ago_s in (90, 30, 5):
        tape.append(_moved(count=10, at=NOON - timedelta(seconds=ago_s)).change)
    assert tape.per_minute(NOON) == 20
    assert tape.per_minute(NOON + timedelta(minutes=1)) == 0
