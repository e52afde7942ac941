from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from horsies.model.task import TaskStatus
from horsies_ops.reads.tasks import TaskRecord
from horsies_ops.reads.timeline import TimelineEntry, timeline_entries
from horsies_tui.screens.tasks.detail import wrap_parts
from tests.support.fake_system.catalog import KINDS, WORKERS
from tests.support.fake_system.source import FakeSource
from tests.support.fake_system.system import FakeSystem
from tests.support.tui import NOON, frozen_system

TEN_MINUTES = timedelta(minutes=10)


def _entries(system: FakeSystem, task: TaskRecord) -> tuple[TimelineEntry, ...]:
    return timeline_entries(FakeSource(system, read_only=True).task_detail(task))


def _descriptions(system: FakeSystem, task: TaskRecord) -> list[str]:
    return [entry.description for entry in _entries(system, task)]


def test_pending_task_was_only_sent() -> None:
    system = FakeSystem(lambda: NOON)
    assert _descriptions(system, system.send(KINDS[0], at=NOON - TEN_MINUTES)) == ["sent"]


def test_delayed_task_shows_when_due() -> None:
    system = FakeSystem(lambda: NOON)
    assert _descriptions(system, system.send(KINDS[0], enqueued_at=NOON + TEN_MINUTES)) == ["sent", "due"]


def test_failure_of_last_attempt_is_shown_once() -> None:
    system = FakeSystem(lambda: NOON)
    task = system.send(KINDS[0], at=NOON - TEN_MINUTES)
    system.start(task.id, WORKERS[0], NOON - timedelta(minutes=1))
    failed = system.finish(task.id, TaskStatus.FAILED, NOON)
    assert _descriptions(system, failed) == ["sent", "#1 started", "#1 FAILED SMTP_TIMEOUT"]


def test_finish_without_attempt_is_shown() -> None:
    system = FakeSystem(lambda: NOON)
    task = system.send(KINDS[0], at=NOON - TEN_MINUTES)
    assert _descriptions(system, system.move(task.id, TaskStatus.CANCELLED, finished_at=NOON)) == ["sent", "CANCELLED"]


def test_entries_are_in_time_order() -> None:
    system = frozen_system()
    stale = next(task for task in system.in_state(TaskStatus.RUNNING) if task.attempt_count == 1)
    entries = _entries(system, stale)
    assert [entry.at for entry in entries] == sorted(entry.at for entry in entries)
    assert [entry.description for entry in entries if "started" in entry.description] == ["#1 started", "#2 started"]


@given(texts=st.lists(st.text(alphabet="abc ", min_size=1, max_size=40)), width=st.integers(20, 60))
def test_wrapping_breaks_no_part_and_respects_width(texts: list[str], width: int) -> None:
    lines = wrap_parts(texts, width)
    assert all(len(line) <= width for line in lines)
    if all(len(text) <= width for text in texts):
        assert "  ".join(lines) == "  ".join(texts)
