"""Duration estimates and recall times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.model.capacity import ClaimLimits, DurationEstimates, ServedQueue, child_depth, recall_after_ms
from horsies.model.capacity import update_estimate as updated

run_times = st.floats(0, 10_000)


def depth(run_ms: float | None) -> int:
    return child_depth(ServedQueue(name="q", run_ms=run_ms), ClaimLimits())


@given(estimate_ms=run_times, run_ms=run_times)
def test_estimate_moves_towards_the_observed_run_time(estimate_ms: float, run_ms: float) -> None:
    low, high = sorted((estimate_ms, run_ms))
    assert low - 1e-9 <= updated(estimate_ms, run_ms) <= high + 1e-9


def test_estimate_recovers_after_one_slow_run() -> None:
    times = DurationEstimates()
    times.observe(task_name="noop", queue_name="quick", run_ms=500)
    for _ in range(400):
        times.observe(task_name="noop", queue_name="quick", run_ms=0.1)

    assert depth(times.for_queue("quick")) == 256


def test_one_delayed_run_does_not_disable_chunks() -> None:
    assert depth(updated(0.1, 15)) > 16


def test_tasks_and_queues_have_separate_estimates() -> None:
    times = DurationEstimates()
    times.observe(task_name="noop", queue_name="mixed", run_ms=1)
    times.observe(task_name="report", queue_name="mixed", run_ms=33)

    assert (times.for_task("noop"), times.for_task("report"), times.for_queue("mixed")) == (1, 33, 2)
    assert times.for_task("unknown") is None
    assert times.for_queue("unknown") is None


@pytest.mark.parametrize(("estimate_ms", "limit_ms"), [(0, 200), (5, 200), (20, 200), (21, 210), (100, 1_000)])
def test_chunk_is_recalled_after_ten_times_its_estimate(estimate_ms: float, limit_ms: float) -> None:
    assert recall_after_ms(estimate_ms) == limit_ms
