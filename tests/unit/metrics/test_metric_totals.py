"""Running totals of the Prometheus counters."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from horsies_ops.metrics import BUCKET_BOUNDS_S, MetricTotals, ScheduleTotals, name_labels, schedule_metrics
from horsies_ops.reads.overview import CounterIncrements, DurationBucket, EventCount, FinishedCount
from horsies_ops.reads.schedules import ScheduleRow

NOW = datetime(2026, 3, 4, tzinfo=UTC)


def test_increments_are_added_up() -> None:
    totals = MetricTotals()
    for tasks in (3, 4):
        totals.add(CounterIncrements(until=NOW, finished=(FinishedCount(queue="mail", status="FAILED", tasks=tasks),)))
    assert totals.finished == {("FAILED", "mail"): 7}


def test_recoveries_are_counted_by_decision_and_late_results_separately() -> None:
    totals = MetricTotals()
    recovered = [EventCount(kind="task_recovered", decision=decision, events=2) for decision in ("requeue", "fail")]
    totals.add(
        CounterIncrements(until=NOW, events=(*recovered, EventCount(kind="late_result_refused", decision="", events=5)))
    )
    assert (totals.recovered, totals.late_results) == ({"requeue": 2, "fail": 2}, 5)


def test_histogram_buckets_are_cumulative() -> None:
    totals = MetricTotals()
    buckets = [DurationBucket(index=index, attempts=1, total_s=1.5) for index in (0, 1, len(BUCKET_BOUNDS_S))]
    totals.add(CounterIncrements(until=NOW, durations=tuple(buckets)))
    counts = [count for _, count in totals.buckets()]
    assert counts == [1, 2, *[2] * (len(BUCKET_BOUNDS_S) - 2), 3]
    assert [bound for bound, _ in totals.buckets()][-1] == "+Inf"
    assert totals.duration_sum_s == 4.5


def test_labels_of_names_are_clean_and_bounded() -> None:
    names = ["a\x1bb", "x" * 9_000, *(f"queue{number:04}" for number in range(300))]
    labels = name_labels(names)
    assert labels["a\x1bb"] == "a\\x1bb"
    assert max(map(len, labels.values())) <= 100
    assert len(set(labels.values())) == 201


def test_schedules_above_the_limit_share_the_label_of_the_latest() -> None:
    due = NOW - timedelta(hours=1)
    rows = [
        ScheduleRow(name=f"s{number:04}", next_run_at=due, due_in=-timedelta(seconds=number)) for number in range(300)
    ]
    late = next(iter(schedule_metrics(ScheduleTotals(), rows)))
    values = {sample.labels["schedule"]: sample.value for sample in late.samples}
    assert (len(values), values["s0199"], values["(other)"]) == (201, 199, 299)
