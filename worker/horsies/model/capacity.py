"""How much a worker asks for in one pass.

What it can run now or soon is counted in places, which its children offer; caps, batches and the buffer cut that down.
What is in flight elsewhere in the fleet only the database can count: caps are handed on to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final
from uuid import UUID

MAX_CHUNKS: Final = 2
"""In a child's hands: one at work, one waiting."""
PARTS_PER_CHUNK: Final = 2
"""In how many parts a chunk of short tasks is handed over: a child that waited for whole ones to end would run dry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildLoad:
    """What a child that takes work has in its hands."""

    tasks: int = 0
    """Tasks handed to it that have not ended."""
    chunks: int = 0
    """The hand-overs that they came in."""
    is_all_async: bool = False
    """All that it runs are `async def`."""
    is_short: bool = False
    """All that it holds should end within one chunk's time, so something may wait behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedQueue:
    """A queue as this worker sees it: its cap in the fleet, and how many of its tasks make a chunk."""

    name: str
    max_concurrency: int | None = None
    chunk_size: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimLimits:
    """What the settings allow; 0 is no limit for the batch and for the claims held."""

    prefetch_buffer: int = 0
    max_claim_batch: int = 0
    max_claim_per_worker: int = 0
    async_concurrency: int = 10
    cluster_wide_cap: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCapacity:
    """At most `room` tasks of this queue; `cap` counts all that are in flight in the fleet."""

    name: str
    capacity: int
    cap: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimPlan:
    """One claim: at most `limit` tasks over all queues, of which the first `startable` may run at once."""

    limit: int
    startable: int
    async_only: int = 0
    """The last so many of those that may run can do so only beside coroutines."""
    queues: tuple[QueueCapacity, ...]
    cluster_cap: int | None = None

    @property
    def is_capped(self) -> bool:
        """Whether the claim has to count what others have in flight."""
        return self.cluster_cap is not None or any(queue.cap is not None for queue in self.queues)


def count_free_slots(child: ChildLoad, chunk_size: int, *, depth: int) -> int:
    """How many tasks of a queue a child can take now: run at once, or have waiting behind a chunk of short ones.

    At most `depth` chunks are in a child's hands, and what is missing is offered in portions: a claim for each task
    would cost more than the task. Nothing ever waits behind a task that may take its time.
    """
    if child.tasks and (child.is_all_async or not child.is_short):
        return 0
    if chunk_size > 1:
        portion = max(1, chunk_size // PARTS_PER_CHUNK)
        return max(0, chunk_size * depth - child.tasks) // portion * portion
    return 1 if child.chunks < MAX_CHUNKS else 0


def count_async_slots(child: ChildLoad, *, async_concurrency: int) -> int:
    """How many coroutines may join those that a child runs; no function can."""
    return max(0, async_concurrency - child.tasks) if child.tasks and child.is_all_async else 0


def swap_mismatched_slots(places: Sequence[int], beside: Collection[int], are_async: Sequence[bool]) -> list[int]:
    """The places of claimed tasks, exchanged among them where a function got one beside coroutines and need not have.

    A claim deals places out in the order of the line, whatever the tasks are.
    """
    found = list(places)
    dealt = list(enumerate(zip(places, are_async, strict=True)))
    wrong = (number for number, (place, is_async) in dealt if place in beside and not is_async)
    spare = (number for number, (place, is_async) in dealt if place not in beside and is_async)
    for one, other in zip(wrong, spare, strict=False):
        found[one], found[other] = found[other], found[one]
    return found


def plan_claim(
    queues: Iterable[ServedQueue],
    children: Sequence[ChildLoad],
    limits: ClaimLimits,
    *,
    claimed: int,
    max_async_only: int | None = None,
) -> ClaimPlan | None:
    """What to ask for while so many CLAIMED rows wait here; None where there is room for nothing.

    `most_beside` is how many may be asked for to run beside coroutines.
    """
    served = [queue for queue in queues if queue.max_concurrency != 0]
    places = _slots_by_chunk_size({queue.chunk_size for queue in served}, children)
    beside = _min_of(
        sum(count_async_slots(child, async_concurrency=limits.async_concurrency) for child in children), max_async_only
    )
    ahead = beside + limits.prefetch_buffer - claimed
    rooms = tuple(
        QueueCapacity(name=queue.name, capacity=room, cap=queue.max_concurrency)
        for queue in served
        if (room := _min_of(places[queue.chunk_size] + ahead, limits.max_claim_batch or None, queue.max_concurrency))
        > 0
    )
    own = _slots_for_mix(places) - claimed
    held_claims = limits.max_claim_per_worker - claimed if limits.max_claim_per_worker else None
    total = sum(queue.capacity for queue in rooms)
    limit = _min_of(total, own + beside + limits.prefetch_buffer, held_claims, limits.cluster_wide_cap)
    if limit <= 0:
        return None
    startable = max(0, min(limit, own + beside))
    return ClaimPlan(
        limit=limit,
        startable=startable,
        async_only=max(0, startable - max(0, own)),
        queues=rooms,
        cluster_cap=limits.cluster_wide_cap,
    )


def _slots_by_chunk_size(sizes: set[int], children: Iterable[ChildLoad]) -> dict[int, int]:
    # Where some tasks come one by one, the place behind a chunk is theirs: a pass over quick and slow queues then never
    # brings a second chunk that would have to wait behind a slow task, or be given back.
    depth = MAX_CHUNKS - 1 if 1 in sizes else MAX_CHUNKS
    return {size: sum(count_free_slots(child, size, depth=depth) for child in children) for size in sizes}


def _slots_for_mix(places: dict[int, int]) -> int:
    """Places for a mix of all queues: a chunk and what waits behind it."""
    return max((places[size] for size in places if size > 1), default=0) + places.get(1, 0)


def _min_of(first: int, *others: int | None) -> int:
    return min([first, *(other for other in others if other is not None)])


# How many very short tasks are handed to a child at once, and when the rest of them is called back.
#
# A chunk is RUNNING in the table from the moment it is handed over, so its size is a matter of time, not of number.

CHUNK_MS: Final = 20.0
"""The most work that a chunk should be."""

RECALL_FACTOR: Final = 10
MIN_RECALL_MS: Final = 200.0

_NEWEST_WEIGHT: Final = 1 / 32
"""One run that the machine held up must not look like a slow task, a task that became slow must show within a chunk."""


def update_estimate(estimate_ms: float | None, run_ms: float) -> float:
    """The estimate after one more run: the newer a run, the more it counts."""
    if estimate_ms is None:
        return run_ms
    return estimate_ms + (run_ms - estimate_ms) * _NEWEST_WEIGHT


class DurationEstimates:
    """What recent runs say about the next one, for each task name and for each queue; None where nothing is known."""

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
    """How many tasks of a queue make a chunk: one where a cap would be distorted, or nothing is known of the queue."""
    if is_capped or run_ms is None:
        return 1
    # Multiplied, not divided: an estimate may be zero.
    if run_ms * max_chunk <= CHUNK_MS:
        return max_chunk
    return max(1, int(CHUNK_MS / run_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEstimate:
    """What is known of a task before it runs."""

    run_ms: float | None
    has_timeout: bool = False
    is_capped: bool = False

    @property
    def share_ms(self) -> float:
        """What it takes of a chunk: all, where a timeout is measured or a cap counted from the hand-over."""
        return inf if self.run_ms is None or self.has_timeout or self.is_capped else self.run_ms


def split_into_chunks(prospects: Iterable[TaskEstimate], *, max_chunk: int) -> list[int]:
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
    return max(MIN_RECALL_MS, RECALL_FACTOR * estimate_ms)


# Which claims are made for places beside coroutines that run: only coroutines can take them.
#
# A claim takes what is first in line and cannot choose. A function that it brings goes back and is first in line again,
# so the next such claim waits until it has found a place of its own. Meanwhile the coroutines that run come to their
# end and none joins them, which makes that place.

FIRST_ASYNC_PAUSE_S: Final = 5.0
MAX_ASYNC_PAUSE_S: Final = 60.0
_MAX_WINDOW: Final = 1024


@dataclass(slots=True)
class AsyncAdmission:
    """How many tasks at a time may be claimed for such places. Times are those of one monotonic clock, in seconds."""

    _window: int = 1
    _rejected_id: UUID | None = None
    """The function that was turned away last."""
    _paused_until: float = -inf
    _pause_s: float = FIRST_ASYNC_PAUSE_S

    def allowed(self, now: float) -> int:
        """None while a function is awaited, but for a look now and then: another worker may have taken it."""
        return 0 if now < self._paused_until else self._window

    def on_claimed(self, task_ids: Iterable[UUID], *, is_last_async: bool, now: float) -> None:
        """A claim has brought these, and none was turned away; one that ends with a coroutine dares twice as many."""
        if self._rejected_id is not None:
            if self._rejected_id not in task_ids and not (is_last_async and now >= self._paused_until):
                return
            self._rejected_id, self._paused_until, self._pause_s = None, -inf, FIRST_ASYNC_PAUSE_S
        if is_last_async:
            self._window = min(_MAX_WINDOW, 2 * self._window)

    def on_rejected(self, task_id: UUID, now: float) -> float:
        """A function was claimed for such a place; returns the seconds until the next look."""
        pause_s = self._pause_s
        self._window, self._rejected_id, self._paused_until = 1, task_id, now + pause_s
        self._pause_s = min(MAX_ASYNC_PAUSE_S, 2 * pause_s)
        return pause_s
