from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from horsies.model.task import TaskStatus
from horsies_tui.demo import reads
from horsies_tui.demo.catalog import KINDS
from horsies_tui.demo.system import DemoSystem
from horsies_tui.screens.tasks.detail import timeline_entries, wrap_parts
from tests.support.tui import NOON, frozen_system

TEN_MINUTES = timedelta(minutes=10)


def _descriptions(system: DemoSystem, **fields: object) -> list[str]:
    task = system.send(KINDS[0], at=NOON - TEN_MINUTES)
    detail = reads.task_detail(replace(task, **fields), NOON)
    return [entry.description for entry in timeline_entries(detail)]


def test_pending_task_was_only_sent() -> None:
    assert _descriptions(DemoSystem(lambda: NOON)) == ["sent"]


def test_delayed_task_shows_when_due() -> None:
    assert _descriptions(DemoSystem(lambda: NOON), enqueued_at=NOON + TEN_MINUTES) == ["sent", "due"]


def test_failure_of_last_attempt_is_shown_once() -> None:
    descriptions = _descriptions(
        DemoSystem(lambda: NOON),
        status=TaskStatus.FAILED,
        started_at=NOON - timedelta(minutes=1),
        finished_at=NOON,
        attempt_count=1,
        error_code="SMTP_TIMEOUT",
    )
    assert descriptions == ["sent", "#1 started", "#1 FAILED SMTP_TIMEOUT"]


def test_finish_without_attempt_is_shown() -> None:
    assert _descriptions(DemoSystem(lambda: NOON), status=TaskStatus.CANCELLED, finished_at=NOON) == [
        "sent",
        "CANCELLED",
    ]


def test_entries_are_in_time_order() -> None:
    stale = next(task for task in frozen_system().in_state(TaskStatus.RUNNING) if task.attempt_count == 1)
    entries = timeline_entries(reads.task_detail(stale, NOON))
    assert [entry.at for entry in entries] == sorted(entry.at for entry in entries)
    assert [entry.description for entry in entries if "started" in entry.description] == ["#1 started", "#2 started"]


@given(texts=st.lists(st.text(alphabet="abc ", min_size=1, max_size=40)), width=st.integers(20, 60))
def test_wrapping_breaks_no_part_and_respects_width(texts: list[str], width: int) -> None:
    lines = wrap_parts(texts, width)
    assert all(len(line) <= width for line in lines)
    if all(len(text) <= width for text in texts):
        assert "  ".join(lines) == "  ".join(texts)
