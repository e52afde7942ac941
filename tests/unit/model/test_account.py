"""What a worker says of its work: little, soon, and nothing twice."""

from __future__ import annotations

from horsies.model.events import AttemptCounts, AttemptTotals
from horsies.model.task import TaskStatus


def _failing(account: AttemptTotals, now: float) -> list[tuple[str, int, str | None, str, str | None]]:
    return [
        (each.task_name, each.count, each.error_code, each.task_id, each.message)
        for each in account.drain_failures(now)
    ]


def test_what_was_run_is_told_since_the_last_time_and_in_all() -> None:
    account = AttemptTotals()
    account.add_finished(TaskStatus.COMPLETED, 1_200)
    account.add_finished(TaskStatus.FAILED, 3)
    assert account.drain() == AttemptCounts(count=1_203, failed=3)
    account.add_finished(TaskStatus.PENDING, 1)
    assert account.drain() == AttemptCounts(count=1, retried=1)
    assert account.total == AttemptCounts(count=1_204, failed=3, retried=1)


def test_of_nothing_nothing_is_told() -> None:
    assert AttemptTotals().drain() is None


def test_a_failure_is_told_at_once_and_more_of_its_name_a_minute_later_with_how_many() -> None:
    account = AttemptTotals()
    account.add_failed("mail", error_code="TIMEOUT", task_id="a", message="slow")
    assert _failing(account, now=0.0) == [("mail", 1, "TIMEOUT", "a", "slow")]
    account.add_failed("mail", error_code="TIMEOUT", task_id="b", message="slow")
    account.add_failed("mail", error_code="REFUSED", task_id="c", message="no")
    account.add_failed("report", error_code=None, task_id="d", message=None)
    assert _failing(account, now=59.0) == [("report", 1, None, "d", None)]
    assert _failing(account, now=60.0) == [("mail", 2, "REFUSED", "c", "no")]
    assert _failing(account, now=200.0) == []
