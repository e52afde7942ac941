"""Which tasks a worker on a terminal shows one by one."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from horsies.engine import events
from horsies.engine.reporter import LINES_PER_S, MAX_BURST_LINES, Reporter, TaskLines
from horsies.engine.service import Backoff
from horsies.model.settings import WorkerResilienceConfig
from horsies.model.task import TaskStatus


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def finished(status: TaskStatus = TaskStatus.COMPLETED) -> events.TaskFinished:
    return events.TaskFinished(
        worker_id="w",
        task_id="0f5a9c06",
        claim_token=1,
        queue_name="default",
        task_name="greet",
        status=status,
        error_code=None,
    )


def failed(count: int) -> events.TasksFailed:
    return events.TasksFailed(
        worker_id="w", task_name="greet", count=count, error_code="BANK_DOWN", task_id="0f5a9c06", message=None
    )


def show(lines: TaskLines, count: int) -> int:
    """Return how many of these tasks are shown one by one."""
    return sum(lines.level_of(finished(), logging.DEBUG) == logging.INFO for _ in range(count))


def test_few_tasks_are_shown_one_by_one() -> None:
    lines = TaskLines(clock=(clock := Clock()))
    for second in range(60):
        clock.now = second
        assert show(lines, LINES_PER_S) == LINES_PER_S
    assert not lines.end_interval(LINES_PER_S * 60, interval_s=60)


def test_many_tasks_are_counted_until_there_are_few() -> None:
    lines = TaskLines(clock=Clock())
    assert show(lines, 1_000) == MAX_BURST_LINES
    assert lines.end_interval(1_000, interval_s=2.0), "a summary names the tasks that were left out"
    assert show(lines, 1) == 0
    assert lines.end_interval(1, interval_s=2.0)
    assert lines.are_on
    assert not lines.end_interval(0, interval_s=2.0)


def test_no_event_is_built_for_single_tasks_while_there_are_many(caplog: pytest.LogCaptureFixture) -> None:
    lines = TaskLines(clock=Clock())
    reporter = Reporter(cast("Any", None), Backoff(WorkerResilienceConfig()), task_lines=lines)
    caplog.set_level(logging.INFO, "horsies.worker")
    assert reporter.is_enabled_for(events.TaskFinished)
    show(lines, MAX_BURST_LINES + 1)
    assert not reporter.is_enabled_for(events.TaskFinished)


def test_failures_are_reported_together_only_if_they_have_no_lines() -> None:
    lines = TaskLines(clock=Clock())
    assert lines.level_of(finished(TaskStatus.FAILED), logging.DEBUG) == logging.WARNING
    assert lines.level_of(failed(1), logging.WARNING) == logging.DEBUG
    show(lines, 1_000)
    assert lines.level_of(failed(7), logging.WARNING) == logging.WARNING
