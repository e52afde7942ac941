"""Chunk sizes, duration estimates and recall times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.model.capacity import (
    CHUNK_MS,
    DurationEstimates,
    TaskEstimate,
    chunk_size,
    recall_after_ms,
    split_into_chunks,
    update_estimate,
)

run_times = st.floats(0, 10_000)
task_estimates = st.builds(
    TaskEstimate, run_ms=st.none() | run_times, has_timeout=st.booleans(), is_capped=st.booleans()
)


@pytest.mark.parametrize(
    ("run_ms", "size"), [(None, 1), (0.0, 64), (0.1, 64), (0.3125, 64), (0.5, 40), (1, 20), (19, 1), (20, 1), (900, 1)]
)
def test_chunk_contains_at_most_twenty_milliseconds_of_work(run_ms: float | None, size: int) -> None:
    assert chunk_size(run_ms, max_chunk=64, is_capped=False) == size


def test_capped_queues_and_max_chunk_one_disable_chunks() -> None:
    assert chunk_size(0.1, max_chunk=64, is_capped=True) == 1
    assert chunk_size(0.1, max_chunk=1, is_capped=False) == 1


@given(run_ms=run_times, max_chunk=st.integers(1, 64))
def test_chunk_size_stays_within_time_and_count_limits(run_ms: float, max_chunk: int) -> None:
    size = chunk_size(run_ms, max_chunk=max_chunk, is_capped=False)

    assert 1 <= size <= max_chunk
    assert size == 1 or size * run_ms <= CHUNK_MS * 1.000001


@given(estimate_ms=run_times, run_ms=run_times)
def test_estimate_moves_towards_the_observed_run_time(estimate_ms: float, run_ms: float) -> None:
    low, high = sorted((estimate_ms, run_ms))
    assert low - 1e-9 <= update_estimate(estimate_ms, run_ms) <= high + 1e-9


def test_estimate_recovers_after_one_slow_run() -> None:
    times = DurationEstimates()
    times.observe(task_name="noop", queue_name="quick", run_ms=500)
    for _ in range(400):
        times.observe(task_name="noop", queue_name="quick", run_ms=0.1)

    assert chunk_size(times.for_queue("quick"), max_chunk=64, is_capped=False) == 64


def test_one_delayed_run_does_not_disable_chunks() -> None:
    assert chunk_size(update_estimate(0.1, 15), max_chunk=64, is_capped=False) > 16


def test_tasks_and_queues_have_separate_estimates() -> None:
    times = DurationEstimates()
    times.observe(task_name="noop", queue_name="mixed", run_ms=1)
    times.observe(task_name="report", queue_name="mixed", run_ms=33)

    assert (times.for_task("noop"), times.for_task("report"), times.for_queue("mixed")) == (1, 33, 2)
    assert times.for_task("unknown") is None
    assert times.for_queue("unknown") is None


@pytest.mark.parametrize(
    ("run_times", "sizes"),
    [
        ([], []),
        ([5.0, 5.0, 5.0, 5.0, 5.0], [4, 1]),
        ([15.0, 10.0, 10.0], [1, 2]),
        ([500.0, 1.0], [1, 1]),
        ([None, None], [1, 1]),
        ([1.0, None, 1.0], [1, 1, 1]),
    ],
)
def test_tasks_are_split_into_chunks_by_estimate(run_times: list[float | None], sizes: list[int]) -> None:
    assert split_into_chunks([TaskEstimate(run_ms=run_ms) for run_ms in run_times], max_chunk=64) == sizes


@pytest.mark.parametrize(
    "alone", [TaskEstimate(run_ms=0.0, has_timeout=True), TaskEstimate(run_ms=0.0, is_capped=True)]
)
def test_task_with_timeout_or_cap_gets_its_own_chunk(alone: TaskEstimate) -> None:
    short = TaskEstimate(run_ms=0.0)

    assert split_into_chunks([short, short, alone, short, short], max_chunk=64) == [2, 1, 2]


@given(tasks=st.lists(task_estimates, max_size=200), max_chunk=st.integers(1, 64))
def test_splitting_keeps_all_tasks_and_limits_every_chunk(tasks: list[TaskEstimate], max_chunk: int) -> None:
    sizes = split_into_chunks(tasks, max_chunk=max_chunk)

    assert sum(sizes) == len(tasks)
    rest = iter(tasks)
    for size in sizes:
        chunk = [next(rest) for _ in range(size)]
        assert 1 <= size <= max_chunk
        assert size == 1 or sum(task.share_ms for task in chunk) <= CHUNK_MS * 1.000001


@pytest.mark.parametrize(("estimate_ms", "limit_ms"), [(0, 200), (5, 200), (20, 200), (21, 210), (100, 1_000)])
def test_chunk_is_recalled_after_ten_times_its_estimate(estimate_ms: float, limit_ms: float) -> None:
    assert recall_after_ms(estimate_ms) == limit_ms
