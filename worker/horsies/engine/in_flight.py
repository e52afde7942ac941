"""Tasks in flight: those this worker has claimed and not settled, their chunks, and their assignment to children."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from uuid import UUID

from horsies.engine.pool.protocol import Assignment, AttemptKey, ProtocolError
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
"""Like `MAX_CHUNKS`, for short tasks: each of their chunks is sent in `PARTS_PER_CHUNK` parts."""
CANCEL_GRACE_S: Final = 2.0
"""How long a cancelled coroutine may take to end before its child gets no more tasks."""
OTHER_TASKS_GRACE_S: Final = 10.0
"""How long a child with a coroutine that ignored its cancellation may continue its other tasks until it is killed."""

_NO_OPTIONS: dict[str, Any] = {}
_NO_FLAGS: dict[str, bool] = {}
_cached_str = lru_cache(maxsize=16)(str)  # worker ids: few distinct values, formatted for every assignment


class TaskState(IntEnum):
    """Progress of one task of a chunk, in this order."""

    WAITING = 0
    """In the child, not begun."""
    RUNNING = 1
    """The child has reported its start."""
    OUT = 2
    """Has left the child: ended, recalled, or lost with it. Its outcome, release or requeue follows."""
    STORING = 3
    """Ended; its outcome is not stored yet."""
    SETTLED = 4
    """Stored, released or lost: not in flight any more."""


_WAITING, _RUNNING, _OUT, _STORING, _SETTLED = TaskState


class Chunk:
    """Tasks sent to a child together, each known by its position; raises ProtocolError for impossible reports."""

    __slots__ = (
        "began_at",
        "begins_at_once",
        "child",
        "expected_ms",
        "in_child",
        "is_async",
        "number",
        "recall_timer",
        "rows",
        "states",
        "stop_reasons",
        "timers",
        "unsettled",
        "worker_id",
    )

    def __init__(
        self,
        number: int,
        rows: Sequence[ClaimedRow],
        worker_id: UUID,
        child: Child,
        *,
        is_async: bool = False,
        expected_ms: float = 0.0,
    ) -> None:
        self.number = number
        self.rows = rows
        self.worker_id = worker_id
        self.child = child
        self.is_async = is_async
        """Whether all its tasks are coroutines."""
        self.expected_ms = expected_ms
        """Estimated run time of one task, on average."""
        self.states = bytearray(len(rows))
        """The `TaskState` of each task; a bytearray, because every task changes it several times."""
        self.in_child = self.unsettled = len(rows)
        self.began_at: float | None = None
        """When its latest task began."""
        self.begins_at_once = False
        """Whether its only task counts as begun before the child reports the start.

        Otherwise a task that kills the child while its command is decoded would never count as crashed: it would be
        released and sent again forever.
        """
        self.recall_timer: asyncio.TimerHandle | None = None
        """Recalls the waiting tasks if the chunk takes much longer than expected."""
        self.timers: dict[int, asyncio.TimerHandle] = {}
        """By position: the timeout of a task, or the time it has left to react to its cancellation."""
        self.stop_reasons: dict[int, KillReason] = {}
        """By position: why a task was stopped, which decides its outcome."""

    def begin(self, position: int) -> None:
        self._change(position, _WAITING, _RUNNING)

    def end(self, position: int) -> None:
        self._change(position, _RUNNING, _OUT)
        self._count_out(position)

    def recall(self, position: int) -> None:
        """Take out a task that left the child's queue before it began."""
        self._change(position, _WAITING, _OUT)
        self._count_out(position)

    def lose(self) -> None:
        """Take out what is left, because the child is gone."""
        for position in self.remaining():
            self.states[position] = _OUT
            self._count_out(position)

    def settle(self, position: int) -> None:
        if self.states[position] != _SETTLED:
            self.states[position] = _SETTLED
            self.unsettled -= 1

    def has_begun(self, position: int) -> bool:
        """Whether code of a task in the child may have run."""
        return self.states[position] == _RUNNING or self.begins_at_once

    def is_in_child(self, position: int) -> bool:
        return self.states[position] < _OUT

    def remaining(self) -> list[int]:
        """The tasks in the child, in the order sent."""
        return [position for position, state in enumerate(self.states) if state < _OUT]

    def remaining_ms(self, now: float) -> float:
        """Estimated time until the child is done with the chunk."""
        expected_ms = self.in_child * self.expected_ms
        if self.began_at is None:
            return expected_ms
        # A task that has overrun its estimate is expected to run on for as long as it has overrun.
        return expected_ms + max(0.0, 1000 * (now - self.began_at) - self.expected_ms)

    def cancel_timer(self, position: int) -> None:
        if (timer := self.timers.pop(position, None)) is not None:
            timer.cancel()

    def _count_out(self, position: int) -> None:
        self.in_child -= 1
        if self.timers:
            self.cancel_timer(position)
        if not self.in_child and self.recall_timer is not None:
            self.recall_timer.cancel()

    def _change(self, position: int, source: TaskState, target: TaskState) -> None:
        # Negative positions would count from the end.
        if not 0 <= position < len(self.states) or self.states[position] != source:
            raise ProtocolError(f"unexpected report about task {position} of chunk {self.number}: {target.name}")
        self.states[position] = target


class ChunkTask(NamedTuple):
    """One task of a chunk."""

    chunk: Chunk
    position: int


class InFlightTask(NamedTuple):
    """One claimed task; created only where a single task is handled, because a chunk tracks its tasks by position."""

    row: ClaimedRow
    worker_id: UUID
    chunk: Chunk | None = None
    """None while the task is prefetched: CLAIMED in the database and waiting for a free slot."""
    position: int = 0

    @property
    def claim(self) -> ClaimRef:
        return ClaimRef(self.row.id, self.row.claim_token, self.worker_id)

    @property
    def key(self) -> AttemptKey:
        return AttemptKey(str(self.row.id), self.row.claim_token)

    @property
    def timeout_ms(self) -> int | None:
        return timeout_ms(self.row)

    @property
    def pid(self) -> int | None:
        """The child that has or had the task."""
        return None if self.chunk is None else self.chunk.child.pid

    def decide_retry(self, cause: Cause, *, max_crashes: int | None = None) -> float | Fail | Cancel:
        """Return the delay in seconds until the task is retried, or why it is not.

        The statement that stores the outcome adds the delay to the database time. It also checks `good_until`, by the
        same clock, and whether the workflow was paused or cancelled meanwhile.
        """
        now = datetime.now(UTC)  # any time would do: only the difference is used
        state = AttemptState(
            policy=stored_policy(parse_options(self.row.task_options)),
            retry_count=self.row.retry_count,
            crash_count=self.row.crash_count,
            max_crashes=max_crashes,
        )
        decision = decide_retry(state, cause, now=now, jitter=random.random())  # noqa: S311  # jitter, not security
        return (decision.at - now).total_seconds() if isinstance(decision, Retry) else decision

    @property
    def is_in_child(self) -> bool:
        return self.chunk is not None and self.chunk.is_in_child(self.position)

    @property
    def is_storing(self) -> bool:
        return self.chunk is not None and self.chunk.states[self.position] == TaskState.STORING


class InFlight:
    """All tasks in flight: those in chunks by the number of the chunk, the others by id and claim token."""

    def __init__(self) -> None:
        self.prefetched: dict[tuple[UUID, int], InFlightTask] = {}
        """CLAIMED; they wait for a free slot."""
        self.unassigned: dict[tuple[UUID, int], InFlightTask] = {}
        """RUNNING, but no child could take them; to be released."""
        self.chunks: dict[int, Chunk] = {}
        self._numbers = count()

    def add_prefetched(self, row: ClaimedRow, worker_id: UUID) -> None:
        self.prefetched[row.id, row.claim_token] = InFlightTask(row, worker_id)

    def add_unassigned(self, rows: Iterable[ClaimedRow], worker_id: UUID) -> list[InFlightTask]:
        tasks = [InFlightTask(row, worker_id) for row in rows]
        self.unassigned.update(((task.row.id, task.row.claim_token), task) for task in tasks)
        return tasks

    def add_chunk(
        self, child: Child, rows: Sequence[ClaimedRow], worker_id: UUID, *, is_async: bool, expected_ms: float
    ) -> Chunk:
        """Add started tasks that are about to be sent to a child."""
        chunk = Chunk(next(self._numbers), rows, worker_id, child, is_async=is_async, expected_ms=expected_ms)
        self.chunks[chunk.number] = chunk
        return chunk

    def settle(self, task: InFlightTask) -> None:
        """Forget a task that is stored, released or lost; its heartbeats end."""
        if task.chunk is None:
            key = (task.row.id, task.row.claim_token)
            self.prefetched.pop(key, None)
            self.unassigned.pop(key, None)
        else:
            self.settle_in_chunk(task.chunk, task.position)

    def settle_in_chunk(self, chunk: Chunk, position: int) -> None:
        chunk.settle(position)
        if not chunk.unsettled:
            self.chunks.pop(chunk.number, None)

    def __iter__(self) -> Iterator[InFlightTask]:
        yield from tuple(self.prefetched.values())
        yield from self.started()

    def started(self) -> Iterator[InFlightTask]:
        """The tasks that are RUNNING in the database, or whose outcome is being stored."""
        yield from tuple(self.unassigned.values())
        for chunk in tuple(self.chunks.values()):
            for position, state in enumerate(chunk.states):
                if state != TaskState.SETTLED:
                    yield InFlightTask(chunk.rows[position], chunk.worker_id, chunk, position)

    @property
    def is_running(self) -> bool:
        """Whether any task is in a child, or left it without an outcome and is not yet released or resolved."""
        in_chunks = any(min(chunk.states) < TaskState.STORING for chunk in self.chunks.values())
        return in_chunks or bool(self.unassigned)

    def count_running(self) -> int:
        in_chunks = sum(state < TaskState.STORING for chunk in self.chunks.values() for state in chunk.states)
        return in_chunks + len(self.unassigned)

    def count_started(self) -> int:
        return sum(chunk.unsettled for chunk in self.chunks.values()) + len(self.unassigned)


# Assignments to children


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


def build_assignment(row: ClaimedRow, worker_id: UUID) -> Assignment:
    """The command to run a claimed task."""
    context = TaskContext(
        task_id=str(row.id),
        task_name=row.task_name,
        queue_name=row.queue_name,
        attempt=row.attempts + 1,
        retry_count=row.retry_count,
        claim_token=row.claim_token,
        sent_at=row.sent_at,
        good_until=row.good_until,
        timeout_ms=timeout_ms(row),
        worker_id=_cached_str(worker_id),
        flags=_NO_FLAGS if row.flags == "{}" else _parse_flags(row.flags),
        possible_overlap=row.overlap_possible,
    )
    return Assignment(
        task=context,
        args=row.args.encode(),
        kwargs=row.kwargs.encode(),
        workflow_context=None if row.context is None else row.context.encode(),
    )


def timeout_ms(row: ClaimedRow) -> int | None:
    return None if row.task_options == "{}" else parse_options(row.task_options).get("timeout_ms")


@lru_cache(maxsize=256)  # all sends of a task store the same options
def parse_options(stored: str) -> dict[str, Any]:
    return json.loads(stored) if stored != "{}" else _NO_OPTIONS


def _parse_flags(stored: str) -> dict[str, bool]:
    """Parse stored flags as booleans: other programs may have stored other values, which a child would reject."""
    flags: object = json.loads(stored)
    return {name: bool(value) for name, value in cast("Any", flags).items()} if isinstance(flags, dict) else {}
