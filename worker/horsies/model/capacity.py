"""How much work a worker may take: how many tasks it claims, for which children, and the fence that stops it.

Children offer free slots; the prefetch buffer adds to them, caps and batch limits reduce them. Fleet-wide caps are
passed on to the claim statement, because only the database knows what is in flight on other workers.

In the engine a *function* is a `def` task and a *coroutine* an `async def` task: a child runs one function at a time,
or several coroutines.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from horsies.model.settings.recovery import RecoveryConfig

WORK_AHEAD_MS: Final = 40.0
"""A child gets more tasks while those it has take less than this; so others wait at most that long behind them."""
MAX_CHUNKS: Final = 4
"""A child may hold this many chunks of `worker.max_chunk` short tasks."""
UNKNOWN_MS: Final = WORK_AHEAD_MS + 1
"""Tasks that never ran count as long."""


class TaskKind(StrEnum):
    """Which tasks a claim takes."""

    ANY = "any"
    FUNCTION = "function"
    COROUTINE = "coroutine"


ALL_KINDS: Final = frozenset(TaskKind)


# Estimated run times

_NEWEST_WEIGHT: Final = 1 / 32
"""Small enough to ignore one delayed run, large enough to notice within a chunk that a task became slow."""


def update_estimate(estimate_ms: float | None, run_ms: float) -> float:
    """Update an exponential moving average of run times."""
    if estimate_ms is None:
        return run_ms
    return estimate_ms + (run_ms - estimate_ms) * _NEWEST_WEIGHT


class DurationEstimates:
    """How long a task keeps a child busy, in milliseconds, by task name and by queue; None if nothing has run yet."""

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


# Slots of children


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildLoad:
    """The current work of a child that accepts tasks."""

    pid: int = 0
    tasks: int = 0
    """Assigned tasks that have not finished."""
    remaining_ms: float = 0.0
    """Estimated time until they have."""
    has_coroutines: bool = False
    has_functions: bool = False

    @property
    def runs_only_coroutines(self) -> bool:
        return self.has_coroutines and not self.has_functions


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedQueue:
    """A queue that this worker serves, with its fleet-wide cap and the estimated run time of its tasks."""

    name: str
    max_concurrency: int | None = None
    run_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimLimits:
    """Claim limits from the settings; 0 means no limit for `max_claim_batch` and `max_claim_per_worker`."""

    processes: int = 1
    prefetch_buffer: int = 0
    max_claim_batch: int = 0
    max_claim_per_worker: int = 0
    max_chunk: int = 64
    async_concurrency: int = 10
    cluster_wide_cap: int | None = None
    keeps_child_for_functions: bool = False
    """Whether the app has coroutines and functions: with two or more children, one of them runs no coroutines."""


def child_depth(queue: ServedQueue, limits: ClaimLimits) -> int:
    """How many tasks of a queue a child may hold: 1 if the queue has a cap or its run times are unknown."""
    is_capped = limits.cluster_wide_cap is not None or queue.max_concurrency is not None
    if is_capped or queue.run_ms is None or limits.max_chunk == 1:
        return 1
    most = MAX_CHUNKS * limits.max_chunk
    # Multiply rather than divide: the estimate may be zero.
    return most if queue.run_ms * most <= WORK_AHEAD_MS else max(1, int(WORK_AHEAD_MS / queue.run_ms))


def accepts(child: ChildLoad, kind: TaskKind, children: Iterable[ChildLoad], limits: ClaimLimits) -> bool:
    """Whether a claim of this kind may be made for the child.

    Coroutines join running ones. If the app has both kinds, coroutines leave one child to functions.
    """
    if kind is TaskKind.COROUTINE:
        return child.runs_only_coroutines
    is_kept = limits.keeps_child_for_functions and not child.has_coroutines
    is_kept = is_kept and sum(other.has_coroutines for other in children) >= max(1, limits.processes - 1)
    return is_kept is (kind is TaskKind.FUNCTION)


def count_free_slots(child: ChildLoad, kind: TaskKind, queue: ServedQueue, limits: ClaimLimits) -> int:
    """Count the tasks of a queue that a child can take now, to run or to wait behind short tasks."""
    if kind is TaskKind.COROUTINE:
        return max(0, limits.async_concurrency - child.tasks)
    depth = child_depth(queue, limits)
    if not child.tasks:
        return depth
    run_ms = UNKNOWN_MS if queue.run_ms is None else queue.run_ms
    left_ms = WORK_AHEAD_MS - child.remaining_ms
    if left_ms <= 0:  # nothing waits behind a task that may run long
        return 0
    if depth == 1:
        return 1
    slots = min(depth - child.tasks, int(left_ms / run_ms) if run_ms * depth > left_ms else depth)
    # Offer half of the depth or more: claiming short tasks one by one would cost more than running them.
    return slots if slots >= depth // 2 else 0


# Claims


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCapacity:
    """Claim at most `capacity` tasks of this queue; `cap` limits the tasks in flight in the whole fleet."""

    name: str
    capacity: int
    cap: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimPlan:
    """One claim: at most `limit` tasks of one kind over all queues; the first start, one for each child in `pids`."""

    kind: TaskKind
    limit: int
    pids: Sequence[int]
    queues: tuple[QueueCapacity, ...]
    cluster_cap: int | None = None


def plan_claim(
    queues: Iterable[ServedQueue],
    children: Sequence[ChildLoad],
    limits: ClaimLimits,
    *,
    claimed: int = 0,
    kinds: Collection[TaskKind] = ALL_KINDS,
) -> ClaimPlan | None:
    """Plan the next claim while `claimed` CLAIMED tasks wait here; None if nothing can be claimed.

    `kinds` are those that may be due. A claim of several tasks for a child is for this child only, so that they become
    one chunk; single tasks are claimed for all children at once.
    """
    served = [queue for queue in queues if queue.max_concurrency != 0]
    for kind in TaskKind:
        if kind not in kinds and not (kind is TaskKind.ANY and kinds):
            continue
        slots = {
            child.pid: [count_free_slots(child, kind, queue, limits) for queue in served]
            for child in children
            if accepts(child, kind, children, limits)
        }
        plan = _plan_for(kind, served, {pid: counts for pid, counts in slots.items() if any(counts)}, limits, claimed)
        if plan is not None:
            return plan
    return None


def _plan_for(
    kind: TaskKind, served: Sequence[ServedQueue], slots: dict[int, list[int]], limits: ClaimLimits, claimed: int
) -> ClaimPlan | None:
    """The claim for children with these free slots, by queue."""
    best = max(slots, key=lambda pid: max(slots[pid]), default=None)
    if best is not None and max(slots[best]) > 1 and not limits.prefetch_buffer:
        slots = {best: slots[best]}
    # The slots of one kind of task are free although tasks wait: those are of the other kind.
    waiting = claimed if kind is TaskKind.ANY else 0
    ahead = limits.prefetch_buffer - waiting if kind is TaskKind.ANY else 0
    capacities = tuple(
        QueueCapacity(name=queue.name, capacity=capacity, cap=queue.max_concurrency)
        for number, queue in enumerate(served)
        if (
            capacity := _min_of(
                sum(counts[number] for counts in slots.values()) + ahead,
                limits.max_claim_batch or None,
                queue.max_concurrency,
            )
        )
        > 0
    )
    pids = round_robin([[pid] * max(counts) for pid, counts in slots.items()])
    claims_left = limits.max_claim_per_worker - claimed if limits.max_claim_per_worker else None
    total = sum(queue.capacity for queue in capacities)
    limit = _min_of(total, len(pids) + ahead, claims_left, limits.cluster_wide_cap)
    if limit <= 0:
        return None
    startable = pids[: max(0, min(limit, len(pids) - waiting))]
    return ClaimPlan(kind=kind, limit=limit, pids=startable, queues=capacities, cluster_cap=limits.cluster_wide_cap)


def round_robin(slots_by_child: Sequence[list[int]]) -> list[int]:
    """Alternate between children, so that a few tasks are spread over all of them."""
    if len(slots_by_child) == 1:  # a chunk for one child, with up to 256 slots
        return slots_by_child[0]
    return [pid for pid in chain.from_iterable(zip_longest(*slots_by_child)) if pid is not None]


def _min_of(first: int, *others: int | None) -> int:
    return min([first, *(other for other in others if other is not None)])


# Chunks of short tasks
#
# All tasks of a chunk are RUNNING in the table as soon as it is sent, so its size is limited by time, not by number.

RECALL_FACTOR: Final = 10
MIN_RECALL_MS: Final = 200.0


def select_for_child(child: ChildLoad, run_times_ms: Sequence[float | None], *, most: int) -> list[int]:
    """Choose the tasks that a child takes, by index in the order to run them.

    Short tasks are taken in order while they fit into `WORK_AHEAD_MS`, at most `most`. Of the long ones the first is
    taken and runs last, because nothing waits behind it.
    """
    short: list[int] = []
    long: int | None = None
    left_ms = WORK_AHEAD_MS - child.remaining_ms
    if left_ms <= 0 and child.tasks:
        return []
    for index, run_ms in enumerate(run_times_ms):
        if run_ms is None or run_ms > WORK_AHEAD_MS:
            long = index if long is None else long
        elif run_ms <= left_ms and child.tasks + len(short) < most:
            short.append(index)
            left_ms -= run_ms
    return short if long is None else [*short, long]


def recall_after_ms(estimate_ms: float) -> float:
    """How long a chunk with this estimate may run before its tasks that have not begun are recalled."""
    return max(MIN_RECALL_MS, RECALL_FACTOR * estimate_ms)


# The fence of a disconnected worker, and heartbeat intervals; times are those of its monotonic clock, in seconds

FENCE_HEARTBEAT_FRACTION: Final = 0.75
"""An idle worker sends a heartbeat after this fraction of the fence limit at the latest."""

MAX_CHILD_HEARTBEAT_S: Final = 1.0
MIN_HEARTBEATS_PER_THRESHOLD: Final = 5
"""A child sends at least this many heartbeats per running threshold."""


class Fence:
    """Stops a disconnected worker from claiming and starting tasks, because others may recover its claims soon.

    A success counts from the time its statement was sent: a response read after the machine was suspended says nothing
    about the time in between.
    """

    def __init__(self, recovery: RecoveryConfig, *, now: float) -> None:
        self._limit_s = _fence_limit_ms(recovery) / 1_000
        # The other half is for the first heartbeat: its interval is at most half the threshold (RecoveryConfig).
        self._max_claim_s = recovery.running_stale_threshold_ms / 2_000
        self.last_success_at = now
        self._is_up = False
        """The worker was fenced when a statement succeeded, and no worker heartbeat has succeeded since."""

    def is_fenced(self, now: float) -> bool:
        return self._is_up or now - self.last_success_at > self._limit_s

    def record_statement(self, sent_at: float) -> None:
        """A statement sent at `sent_at` has succeeded; only a worker heartbeat lowers a raised fence."""
        self._is_up = self.is_fenced(sent_at)
        self.last_success_at = max(self.last_success_at, sent_at)

    def record_heartbeat(self, sent_at: float) -> None:
        """A worker heartbeat sent at `sent_at` has succeeded."""
        self._is_up = False
        self.last_success_at = max(self.last_success_at, sent_at)

    def may_assign(self, *, took_s: float) -> bool:
        """Whether tasks from a claim that took `took_s` may start; after a longer time others may recover them."""
        return took_s < self._max_claim_s


def effective_worker_heartbeat_ms(recovery: RecoveryConfig) -> float:
    """Worker heartbeat interval: as configured, but well below the fence limit so that an idle worker is not fenced."""
    return min(recovery.effective_worker_heartbeat_ms, _fence_limit_ms(recovery) * FENCE_HEARTBEAT_FRACTION)


def heartbeat_timeout_s(recovery: RecoveryConfig, *, claim_lease_ms: int | None = None) -> float:
    """Statement timeout of heartbeats: a third of the shortest threshold or of the lease.

    Intervals are at most half a threshold, so a heartbeat that got no answer leaves a sixth of it for a second try.
    """
    thresholds_ms = [
        recovery.claimed_stale_threshold_ms,
        recovery.running_stale_threshold_ms,
        recovery.worker_stale_threshold_ms,
    ]
    if claim_lease_ms is not None:
        thresholds_ms.append(claim_lease_ms)
    return min(thresholds_ms) / 3_000


def silent_child_limit_s(recovery: RecoveryConfig) -> float:
    """How long a child may be silent and idle before its parent kills it: just less than the running threshold."""
    # Half an interval before other workers may recover its tasks: the process must be dead before they run again.
    return (recovery.running_stale_threshold_ms - recovery.runner_heartbeat_interval_ms / 2) / 1_000


def child_heartbeat_interval_s(recovery: RecoveryConfig) -> float:
    """Heartbeat interval of children: one second, or less if the running threshold is very short."""
    return min(MAX_CHILD_HEARTBEAT_S, recovery.running_stale_threshold_ms / 1_000 / MIN_HEARTBEATS_PER_THRESHOLD)


def _fence_limit_ms(recovery: RecoveryConfig) -> int:
    # The last heartbeat of a claim may be a whole interval older than the last successful statement.
    return recovery.claimed_stale_threshold_ms - recovery.claimer_heartbeat_interval_ms
