"""How a child sends the ends of its tasks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

from msgspec import msgpack

from horsies.engine.child.reports import AttemptReporter, OutputCapture, ParentChannel, RunningTasks
from horsies.engine.child.runner import Attempt
from horsies.engine.pool.protocol import MAX_REPORT_BYTES, Assignment, EncodedOutcome, Report, TaskCompleted
from horsies.model.task import TaskAttemptOutcome


class Channel:
    """Records the size and the number of ended tasks of each message."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.ended: list[int] = []

    def send(self, *reports: Report) -> None:
        self.sizes.append(len(msgpack.encode(reports)))
        self.ended.append(sum(isinstance(report, TaskCompleted) for report in reports))


def run_coroutines(channel: Channel, results: list[str]) -> None:
    """Begin one coroutine per result, then end all of them in one iteration of the loop."""
    output: Any = type("Output", (), {"partial_lines": {}})()
    reporter = AttemptReporter(cast("ParentChannel", channel), RunningTasks(), cast("OutputCapture", output))
    assignment = Assignment("", 1, "nap", "default", "[]", "{}", datetime.now(UTC))
    attempts = [Attempt(assignment, "", position=position) for position in range(len(results))]
    for attempt in attempts:
        reporter.begin(attempt)
    for attempt, result in zip(attempts, results, strict=True):
        reporter.end(attempt, EncodedOutcome(outcome=TaskAttemptOutcome.COMPLETED, document=f'"{result}"'))
    reporter.flush()


def test_large_results_of_coroutines_that_end_together_do_not_share_a_message() -> None:
    channel = Channel()
    run_coroutines(channel, ["x" * (MAX_REPORT_BYTES // 2)] * 3)
    assert max(channel.sizes) <= MAX_REPORT_BYTES
    assert sum(channel.ended) == 3


def test_small_results_of_all_coroutines_fit_into_one_message() -> None:
    channel = Channel()
    run_coroutines(channel, ["\N{GRINNING FACE}" * 9_998] * 1_000)
    assert channel.ended[-1] == 1_000
    assert max(channel.sizes) <= MAX_REPORT_BYTES
