"""Tasks in flight: the record of each claimed task, and which child has it, with chunks, timeouts and recalls."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

from horsies.engine.pool.protocol import Assignment, AttemptKey
from horsies.model.capacity import (
    CHUNK_MS,
    MAX_CHUNKS,
    PARTS_PER_CHUNK,
    ChildLoad,
    DurationEstimates,
    TaskEstimate,
    recall_after_ms,
    split_into_chunks,
)
from horsies.model.crash import Kill, KillReason
from horsies.model.retry import AttemptState, Cancel, Cause, Fail, Retry, decide_retry, stored_policy
from horsies.model.task import TaskContext
from horsies.store.claims import ClaimedRow, ClaimRef

if TYPE_CHECKING:
    from horsies.engine.pool.child import Child

MAX_SHORT_CHUNKS: Final = MAX_CHUNKS * PARTS_PER_CHUNK
"""Like `MAX_CHUNKS`, for chunks of short tasks, which are sent in parts."""
CANCEL_GRACE_S: Final = 2.0
"""How long a cancelled coroutine may take to end before its child gets no more tasks."""
OTHER_TASKS_GRACE_S: Final = 10.0
"""How long the other tasks of that child may then continue before it is killed."""

_NO_OPTIONS: dict[str, Any] = {}
_NO_FLAGS: dict[str, bool] = {}
_cached_str = lru_cache(maxsize=16)(str)  # worker ids: few distinct values, formatted for every assignment


class Phase(Enum):
    """Progress of an in-flight task."""

    CLAIMED = "claimed"
    """Prefetched; waits for a free slot."""
    RUNNING = "running"
    """Started in the database: in a child, or about to be sent to one or released."""
    STORING = "storing"
    """Ended; its outcome is not stored yet."""


class InFlightTask:
    """One attempt that this worker has claimed and not finished."""

    __slots__ = ("began_at", "child", "chunk", "claim", "key", "options", "phase", "row", "stop_reason", "timer")

    def __init__(self, row: ClaimedRow, worker_id: UUID, phase: Phase) -> None:
        self.row = row
        self.claim = ClaimRef(row.id, row.claim_token, worker_id)
        self.key = AttemptKey(str(row.id), row.claim_token)
        self.phase = phase
        self.child: Child | None = None
        self.chunk: Chunk | None = None
        """The chunk in which it was sent last."""
        self.began_at: float | None = None
        self.timer: asyncio.TimerHandle | None = None
        """Fires at the task's timeout, or when it did not react to a cancellation."""
        self.stop_reason: KillReason | None = None
        """Why it was stopped; decides its outcome."""
        self.options: dict[str, Any] = json.loads(row.task_options) if row.task_options != "{}" else _NO_OPTIONS

    @property
    def timeout_ms(self) -> int | None:
        return self.options.get("timeout_ms")

    def decide_retry(self, cause: Cause, *, max_crashes: int | None = None) -> float | Fail | Cancel:
        """Return the delay in seconds until this attempt is retried, or why it is not.

        The statement that stores the outcome adds the delay to the database time. It also checks `good_until`, by the
        same clock, and whether the workflow was paused or cancelled meanwhile.
        """
        now = datetime.now(UTC)  # any time would do: only the difference is used
        row = self.row
        state = AttemptState(
            policy=stored_policy(self.options),
            retry_count=row.retry_count,
            crash_count=row.crash_count,
            max_crashes=max_crashes,
        )
        decision = decide_retry(state, cause, now=now, jitter=random.random())  # noqa: S311  # jitter, not security
        return (decision.at - now).total_seconds() if isinstance(decision, Retry) else decision

    def cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def assignment(self) -> Assignment:
        row = self.row
        context = TaskContext(
            task_id=self.key.task_id,
            task_name=row.task_name,
            queue_name=row.queue_name,
            attempt=row.attempts + 1,
            retry_count=row.retry_count,
            claim_token=row.claim_token,
            sent_at=row.sent_at,
            good_until=row.good_until,
            timeout_ms=self.timeout_ms,
            worker_id=_cached_str(self.claim.worker_id),
            flags=_NO_FLAGS if row.flags == "{}" else _parse_flags(row.flags),
            possible_overlap=row.overlap_possible,
        )
        return Assignment(
            task=context,
            args=row.args.encode(),
            kwargs=row.kwargs.encode(),
            workflow_context=None if row.context is None else row.context.encode(),
        )


def _parse_flags(stored: str) -> dict[str, bool]:
    """Read the stored flags. A child would reject other values than booleans, which other programs may have stored."""
    flags: object = json.loads(stored)
    return {name: bool(value) for name, value in cast("Any", flags).items()} if isinstance(flags, dict) else {}


class InFlight:
    """All in-flight tasks of this worker, by attempt key."""

    def __init__(self) -> None:
        self._tasks: dict[AttemptKey, InFlightTask] = {}

    def add(self, row: ClaimedRow, worker_id: UUID, phase: Phase) -> InFlightTask:
        task = InFlightTask(row, worker_id, phase)
        self._tasks[task.key] = task
        return task

    def get(self, key: AttemptKey) -> InFlightTask | None:
        return self._tasks.get(key)

    def remove(self, task: InFlightTask) -> None:
        """Forget a task that is stored, released or lost; its heartbeats end."""
        task.cancel_timer()
        self._tasks.pop(task.key, None)

    def in_phase(self, *phases: Phase) -> list[InFlightTask]:
        return [task for task in self._tasks.values() if task.phase in phases]

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[InFlightTask]:
        return iter(tuple(self._tasks.values()))


# Assignments to children


@dataclass(slots=True, eq=False)
class Chunk:
    """Tasks sent to a child together; when its timer fires, the child's unbegun tasks are recalled."""

    keys: set[object]
    recall_timer: asyncio.TimerHandle | None = None

    def remove(self, key: object) -> bool:
        """Remove a task that left the child; returns whether the chunk is now empty."""
        self.keys.discard(key)
        if not self.keys and self.recall_timer is not None:
            self.recall_timer.cancel()
        return not self.keys


@dataclass(slots=True, eq=False)
class ChildTasks:
    """The tasks assigned to one child."""

    tasks: dict[object, InFlightTask] = field(default_factory=dict["object", "InFlightTask"])
    chunks: list[Chunk] = field(default_factory=list[Chunk])
    kill: Kill | None = None
    """Why this worker killed the child; None if it did not."""
    uncancellable: set[object] = field(default_factory=set["object"])
    """Coroutines that did not end when they were cancelled."""

    @property
    def is_closed(self) -> bool:
        """Whether the child gets no more tasks because a coroutine does not react to its cancellation."""
        return bool(self.uncancellable)


class Assignments:
    """Assigns tasks to children, and stops those that exceed their timeout."""

    def __init__(
        self,
        durations: DurationEstimates,
        *,
        max_chunk: int,
        is_async: Callable[[str], bool],
        is_capped: Callable[[str], bool],
    ) -> None:
        self._durations = durations
        self._max_chunk = max_chunk
        self.is_async_task = is_async
        self._is_capped = is_capped
        self._by_child: dict[Child, ChildTasks] = {}
        self.other_tasks_grace_s = OTHER_TASKS_GRACE_S

    def for_child(self, child: Child) -> ChildTasks:
        assigned = self._by_child.get(child)
        if assigned is None:
            assigned = self._by_child[child] = ChildTasks()
        return assigned

    def remove_child(self, child: Child) -> ChildTasks:
        """Forget a child that has exited; returns the tasks it had."""
        assigned = self._by_child.pop(child, ChildTasks())
        for chunk in assigned.chunks:
            if chunk.recall_timer is not None:
                chunk.recall_timer.cancel()
        return assigned

    def load(self, child: Child) -> ChildLoad:
        assigned = self.for_child(child)
        chunks = len(assigned.chunks)
        return ChildLoad(
            tasks=len(assigned.tasks),
            chunks=chunks,
            is_all_async=self._is_all_async(assigned),
            # A full child takes nothing more, so the sum over its tasks can be skipped.
            is_short=chunks < MAX_SHORT_CHUNKS and self._is_short(assigned),
        )

    def is_async(self, task: InFlightTask) -> bool:
        return self.is_async_task(task.row.task_name)

    def runs_only_coroutines(self, child: Child) -> bool:
        """Whether the child has coroutines and no functions."""
        return self._is_all_async(self.for_child(child))

    def assign(self, child: Child, tasks: Sequence[InFlightTask]) -> list[InFlightTask]:
        """Send tasks to a child in chunks; returns those it has no capacity for."""
        assigned = self.for_child(child)
        start = 0
        for size in split_into_chunks(self._estimates(tasks), max_chunk=self._max_chunk):
            chunk = tasks[start : start + size]
            if not self._has_capacity(assigned, chunk):
                break
            self._send_chunk(child, assigned, chunk)
            start += size
        return list(tasks[start:])

    def on_began(self, child: Child, key: object) -> None:
        if task := self.for_child(child).tasks.get(key):
            task.began_at = time.monotonic()
            self._start_timeout(task)
            if task.stop_reason is not None and not self.is_async(task):
                self.kill_child(child, task.stop_reason, task)  # it began before the recall arrived

    def remove(self, child: Child, key: object) -> InFlightTask | None:
        """Remove a task that left the child."""
        assigned = self.for_child(child)
        task = assigned.tasks.pop(key, None)
        if task is None:
            return None
        if task.chunk is not None and task.chunk.remove(key):
            assigned.chunks.remove(task.chunk)
        if assigned.uncancellable:
            assigned.uncancellable.discard(key)
        task.cancel_timer()
        return task

    def record_duration(self, task: InFlightTask, run_ms: float) -> None:
        self._durations.observe(task_name=task.row.task_name, queue_name=task.row.queue_name, run_ms=run_ms)

    def kill_child(self, child: Child, reason: KillReason, task: InFlightTask | None) -> None:
        """Kill a child on purpose; the first reason is kept."""
        assigned = self.for_child(child)
        if assigned.kill is None:
            assigned.kill = Kill(reason=reason, pid=child.pid, task_id=task.key.task_id if task else None)
            child.kill(str(reason))

    def stop_task(self, task: InFlightTask, reason: KillReason) -> None:
        """Stop one task: recall it if it has not begun, cancel a coroutine, or kill the child of a running function."""
        child, is_async = task.child, self.is_async(task)
        if child is None or task.key not in self.for_child(child).tasks:
            return  # it has left the child already
        task.cancel_timer()
        if not is_async and task.key not in child.unbegun:
            self.kill_child(child, reason, task)
            return
        task.stop_reason = reason
        child.cancel(task.key)
        if is_async:
            loop = asyncio.get_running_loop()
            task.timer = loop.call_later(CANCEL_GRACE_S, self._on_cancel_timeout, child, task, reason)

    def _on_cancel_timeout(self, child: Child, task: InFlightTask, reason: KillReason) -> None:
        """The coroutine ignored its cancellation: kill the child, after a grace period for its other tasks."""
        self.for_child(child).uncancellable.add(task.key)
        task.timer = asyncio.get_running_loop().call_later(
            self.other_tasks_grace_s, self.kill_child, child, reason, task
        )

    def _send_chunk(self, child: Child, assigned: ChildTasks, tasks: Sequence[InFlightTask]) -> None:
        loop = asyncio.get_running_loop()
        chunk = Chunk({task.key for task in tasks})
        has_to_wait = bool(assigned.tasks) and not self._runs_concurrently(assigned, tasks)
        if has_to_wait or len(tasks) > 1:  # a single task that need not wait begins at once: nothing to recall
            estimate_ms = sum(self._durations.for_task(task.row.task_name) or 0.0 for task in tasks)
            chunk.recall_timer = loop.call_later(recall_after_ms(estimate_ms) / 1000, child.recall)
        assigned.chunks.append(chunk)
        for task in tasks:
            task.child = child
            task.chunk = chunk
            task.phase = Phase.RUNNING
            task.began_at = None
            assigned.tasks[task.key] = task
            if not has_to_wait:
                self._start_timeout(task)
        child.run([task.assignment() for task in tasks])

    def _start_timeout(self, task: InFlightTask) -> None:
        """Start the timeout when the task is sent, or when it begins if it had to wait for another."""
        if task.timeout_ms is not None and task.timer is None:
            loop = asyncio.get_running_loop()
            task.timer = loop.call_later(task.timeout_ms / 1000, self.stop_task, task, KillReason.TIMEOUT)

    def _has_capacity(self, assigned: ChildTasks, tasks: Sequence[InFlightTask]) -> bool:
        """Whether a chunk fits: coroutines always run beside coroutines; other tasks may queue behind running chunks.

        Nothing queues behind long coroutines. Chunks of short tasks may be smaller, so more of them may queue.
        """
        if not assigned.tasks or self._runs_concurrently(assigned, tasks):
            return True
        is_blocked = self._is_all_async(assigned) and not self._is_short(assigned)
        are_short = all(estimate.share_ms <= CHUNK_MS for estimate in self._estimates(tasks))
        return len(assigned.chunks) < (MAX_SHORT_CHUNKS if are_short else MAX_CHUNKS) and not is_blocked

    def _is_all_async(self, assigned: ChildTasks) -> bool:
        return bool(assigned.tasks) and all(map(self.is_async, assigned.tasks.values()))

    def _is_short(self, assigned: ChildTasks) -> bool:
        return sum(map(self._expected_ms, assigned.tasks.values())) <= CHUNK_MS

    def _expected_ms(self, task: InFlightTask) -> float:
        """The estimated duration, or the time already run if that is longer; unknown tasks count as long."""
        run_ms = self._durations.for_task(task.row.task_name)
        if run_ms is None:
            return CHUNK_MS + 1
        if task.began_at is None:
            return run_ms
        return max(run_ms, (time.monotonic() - task.began_at) * 1000)

    def _runs_concurrently(self, assigned: ChildTasks, tasks: Iterable[InFlightTask]) -> bool:
        """Whether the new tasks would start at once, because all tasks, old and new, are coroutines."""
        return all(map(self.is_async, chain(assigned.tasks.values(), tasks)))

    def _estimates(self, tasks: Iterable[InFlightTask]) -> Iterator[TaskEstimate]:
        cache: dict[tuple[str, str, bool], TaskEstimate] = {}
        for task in tasks:
            task_name, queue_name, has_timeout = task.row.task_name, task.row.queue_name, task.timeout_ms is not None
            estimate = cache.get((task_name, queue_name, has_timeout))
            if estimate is None:
                estimate = cache[task_name, queue_name, has_timeout] = TaskEstimate(
                    run_ms=self._durations.for_task(task_name),
                    has_timeout=has_timeout,
                    is_capped=self._is_capped(queue_name),
                )
            yield estimate
