"""Assignments: which child runs which chunk, with timeouts, recalls and stopped tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from uuid import UUID

from horsies.engine.in_flight import InFlight, InFlightTask, build_assignment, timeout_ms
from horsies.engine.pool.chunk import Chunk, ChunkTask
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
from horsies.store.claims import ClaimedRow

if TYPE_CHECKING:
    from horsies.engine.pool.child import Child

MAX_SHORT_CHUNKS: Final = MAX_CHUNKS * PARTS_PER_CHUNK
"""Like `MAX_CHUNKS`, for chunks of short tasks, which are sent in parts."""
CANCEL_GRACE_S: Final = 2.0
"""How long a cancelled coroutine may take to end before its child gets no more tasks."""
OTHER_TASKS_GRACE_S: Final = 10.0
"""How long the other tasks of that child may then continue before it is killed."""


@dataclass(slots=True, eq=False)
class ChildControl:
    """What this worker did to a child."""

    kill: Kill | None = None
    """Why this worker killed the child; None if it did not."""
    uncancellable: set[ChunkTask] = field(default_factory=set[ChunkTask])
    """Coroutines that did not end when they were cancelled."""


class Assignments:
    """Assigns tasks to children, and stops those that exceed their timeout."""

    def __init__(
        self,
        in_flight: InFlight,
        durations: DurationEstimates,
        *,
        max_chunk: int,
        is_async: Callable[[str], bool],
        is_capped: Callable[[str], bool],
    ) -> None:
        self._in_flight = in_flight
        self._durations = durations
        self._max_chunk = max_chunk
        self.is_async_task = is_async
        self._is_capped = is_capped
        self._controls: dict[Child, ChildControl] = {}
        self.other_tasks_grace_s = OTHER_TASKS_GRACE_S

    def accepts_work(self, child: Child) -> bool:
        """Whether the child takes tasks: not while a coroutine in it does not react to its cancellation."""
        control = self._controls.get(child)
        return child.accepts_work and not (control and control.uncancellable)

    def load(self, child: Child) -> ChildLoad:
        chunks = child.chunks
        return ChildLoad(
            tasks=child.tasks_in_child,
            chunks=len(chunks),
            is_all_async=self.runs_only_coroutines(child),
            is_short=len(chunks) < MAX_SHORT_CHUNKS and _is_short(chunks),
        )

    def is_async(self, row: ClaimedRow) -> bool:
        return self.is_async_task(row.task_name)

    def runs_only_coroutines(self, child: Child) -> bool:
        """Whether the child has coroutines and no functions."""
        chunks = child.chunks
        return bool(chunks) and all(chunk.is_async for chunk in chunks)

    def assign(self, child: Child, rows: Sequence[ClaimedRow], worker_id: UUID) -> Sequence[ClaimedRow]:
        """Send started tasks to a child in chunks; returns those it has no capacity for."""
        first = 0
        estimates = self._estimates(rows)
        for size in split_into_chunks(estimates, max_chunk=self._max_chunk):
            end = first + size
            chunk_rows = rows[first:end]
            are_short = all(estimate.share_ms <= CHUNK_MS for estimate in estimates[first:end])
            is_async = all(map(self.is_async, chunk_rows))
            if not self._has_capacity(child, is_async=is_async, are_short=are_short):
                break
            expected_ms = sum(_expected_ms(estimate) for estimate in estimates[first:end]) / size
            self._send(
                self._in_flight.add_chunk(child, chunk_rows, worker_id, is_async=is_async, expected_ms=expected_ms)
            )
            first = end
        return rows[first:]

    def on_began(self, chunk: Chunk, position: int) -> None:
        chunk.began_at = time.monotonic()
        self._start_timeout(chunk, position)
        reason = chunk.stop_reasons.get(position)
        if reason is not None and not self.is_async(chunk.rows[position]):
            self.kill_child(chunk.child, reason, chunk, position)  # it began before the recall arrived

    def on_out(self, chunk: Chunk, position: int) -> None:
        """A task left its child."""
        control = self._controls.get(chunk.child)
        if control is not None:
            control.uncancellable.discard(ChunkTask(chunk, position))

    def remove_child(self, child: Child) -> Kill | None:
        """Forget a child that has exited; returns why this worker killed it."""
        control = self._controls.pop(child, None)
        return control and control.kill

    def kill_child(self, child: Child, reason: KillReason, chunk: Chunk | None = None, position: int = 0) -> None:
        """Kill a child on purpose; the first reason is kept."""
        control = self._control(child)
        if control.kill is None:
            task_id = None if chunk is None else str(chunk.rows[position].id)
            control.kill = Kill(reason=reason, pid=child.pid, task_id=task_id)
            child.kill(str(reason))

    def stop_task(self, task: InFlightTask, reason: KillReason) -> None:
        """Stop one task: recall it if it has not begun, cancel a coroutine, or kill the child of a running function."""
        if task.chunk is not None and task.is_in_child:  # otherwise it has left the child already
            self._stop(task.chunk, task.position, reason)

    def _stop(self, chunk: Chunk, position: int, reason: KillReason) -> None:
        child, is_async = chunk.child, self.is_async(chunk.rows[position])
        chunk.cancel_timer(position)
        if not is_async and chunk.has_begun(position):
            self.kill_child(child, reason, chunk, position)
            return
        chunk.stop_reasons[position] = reason
        child.cancel(chunk, position)
        if is_async:
            loop = asyncio.get_running_loop()
            chunk.timers[position] = loop.call_later(CANCEL_GRACE_S, self._on_cancel_timeout, chunk, position, reason)

    def _on_cancel_timeout(self, chunk: Chunk, position: int, reason: KillReason) -> None:
        """The coroutine ignored its cancellation: kill the child, after a grace period for its other tasks."""
        self._control(chunk.child).uncancellable.add(ChunkTask(chunk, position))
        chunk.timers[position] = asyncio.get_running_loop().call_later(
            self.other_tasks_grace_s, self.kill_child, chunk.child, reason, chunk, position
        )

    def _send(self, chunk: Chunk) -> None:
        loop = asyncio.get_running_loop()
        child, size = chunk.child, len(chunk.rows)
        has_to_wait = not child.is_idle and not (chunk.is_async and self.runs_only_coroutines(child))
        if has_to_wait or size > 1:  # a single task that need not wait begins at once: nothing to recall
            recall_s = recall_after_ms(size * chunk.expected_ms) / 1000
            chunk.recall_timer = loop.call_later(recall_s, child.recall)
        if not has_to_wait:
            for position in range(size):
                self._start_timeout(chunk, position)
        child.run(chunk, [build_assignment(row, chunk.worker_id) for row in chunk.rows])

    def _start_timeout(self, chunk: Chunk, position: int) -> None:
        """Start the timeout when the task is sent, or when it begins if it had to wait for another."""
        limit_ms = timeout_ms(chunk.rows[position])
        if limit_ms is not None and position not in chunk.timers:
            loop = asyncio.get_running_loop()
            chunk.timers[position] = loop.call_later(limit_ms / 1000, self._stop, chunk, position, KillReason.TIMEOUT)

    def _has_capacity(self, child: Child, *, is_async: bool, are_short: bool) -> bool:
        """Whether a chunk fits: coroutines always run beside coroutines; other tasks may queue behind running chunks.

        Nothing queues behind long coroutines. Chunks of short tasks may be smaller, so more of them may queue.
        """
        chunks = child.chunks
        is_all_async = self.runs_only_coroutines(child)
        if not chunks or (is_all_async and is_async):
            return True
        is_blocked = is_all_async and not _is_short(chunks)
        return len(chunks) < (MAX_SHORT_CHUNKS if are_short else MAX_CHUNKS) and not is_blocked

    def _estimates(self, rows: Iterable[ClaimedRow]) -> list[TaskEstimate]:
        cache: dict[tuple[str, str, str], TaskEstimate] = {}
        estimates: list[TaskEstimate] = []
        for row in rows:
            kind = (row.task_name, row.queue_name, row.task_options)
            estimate = cache.get(kind)
            if estimate is None:
                estimate = cache[kind] = TaskEstimate(
                    run_ms=self._durations.for_task(row.task_name),
                    has_timeout=timeout_ms(row) is not None,
                    is_capped=self._is_capped(row.queue_name),
                )
            estimates.append(estimate)
        return estimates

    def _control(self, child: Child) -> ChildControl:
        return self._controls.setdefault(child, ChildControl())


def _is_short(chunks: Iterable[Chunk]) -> bool:
    now = time.monotonic()
    return sum(chunk.remaining_ms(now) for chunk in chunks) <= CHUNK_MS


def _expected_ms(estimate: TaskEstimate) -> float:
    """Tasks that never ran count as long."""
    return CHUNK_MS + 1 if estimate.run_ms is None else estimate.run_ms
