"""Attempt counts and failures for the periodic log lines."""

from __future__ import annotations

from horsies.engine.events import AttemptCounts, AttemptTotals
from horsies.model.task import TaskStatus


def _drained_failures(totals: AttemptTotals, now: float) -> list[tuple[str, int, str | None, str, str | None]]:
    return [
        (group.task_name, group.count, group.error_code, group.task_id, group.message)
        for group in totals.drain_failures(now)
    ]


def test_counts_since_last_report_and_in_total() -> None:
    totals = AttemptTotals()
    totals.add_finished(TaskStatus.COMPLETED, 1_200)
    totals.add_finished(TaskStatus.FAILED, 3)
    assert totals.drain() == AttemptCounts(count=1_203, failed=3)
    totals.add_finished(TaskStatus.PENDING, 1)
    assert totals.drain() == AttemptCounts(count=1, retried=1)
    assert totals.total == AttemptCounts(count=1_204, failed=3, retried=1)


def test_drain_without_attempts_returns_none() -> None:
    assert AttemptTotals().drain() is None


def test_failures_are_grouped_by_name_and_minute() -> None:
    totals = AttemptTotals()
    totals.add_failed("mail", error_code="TIMEOUT", task_id="a", message="slow")
    assert _drained_failures(totals, now=0.0) == [("mail", 1, "TIMEOUT", "a", "slow")]
    totals.add_failed("mail", error_code="TIMEOUT", task_id="b", message="slow")
    totals.add_failed("mail", error_code="REFUSED", task_id="c", message="no")
    totals.add_failed("report", error_code=None, task_id="d", message=None)
    assert _drained_failures(totals, now=59.0) == [("report", 1, None, "d", None)]
    assert _drained_failures(totals, now=60.0) == [("mail", 2, "REFUSED", "c", "no")]
    assert _drained_failures(totals, now=200.0) == []
