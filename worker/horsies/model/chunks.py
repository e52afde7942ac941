"""How many very short tasks are handed to a child at once, and when the rest of them is called back.

A chunk is RUNNING in the table from the moment it is handed over, so its size is a matter of time, not of number.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

CHUNK_MS: Final = 20.0
"""The most work that a chunk should be."""

RECALL_FACTOR: Final = 10
RECALL_AT_LEAST_MS: Final = 200.0

_NEWEST_COUNTS: Final = 1 / 32
"""One run that the machine held up must not look like a slow task, a task that became slow must show within a chunk."""


def weighted(estimate_ms: float | None, run_ms: float) -> float:
    """The estimate after one more run: the newer a run, the more it counts."""
    if estimate_ms is None:
        return run_ms
    return estimate_ms + (run_ms - estimate_ms) * _NEWEST_COUNTS


class RunTimes:
    """What recent runs say about the next one, for each task name and for each queue; None where nothing is known."""

    def __init__(self) -> None:
        self._by_task: dict[str, float] = {}
        self._by_queue: dict[str, float] = {}

    def observe(self, *, task_name: str, queue_name: str, run_ms: float) -> None:
        self._by_task[task_name] = weighted(self._by_task.get(task_name), run_ms)
        self._by_queue[queue_name] = weighted(self._by_queue.get(queue_name), run_ms)

    def of_task(self, task_name: str) -> float | None:
        return self._by_task.get(task_name)

    def of_queue(self, queue_name: str) -> float | None:
        return self._by_queue.get(queue_name)


def chunk_size(run_ms: float | None, *, max_chunk: int, is_capped: bool) -> int:
    """How many tasks of a queue make a chunk: one where a cap would be distorted, or nothing is known of the queue."""
    if is_capped or run_ms is None:
        return 1
    # Multiplied, not divided: an estimate may be zero.
    if run_ms * max_chunk <= CHUNK_MS:
        return max_chunk
    return max(1, int(CHUNK_MS / run_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """What is known of a task before it runs."""

    run_ms: float | None
    has_timeout: bool = False
    is_capped: bool = False

    @property
    def share_ms(self) -> float:
        """What it takes of a chunk: all, where a timeout is measured or a cap counted from the hand-over."""
        return inf if self.run_ms is None or self.has_timeout or self.is_capped else self.run_ms


def cut(prospects: Iterable[Prospect], *, max_chunk: int) -> list[int]:
    """The sizes of the chunks into which tasks are cut, in their order; each holds at least one."""
    sizes: list[int] = []
    room_ms = -inf
    for prospect in prospects:
        if prospect.share_ms <= room_ms and sizes[-1] < max_chunk:
            sizes[-1] += 1
            room_ms -= prospect.share_ms
        else:
            sizes.append(1)
            room_ms = CHUNK_MS - prospect.share_ms
    return sizes


def recall_after_ms(estimate_ms: float) -> float:
    """How long a chunk of so much work may take before what it has not begun is called back."""
    return max(RECALL_AT_LEAST_MS, RECALL_FACTOR * estimate_ms)
