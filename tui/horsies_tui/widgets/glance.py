"""The system at one glance: how many tasks are where, how fast they go, and which queue is behind that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from textual.content import Content
from textual.widgets import Static

from horsies.model.task import TaskStatus
from horsies_tui.fleet import placed
from horsies_tui.format import age, fit, number, safe, took
from horsies_tui.glyphs import bar, spark

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta

    from horsies_ops.reads.counts import Count
    from horsies_ops.reads.overview import Overview
    from horsies_ops.reads.throughput import QueueBucket, Throughput
    from horsies_ops.reads.workers import WorkerRow
    from horsies_tui.glyphs import Glyphs

SLOTS: Final = 16
MOST_QUEUES: Final = 7


class TaskCounts(Static):
    """How many there are of each state, and the age that matters in it."""

    def show(self, seen: Overview, *, now: datetime, glyphs: Glyphs) -> None:
        self.border_title = " Tasks "
        passed = now - seen.at
        counts = seen.counts
        completed = counts[TaskStatus.COMPLETED]
        rising = f"{glyphs.warn} +{_number(seen.failed_last_hour)} in 1h" if seen.failed_last_hour.number else ""
        lines = [
            _line("PENDING", _number(counts[TaskStatus.PENDING]), _aged("oldest", seen.oldest_due, passed)),
            _line("  due later", number(seen.delayed), _aged("next in", seen.next_due, -passed)),
            _line("CLAIMED", _number(counts[TaskStatus.CLAIMED]), _aged("oldest", seen.oldest_claimed, passed)),
            _line("RUNNING", _number(counts[TaskStatus.RUNNING]), _aged("longest", seen.longest_running, passed)),
            _line("FAILED 24h", _number(seen.failed_last_day), rising),
            _line("EXPIRED 24h", _number(seen.expired_last_day), ""),
            _line("COMPLETED", _number(completed), "(estimate)" if completed.is_estimate else ""),
        ]
        self.update(Content("\n").join([safe(line) for line in lines]))


class Pace(Static):
    """What was done and what failed in each minute, how long it took, and how much of the fleet is busy."""

    def show(
        self, seen: Overview | None, pace: Throughput | None, workers: Sequence[WorkerRow], *, glyphs: Glyphs
    ) -> None:
        self.border_title = " Last 30 min (per minute) "
        if seen is None or pace is None:
            return
        done = [float(bucket.done) for bucket in pace.buckets]
        failed = [float(bucket.failed) for bucket in pace.buckets]
        times = pace.times
        # What a worker that is gone holds takes up no room, and one child may run several tasks.
        alive = [worker for worker in workers if worker.is_alive]
        busy, slots = sum(worker.children_busy for worker in alive), sum(worker.processes for worker in alive)
        share = f" {busy / slots:.0%}" if slots else ""
        lines = [
            Content(f"done {spark(done, glyphs)} {seen.done_last_minute:>6,}"),
            Content(f"fail {spark(failed, glyphs)} {seen.failed_last_minute:>6,}"),
            Content(f"wait p50 {took(times.wait_p50)}  p95 {took(times.wait_p95)}"),
            Content(f"run  p50 {took(times.run_p50)}  p95 {took(times.run_p95)}"),
            Content(""),
            Content(f"slots {bar(busy, slots, SLOTS, glyphs)} {busy:,}/{slots:,}{share}"),
        ]
        self.update(Content("\n").join(lines))


class QueuePaces(Static):
    """The same for each of the busiest queues, in a line."""

    def show(self, buckets: Sequence[QueueBucket], *, now: datetime, glyphs: Glyphs) -> None:
        self.border_title = " Done by queue "
        by_queue: dict[str, list[QueueBucket]] = {}
        for bucket in buckets:
            by_queue.setdefault(bucket.queue, []).append(bucket)
        busiest = sorted(by_queue.items(), key=lambda item: sum(bucket.done for bucket in item[1]), reverse=True)
        lines = [_paced(name, found, now, glyphs) for name, found in busiest[:MOST_QUEUES]]
        self.update(Content("\n").join(lines))


def _line(what: str, count: str, remark: str) -> str:
    return f"{fit(what, 11)} {fit(count, 8, right=True)}  {remark}"


def _number(count: Count) -> str:
    return number(count.number, is_estimate=count.is_estimate, is_capped=count.is_capped)


def _aged(what: str, span: timedelta | None, passed: timedelta) -> str:
    """The age as it is now, `passed` after it was read."""
    return "" if span is None else f"{what} {age(span + passed)}"


def _paced(name: str, buckets: Sequence[QueueBucket], now: datetime, glyphs: Glyphs) -> Content:
    done = [0.0 if bucket is None else float(bucket.done) for bucket in placed(buckets, now)]
    # The last bucket is still open; the one before is the last whole minute.
    return Content.assemble(safe(fit(name, 10)), f" {spark(done[-20:], glyphs)} {done[-2]:>6,.0f}")
