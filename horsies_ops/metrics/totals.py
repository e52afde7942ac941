"""Counters that are added up from what each look at the database finds."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from horsies.model.events import EventKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horsies_ops.reads.metering import Metered

BOUNDS_S: Final = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0)


class Totals:
    """What has happened since the beginning; only ever grows."""

    def __init__(self) -> None:
        self.finished: Counter[tuple[str, str]] = Counter()
        """By status and queue."""
        self.recovered: Counter[str] = Counter()
        """By decision."""
        self.late_results = 0
        self.total_s = 0.0
        self._parts: Counter[int] = Counter()

    def add(self, found: Metered) -> None:
        for each in found.finished:
            self.finished[each.status, each.queue] += each.tasks
        for part in found.durations:
            self._parts[part.part] += part.executions
            self.total_s += part.total_s
        for event in found.events:
            if event.kind == EventKind.TASK_RECOVERED:
                self.recovered[event.decision] += event.events
            else:
                self.late_results += event.events

    def buckets(self) -> Iterator[tuple[str, float]]:
        """How many executions took at most so many seconds, for each bound and for all."""
        sum_so_far = 0
        for part, bound in enumerate((*BOUNDS_S, float("inf"))):
            sum_so_far += self._parts[part]
            yield "+Inf" if bound == float("inf") else str(bound), sum_so_far
