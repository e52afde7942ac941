from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from horsies.model.task import TaskStatus
from horsies_tui.demo import source
from horsies_tui.demo.system import DemoSystem
from horsies_tui.demo.workflows import KINDS
from horsies_tui.screens.tasks.detail import timeline_entries, wrap_parts
from tests.support.tui import NOON, frozen_system

TEN_MINUTES = timedelta(minutes=10)


def _told(system: DemoSystem, **fields: object) -> list[str]:
    task = system.send(KINDS[0], at=NOON - TEN_MINUTES)
    detail = source.task_detail(replace(task, **fields), NOON)
    return [moment.description for moment in timeline_entries(detail)]


def test_a_task_that_waits_was_sent_and_nothing_else() -> None:
    assert _told(DemoSystem(lambda: NOON)) == ["sent"]


def test_a_task_that_is_to_run_later_says_when() -> None:
    assert _told(DemoSystem(lambda: NOON), enqueued_at=NOON + TEN_MINUTES) == ["sent", "due"]


def test_a_failure_that_the_last_attempt_tells_is_told_once() -> None:
    told = _told(
        DemoSystem(lambda: NOON),
        status=TaskStatus.FAILED,
        started_at=NOON - timedelta(minutes=1),
        finished_at=NOON,
        attempt_count=1,
        error_code="SMTP_TIMEOUT",
    )
    assert told == ["sent", "#1 started", "#1 FAILED SMTP_TIMEOUT"]


def test_an_end_without_an_attempt_is_told() -> None:
    assert _told(DemoSystem(lambda: NOON), status=TaskStatus.CANCELLED, finished_at=NOON) == ["sent", "CANCELLED"]


def test_what_happened_is_told_in_its_order() -> None:
    stale = next(task for task in frozen_system().in_state(TaskStatus.RUNNING) if task.attempt_count == 1)
    told = timeline_entries(source.task_detail(stale, NOON))
    assert [moment.at for moment in told] == sorted(moment.at for moment in told)
    assert [moment.description for moment in told if "started" in moment.description] == ["#1 started", "#2 started"]


@given(texts=st.lists(st.text(alphabet="abc ", min_size=1, max_size=40)), width=st.integers(20, 60))
def test_no_text_is_broken_and_no_line_is_too_long(texts: list[str], width: int) -> None:
    lines = wrap_parts(texts, width)
    assert all(len(line) <= width for line in lines)
    if all(len(text) <= width for text in texts):
        assert "  ".join(lines) == "  ".join(texts)
