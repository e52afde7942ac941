"""How many tasks a worker claims in one pass, and how they are split into chunks for its children.

Children offer free slots; the prefetch buffer adds to them, caps and batch limits reduce them. Fleet-wide caps are
passed on to the claim statement, because only the database knows what is in flight on other workers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final
from uuid import UUID

MAX_CHUNKS: Final = 2
"""Chunks a child may hold: one running, one waiting."""
PARTS_PER_CHUNK: Final = 2
"""A chunk of short tasks is topped up in this many parts, so that the child never waits for a whole new chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildLoad:
    """The current work of a child that accepts tasks."""

    tasks: int = 0
    """Assigned tasks that have not finished."""
    chunks: int = 0
    """Chunks that these tasks were sent in."""
    is_all_async: bool = False
    """Whether all its running tasks are coroutines (`async def`)."""
    is_short: bool = False
    """Whether all its tasks should finish within one chunk's time, so that more may wait behind them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedQueue:
    """A queue that this worker serves, with its fleet-wide cap and its chunk size in tasks."""

    name: str
    max_concurrency: int | None = None
    chunk_size: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimLimits:
    """Claim limits from the settings; 0 means no limit for `max_claim_batch` and `max_claim_per_worker`."""

    prefetch_buffer: int = 0
    max_claim_batch: int = 0
    max_claim_per_worker: int = 0
    async_concurrency: int = 10
    cluster_wide_cap: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCapacity:
    """Claim at most `capacity` tasks of this queue; `cap` limits the tasks in flight in the whole fleet."""

    name: str
    capacity: int
    cap: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimPlan:
    """One claim: at most `limit` tasks over all queues, of which the first `startable` may start immediately."""

    limit: int
    startable: int
    async_only: int = 0
    """How many of the startable tasks, the last ones, have a slot that only a coroutine can use."""
    queues: tuple[QueueCapacity, ...]
    cluster_cap: int | None = None

    @property
    def is_capped(self) -> bool:
        """Whether the claim statement must count tasks in flight on other workers."""
        return self.cluster_cap is not None or any(queue.cap is not None for queue in self.queues)


def count_free_slots(child: ChildLoad, chunk_size: int, *, depth: int) -> int:
    """Count the tasks of a queue that a child can take now, to run or to wait behind short tasks.

    A child holds at most `depth` chunks.
    """
    # Nothing waits behind a task that may run long.
    if child.tasks and (child.is_all_async or not child.is_short):
        return 0
    if chunk_size > 1:
        # Offer whole parts of a chunk: claiming short tasks one by one would cost more than running them.
        part = max(1, chunk_size // PARTS_PER_CHUNK)
        return max(0, chunk_size * depth - child.tasks) // part * part
    return 1 if child.chunks < MAX_CHUNKS else 0


def count_async_slots(child: ChildLoad, *, async_concurrency: int) -> int:
    """Count the coroutines that may join those a child is running; sync tasks cannot use these slots."""
    return max(0, async_concurrency - child.tasks) if child.tasks and child.is_all_async else 0


def swap_mismatched_slots(pids: Sequence[int], async_pids: Collection[int], are_async: Sequence[bool]) -> list[int]:
    """Reassign children so that sync tasks avoid the coroutine-only slots of `async_pids` where possible.

    `pids[i]` is the child assigned to task `i`: a claim assigns slots in queue order, before the kind of task is known.
    """
    swapped = list(pids)
    assigned = list(enumerate(zip(pids, are_async, strict=True)))
    misplaced_sync = (index for index, (pid, is_async) in assigned if pid in async_pids and not is_async)
    movable_async = (index for index, (pid, is_async) in assigned if pid not in async_pids and is_async)
    for one, other in zip(misplaced_sync, movable_async, strict=False):
        swapped[one], swapped[other] = swapped[other], swapped[one]
    return swapped


def plan_claim(
    queues: Iterable[ServedQueue],
    children: Sequence[ChildLoad],
    limits: ClaimLimits,
    *,
    claimed: int,
    max_async_only: int | None = None,
) -> ClaimPlan | None:
    """Plan the next claim while `claimed` CLAIMED tasks wait here; None if nothing can be claimed.

    `max_async_only` limits the tasks claimed for coroutine-only slots.
    """
    served = [queue for queue in queues if queue.max_concurrency != 0]
    slots = _slots_by_chunk_size({queue.chunk_size for queue in served}, children)
    async_slots = _min_of(
        sum(count_async_slots(child, async_concurrency=limits.async_concurrency) for child in children), max_async_only
    )
    extra = async_slots + limits.prefetch_buffer - claimed
    capacities = tuple(
        QueueCapacity(name=queue.name, capacity=capacity, cap=queue.max_concurrency)
        for queue in served
        if (capacity := _min_of(slots[queue.chunk_size] + extra, limits.max_claim_batch or None, queue.max_concurrency))
        > 0
    )
    # Slots for a mix of all queues: a chunk, and one single task waiting behind it.
    free = max((slots[size] for size in slots if size > 1), default=0) + slots.get(1, 0) - claimed
    claims_left = limits.max_claim_per_worker - claimed if limits.max_claim_per_worker else None
    total = sum(queue.capacity for queue in capacities)
    limit = _min_of(total, free + async_slots + limits.prefetch_buffer, claims_left, limits.cluster_wide_cap)
    if limit <= 0:
        return None
    startable = max(0, min(limit, free + async_slots))
    return ClaimPlan(
        limit=limit,
        startable=startable,
        async_only=max(0, startable - max(0, free)),
        queues=capacities,
        cluster_cap=limits.cluster_wide_cap,
    )


def _slots_by_chunk_size(sizes: set[int], children: Iterable[ChildLoad]) -> dict[int, int]:
    # If some tasks are sent one by one, the slot behind a chunk is reserved for them. Otherwise one pass over quick and
    # slow queues could claim a second chunk that has to wait behind a slow task or be released.
    depth = MAX_CHUNKS - 1 if 1 in sizes else MAX_CHUNKS
    return {size: sum(count_free_slots(child, size, depth=depth) for child in children) for size in sizes}


def _min_of(first: int, *others: int | None) -> int:
    return min([first, *(other for other in others if other is not None)])


# Chunks of short tasks
#
# All tasks of a chunk are RUNNING in the table as soon as it is sent, so its size is limited by time, not by number.

CHUNK_MS: Final = 20.0
"""Target upper limit for the estimated run time of a chunk."""

RECALL_FACTOR: Final = 10
MIN_RECALL_MS: Final = 200.0

_NEWEST_WEIGHT: Final = 1 / 32
"""Small enough to ignore one delayed run, large enough to notice within a chunk that a task became slow."""


def update_estimate(estimate_ms: float | None, run_ms: float) -> float:
    """Update an exponential moving average of run times."""
    if estimate_ms is None:
        return run_ms
    return estimate_ms + (run_ms - estimate_ms) * _NEWEST_WEIGHT


class DurationEstimates:
    """Estimated run times in milliseconds by task name and by queue; None if nothing has run yet."""

    def __init__(self) -> None:
        self._by_task: dict[str, float] = {}
        self._by_queue: dict[str, float] = {}

    def observe(self, *, task_name: str, queue_name: str, run_ms: float) -> None:
        self._by_task[task_name] = update_estimate(self._by_task.get(task_name), run_ms)
        self._by_queue[queue_name] = update_estimate(self._by_queue.get(queue_name), run_ms)

    def for_task(self, task_name: str) -> float | None:
        return self._by_task.get(task_name)

    def for_queue(self, queue_name: str) -> float | None:
        return self._by_queue.get(queue_name)


def chunk_size(run_ms: float | None, *, max_chunk: int, is_capped: bool) -> int:
    """Return the chunk size for a queue: 1 if the queue has a cap or no estimate yet."""
    if is_capped or run_ms is None:
        return 1
    # Multiply rather than divide: the estimate may be zero.
    if run_ms * max_chunk <= CHUNK_MS:
        return max_chunk
    return max(1, int(CHUNK_MS / run_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEstimate:
    """What is known about a task before it runs."""

    run_ms: float | None
    has_timeout: bool = False
    is_capped: bool = False

    @property
    def share_ms(self) -> float:
        """Its share of a chunk's time; infinite if a timeout or a cap counts from the moment the chunk is sent."""
        return inf if self.run_ms is None or self.has_timeout or self.is_capped else self.run_ms


def split_into_chunks(tasks: Iterable[TaskEstimate], *, max_chunk: int) -> list[int]:
    """Split tasks into chunks, keeping their order; returns the size of each chunk."""
    sizes: list[int] = []
    remaining_ms = -inf
    for task in tasks:
        if task.share_ms <= remaining_ms and sizes[-1] < max_chunk:
            sizes[-1] += 1
            remaining_ms -= task.share_ms
        else:
            sizes.append(1)
            remaining_ms = CHUNK_MS - task.share_ms
    return sizes


def recall_after_ms(estimate_ms: float) -> float:
    """How long a chunk with this estimate may run before its tasks that have not begun are recalled."""
    return max(MIN_RECALL_MS, RECALL_FACTOR * estimate_ms)


# Claims for coroutine-only slots
#
# A claim takes the next task in the queue, whether coroutine or sync. A sync task that gets a coroutine-only slot is
# released and is next in the queue again, so further such claims pause until it has started elsewhere. During the pause
# no coroutines join the running ones, so a child becomes free for it.

FIRST_ASYNC_PAUSE_S: Final = 5.0
MAX_ASYNC_PAUSE_S: Final = 60.0
_MAX_WINDOW: Final = 1024


@dataclass(slots=True)
class AsyncAdmission:
    """Limits how many tasks are claimed for coroutine-only slots. Times are monotonic seconds."""

    _window: int = 1
    _rejected_id: UUID | None = None
    """The sync task that was released last."""
    _paused_until: float = -inf
    _pause_s: float = FIRST_ASYNC_PAUSE_S

    def allowed(self, now: float) -> int:
        """Return how many tasks may be claimed now; 0 during a pause."""
        return 0 if now < self._paused_until else self._window

    def on_claimed(self, task_ids: Iterable[UUID], *, is_last_async: bool, now: float) -> None:
        """Record a claim without rejections; one that ends with a coroutine doubles the window."""
        if self._rejected_id is not None:
            # The pause goes on unless the rejected task was claimed here, or a claim after the pause found a coroutine
            # next in the queue: then another worker has taken the rejected task.
            if self._rejected_id not in task_ids and not (is_last_async and now >= self._paused_until):
                return
            self._rejected_id, self._paused_until, self._pause_s = None, -inf, FIRST_ASYNC_PAUSE_S
        if is_last_async:
            self._window = min(_MAX_WINDOW, 2 * self._window)

    def on_rejected(self, task_id: UUID, now: float) -> float:
        """Record that a sync task was claimed for a coroutine-only slot; returns the length of the pause in seconds."""
        pause_s = self._pause_s
        self._window, self._rejected_id, self._paused_until = 1, task_id, now + pause_s
        self._pause_s = min(MAX_ASYNC_PAUSE_S, 2 * pause_s)
        return pause_s
