from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from horsies.model.task import TaskStatus
from horsies_ops.reads.stale import RecoveryDecision
from horsies_ops.reads.tasks import AttemptRow, HeartbeatRow, TaskDetail, TaskRecord
from horsies_tui.demo.system import DemoSystem
from horsies_tui.demo.workflows import KINDS
from horsies_tui.screens.tasks.attempts import attempt_chart, attempt_spans, draw_span, fit_time_scale
from horsies_tui.theme import UNICODE
from tests.support.tui import NOON


def _at(seconds: float) -> datetime:
    """So many seconds before noon."""
    return NOON - timedelta(seconds=seconds)


def _running(*, for_s: float, beats_s: tuple[float, ...] = (), limit_s: float = 300) -> TaskDetail:
    """A task that has been running for so long; its beats by how long ago they were, the newest first."""
    task = DemoSystem(lambda: NOON).send(KINDS[0], at=_at(for_s))
    last_heartbeat_at = _at(min(beats_s, default=for_s))
    running = replace(
        task,
        status=TaskStatus.RUNNING,
        claimed_at=_at(for_s),
        started_at=_at(for_s),
        claim_token=1,
        last_heartbeat_at=last_heartbeat_at,
    )
    verdict = RecoveryDecision(decision="leave", reason=None, threshold=timedelta(seconds=limit_s))
    return TaskDetail(
        task=running, attempts=(), heartbeats=_beats(beats_s, token=1), events=(), recovery_decision=verdict
    )


def _beats(ago_s: tuple[float, ...], *, token: int) -> tuple[HeartbeatRow, ...]:
    return tuple(
        HeartbeatRow(role="runner", sender_id="w", claim_token=token, at=_at(ago), age=timedelta(seconds=ago))
        for ago in ago_s
    )


def _attempt(number: int, *, began_s: float, ended_s: float, outcome: str = "FAILED") -> AttemptRow:
    return AttemptRow(
        task_id=DemoSystem(lambda: NOON).send(KINDS[0]).id,
        attempt=number,
        claim_token=number,
        outcome=outcome,
        will_retry=True,
        started_at=_at(began_s),
        finished_at=_at(ended_s),
        error_code=None if outcome == "COMPLETED" else "BOOM",
        error_message=None,
        failed_reason=None,
        worker_id=None,
        worker_hostname=None,
        worker_pid=None,
        worker_process_name=None,
    )


def _picture(detail: TaskDetail, *, most: int = 40) -> list[str]:
    lanes = attempt_spans(detail, NOON)
    scale = fit_time_scale(lanes, detail, max_width=most)
    return [draw_span(lane, scale, UNICODE) for lane in lanes]


@pytest.mark.parametrize(
    ("for_s", "beats_s", "looks"),
    [
        pytest.param(150, (0.1, 30, 60, 90, 120), "├●●●●▶", id="a beat in every interval"),
        pytest.param(155, (5, 34, 66, 94, 126), "├●●●●▶", id="beats that are a little late are no silence"),
        pytest.param(300, (180, 210, 240, 270), "├●●●┄┄┄┄┄┄▶", id="a silence below the limit"),
        pytest.param(480, (360, 390, 420, 450), "├●●●┄┄┄┄┄┄┄┄┄┄│┄?", id="a silence beyond the limit, which is drawn"),
        pytest.param(3, (), "▶", id="just begun"),
    ],
)
def test_a_running_task_is_drawn_to_scale(for_s: float, beats_s: tuple[float, ...], looks: str) -> None:
    assert _picture(_running(for_s=for_s, beats_s=beats_s)) == [looks]


def test_where_an_interval_a_cell_would_not_fit_a_gap_is_still_seen() -> None:
    beats = (*range(10, 1800, 60), *range(3000, 5400, 60))
    (lane,) = _picture(_running(for_s=5400, beats_s=tuple(map(float, beats))), most=18)
    assert lane == "├●●●●●●●┄┄┄┄●●●●●▶"


def test_only_the_newest_beats_are_read_and_what_was_before_is_not_drawn_as_silence() -> None:
    beats = tuple(float(ago) for ago in range(600, 700))
    (lane,) = _picture(_running(for_s=1400, beats_s=beats), most=14)
    assert lane == "├──────●┄┄┄│┄?"


@pytest.mark.parametrize("most", range(10, 60))
def test_the_end_is_drawn_however_the_cells_are_rounded(most: int) -> None:
    (lane,) = _picture(_running(for_s=1234.567891, beats_s=(3.0, 4.0)), most=most)
    assert lane.endswith("▶")


def test_attempts_stand_below_one_another_on_one_scale() -> None:
    detail = _running(for_s=90, beats_s=(1, 30, 60))
    first = _attempt(1, began_s=300, ended_s=180)
    beats = (*detail.heartbeats, *_beats((210, 240, 270), token=1))
    detail = replace(detail, task=replace(detail.task, claim_token=2, attempt_count=1), attempts=(first,))
    detail = replace(
        detail,
        heartbeats=tuple(replace(beat, claim_token=2 if beat.age.total_seconds() < 100 else 1) for beat in beats),
    )
    assert _picture(detail) == ["├●●●✖      ", "       ├●●▶"]


def test_beats_that_were_deleted_are_not_drawn_as_silence() -> None:
    detail = _running(for_s=1)
    done = replace(
        detail.task, status=TaskStatus.COMPLETED, attempt_count=1, last_heartbeat_at=None, finished_at=_at(0)
    )
    attempt = _attempt(1, began_s=300, ended_s=0, outcome="COMPLETED")
    (lane,) = _picture(TaskDetail(task=done, attempts=(attempt,), heartbeats=(), events=()))
    assert lane == "├─────────✓"


def test_a_claim_that_is_not_begun_is_told_from_a_run() -> None:
    detail = _running(for_s=60)
    claimed = replace(detail.task, status=TaskStatus.CLAIMED, started_at=None)
    assert _picture(replace(detail, task=claimed)) == ["├c▶"]


def test_many_attempts_are_cut_to_the_last_and_the_number_of_the_others_is_said() -> None:
    attempts = tuple(
        _attempt(number, began_s=600 - 10 * number, ended_s=595 - 10 * number) for number in range(30, 0, -1)
    )
    detail = _running(for_s=1)
    lines = attempt_chart(replace(detail, attempts=attempts), NOON, width=80, glyphs=UNICODE)
    assert "19 earlier attempts" in lines[0].plain
    assert len(lines) == 1 + 1 + 12 + 1


def test_a_task_that_waits_has_no_strip() -> None:
    task: TaskRecord = DemoSystem(lambda: NOON).send(KINDS[0])
    (line,) = attempt_chart(
        TaskDetail(task=task, attempts=(), heartbeats=(), events=()), NOON, width=80, glyphs=UNICODE
    )
    assert line.plain == "not yet begun"
