from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from horsies.model.recovery.decision import DecisionKind
from horsies.model.task import TaskAttemptInfo, TaskAttemptOutcome, TaskStatus
from horsies_ops.reads.tasks import HeartbeatRow, TaskDetail, TaskRecord
from horsies_tui.screens.tasks.attempts import attempt_chart, attempt_spans, draw_span, fit_time_scale, time_axis
from tests.support.fake_system.catalog import KINDS
from tests.support.fake_system.system import FakeSystem
from tests.support.rows import make_swept_task
from tests.support.tui import NOON


def _at(seconds: float) -> datetime:
    """Return the instant this many seconds before NOON."""
    return NOON - timedelta(seconds=seconds)


def _running(*, for_s: float, heartbeats_s: tuple[float, ...] = (), threshold_s: float = 300) -> TaskDetail:
    """Return a task running for `for_s` seconds; heartbeats are given as ages, newest first."""
    task = FakeSystem(lambda: NOON).send(KINDS[0], at=_at(for_s))
    last_heartbeat_at = _at(min(heartbeats_s, default=for_s))
    running = replace(
        task,
        status=TaskStatus.RUNNING,
        claimed_at=_at(for_s),
        started_at=_at(for_s),
        claim_token=1,
        last_heartbeat_at=last_heartbeat_at,
    )
    decision = make_swept_task(decision=DecisionKind.LEAVE, effective_threshold=timedelta(seconds=threshold_s))
    return TaskDetail(
        task=running, attempts=(), heartbeats=_heartbeats(heartbeats_s, token=1), events=(), recovery_decision=decision
    )


def _heartbeats(ago_s: tuple[float, ...], *, token: int) -> tuple[HeartbeatRow, ...]:
    return tuple(
        HeartbeatRow(role="runner", sender_id="w", claim_token=token, at=_at(ago), age=timedelta(seconds=ago))
        for ago in ago_s
    )


def _attempt(number: int, *, began_s: float, ended_s: float, outcome: str = "FAILED") -> TaskAttemptInfo:
    return TaskAttemptInfo(
        task_id=str(FakeSystem(lambda: NOON).send(KINDS[0]).id),
        attempt=number,
        claim_token=number,
        outcome=TaskAttemptOutcome(outcome),
        will_retry=True,
        started_at=_at(began_s),
        finished_at=_at(ended_s),
        error_code=None if outcome == "COMPLETED" else "BOOM",
    )


def _draw(detail: TaskDetail, *, width: int = 20) -> list[str]:
    spans = attempt_spans(detail, NOON)
    scale = fit_time_scale(spans, detail, width=width)
    return [draw_span(span, scale) for span in spans]


@pytest.mark.parametrize(
    ("for_s", "heartbeats_s", "cells"),
    [
        pytest.param(150, (0.1, 30, 60, 90, 120), "├───●───●───●───●──▶", id="a heartbeat in every interval"),
        pytest.param(155, (5, 34, 66, 94, 126), "├──●───●───●───●───▶", id="slightly late heartbeats are not silence"),
        pytest.param(300, (180, 210, 240, 270), "├─●─●─●─●┄┄┄┄┄┄┄┄┄┄▶", id="a silence below the limit"),
        pytest.param(480, (360, 390, 420, 450), "├●●●─●┄┄┄┄┄┄┄┄┄┄┄│┄?", id="a silence beyond the limit"),
        pytest.param(3, (), "├──────────────────▶", id="just started"),
    ],
)
def test_running_task_is_drawn_to_scale(for_s: float, heartbeats_s: tuple[float, ...], cells: str) -> None:
    assert _draw(_running(for_s=for_s, heartbeats_s=heartbeats_s)) == [cells]


def test_gap_is_visible_in_compressed_chart() -> None:
    beats = (*range(10, 1800, 60), *range(3000, 5400, 60))
    (cells,) = _draw(_running(for_s=5400, heartbeats_s=tuple(map(float, beats))), width=18)
    assert cells == "├●●●●●●●┄┄┄┄●●●●●▶"


def test_heartbeats_not_loaded_are_not_drawn_as_silence() -> None:
    beats = tuple(float(ago) for ago in range(600, 700))
    (cells,) = _draw(_running(for_s=1400, heartbeats_s=beats), width=14)
    assert cells == "├………………●┄┄┄│┄?"


@pytest.mark.parametrize("width", range(10, 60))
def test_end_is_drawn_for_any_width(width: int) -> None:
    (cells,) = _draw(_running(for_s=1234.567891, heartbeats_s=(3.0, 4.0)), width=width)
    assert cells.endswith("▶")


def test_attempts_share_one_time_scale() -> None:
    detail = _running(for_s=90, heartbeats_s=(1, 30, 60))
    first = _attempt(1, began_s=300, ended_s=180)
    beats = (*detail.heartbeats, *_heartbeats((210, 240, 270), token=1))
    detail = replace(detail, task=replace(detail.task, claim_token=2, attempt_count=1), attempts=(first,))
    detail = replace(
        detail,
        heartbeats=tuple(beat._replace(claim_token=2 if beat.age.total_seconds() < 100 else 1) for beat in beats),
    )
    assert _draw(detail) == ["├─●─●─●─✖           ", "              ├─●─●▶"]


@pytest.mark.parametrize(
    ("for_s", "axis"),
    [
        pytest.param(3, "┬ 12:04:28 ──────┬ 12:04:29 ──────┬ 12:04:30 ─── now", id="seconds"),
        pytest.param(480, "┬ 11:56:31 ──────────┬ 12:00 ────┬ 12:02 ──── now", id="minutes"),
        pytest.param(7400, "┬ 10:01:11 ──────────┬ 11:00 ───────────── now", id="hours"),
    ],
)
def test_time_axis_has_ticks_at_round_times(for_s: float, axis: str) -> None:
    detail = _running(for_s=for_s)
    scale = fit_time_scale(attempt_spans(detail, NOON), detail, width=len(axis))
    assert time_axis(scale, is_live=True) == axis


@pytest.mark.parametrize("width", [60, 80, 200])
def test_chart_fills_the_width(width: int) -> None:
    lines = attempt_chart(_running(for_s=150, heartbeats_s=(0.1, 30, 60)), NOON, width=width)
    assert lines[1].cell_length == width


def test_deleted_heartbeats_are_not_drawn_as_silence() -> None:
    detail = _running(for_s=1)
    done = replace(
        detail.task, status=TaskStatus.COMPLETED, attempt_count=1, last_heartbeat_at=None, finished_at=_at(0)
    )
    attempt = _attempt(1, began_s=300, ended_s=0, outcome="COMPLETED")
    (cells,) = _draw(TaskDetail(task=done, attempts=(attempt,), heartbeats=(), events=()))
    assert cells == "├──────────────────✓"


@pytest.mark.parametrize(
    ("heartbeats_s", "legend"), [((), "● heartbeat  ┄"), ((3,), "● heartbeat  ┄"), ((1, 3), "● heartbeat (2s)  ┄")]
)
def test_legend_names_only_an_interval_that_was_observed(heartbeats_s: tuple[float, ...], legend: str) -> None:
    detail = _running(for_s=5, heartbeats_s=heartbeats_s)
    assert legend in attempt_chart(detail, NOON, width=80)[-1].plain


def test_claimed_task_is_drawn_differently_from_running() -> None:
    detail = _running(for_s=60)
    claimed = replace(detail.task, status=TaskStatus.CLAIMED, started_at=None)
    assert _draw(replace(detail, task=claimed)) == ["├cccccccccccccccccc▶"]


def test_only_last_attempts_are_drawn_and_others_counted() -> None:
    attempts = tuple(
        _attempt(number, began_s=600 - 10 * number, ended_s=595 - 10 * number) for number in range(30, 0, -1)
    )
    detail = _running(for_s=1)
    lines = attempt_chart(replace(detail, attempts=attempts), NOON, width=80)
    assert "19 earlier attempts" in lines[0].plain
    assert len(lines) == 1 + 1 + 12 + 1


def test_pending_task_has_no_chart() -> None:
    task: TaskRecord = FakeSystem(lambda: NOON).send(KINDS[0])
    (line,) = attempt_chart(TaskDetail(task=task, attempts=(), heartbeats=(), events=()), NOON, width=80)
    assert line.plain == "no attempts yet"
