"""Tasks in flight: claimed by this worker and not settled; their chunks, and their assignment to children."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from horsies.engine.pool.protocol import AttemptKey, ProtocolError, TaskDetails, parse_details
from horsies.model.capacity import (
    MAX_CHUNKS,
    UNKNOWN_MS,
    ChildLoad,
    ClaimLimits,
    DurationEstimates,
    recall_after_ms,
    select_for_child,
)
from horsies.model.retry import AttemptState, Cancel, Cause, Fail, Kill, KillReason, Retry, decide_retry, stored_policy
from horsies.store.claims import ClaimedRow, ClaimRef

if TYPE_CHECKING:
    from horsies.engine.pool.child import Child

CANCEL_GRACE_S: Final = 2.0
"""How long a cancelled coroutine may take to end before its child gets no more tasks."""
OTHER_TASKS_GRACE_S: Final = 10.0
"""How long the other tasks of a child may continue before it is killed for a coroutine that ignored cancellation."""


class TaskState(IntEnum):
    """Progress of one task of a chunk, in this order."""

    WAITING = 0
    """In the child, not begun."""
    BEGUN = 1
    """The child has reported its start."""
    OUT = 2
    """Has left the child: ended, recalled, or lost with it. Its outcome, release or requeue follows."""
    STORING = 3
    """Ended; its outcome is not stored yet."""
    SETTLED = 4
    """Stored, released, or no longer owned by this worker: not in flight any more."""


# As plain numbers, which compare faster: every task passes through all of them.
_WAITING, _BEGUN, _OUT, _STORING, _SETTLED = map(int, TaskState)


class Chunk:
    """Tasks sent to a child together, each known by its position; raises ProtocolError for impossible reports."""

    __slots__ = (
        "began_at",
        "child",
        "coroutines",
        "expected_ms",
        "in_child",
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
        coroutines: int = 0,
        expected_ms: float = 0.0,
    ) -> None:
        self.number = number
        self.rows = rows
        self.worker_id = worker_id
        self.child = child
        self.coroutines = coroutines
        """How many of its tasks are coroutines."""
        self.expected_ms = expected_ms
        """Estimated run time of one task, on average."""
        self.states = bytearray(len(rows))
        """The `TaskState` of each task; a bytearray, because every task changes it several times."""
        self.in_child = self.unsettled = len(rows)
        """How many of its tasks are in the child, and how many are in flight."""
        self.began_at: float | None = None
        """When its latest task began."""
        self.recall_timer: asyncio.TimerHandle | None = None
        """Recalls all waiting tasks of the child if this chunk takes much longer than expected."""
        self.timers: dict[int, asyncio.TimerHandle] = {}
        """By position: the timeout of a task, or the time it has left to react to its cancellation."""
        self.stop_reasons: dict[int, KillReason] = {}
        """By position: why a task was stopped, which decides its outcome."""

    def begin(self, position: int) -> None:
        # Negative positions would count from the end.
        if not 0 <= position < len(self.states) or self.states[position] != _WAITING:
            raise self._unexpected("start", position)
        self.states[position] = _BEGUN

    def end(self, position: int) -> None:
        if not 0 <= position < len(self.states) or self.states[position] != _BEGUN:
            raise self._unexpected("end", position)
        self.states[position] = _OUT
        self._count_out(position)

    def recall(self, position: int) -> None:
        """Take out a task that left the child's queue before it began."""
        if not 0 <= position < len(self.states) or self.states[position] != _WAITING:
            raise self._unexpected("recall", position)
        self.states[position] = _OUT
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

    @property
    def is_async(self) -> bool:
        """Whether all its tasks are coroutines."""
        return self.coroutines == len(self.rows)

    def has_begun(self, position: int) -> bool:
        """Whether the task is in the child and has begun, which the child reports before it decodes the arguments."""
        return self.states[position] == _BEGUN

    def is_in_child(self, position: int) -> bool:
        return self.states[position] < _OUT

    def is_out(self, position: int) -> bool:
        """Whether the task has left the child and is neither stored nor settled yet."""
        return self.states[position] == _OUT

    def remaining(self) -> list[int]:
        """The tasks in the child, in the order sent."""
        return [position for position, state in enumerate(self.states) if state < _OUT]

    def remaining_ms(self, now: float) -> float:
        """Estimated time until the child is done with the chunk."""
        expected_ms = self.in_child * self.expected_ms
        if self.began_at is None:
            return expected_ms
        # A task that has exceeded its estimate is expected to take as long again as it is late.
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

    def _unexpected(self, step: str, position: int) -> ProtocolError:
        return ProtocolError(f"unexpected report about task {position} of chunk {self.number}: {step}")


class ChunkTask(NamedTuple):
    """One task of a chunk."""

    chunk: Chunk
    position: int


class CompletedTask(NamedTuple):
    """A task of a chunk that its child completed, with the document to store."""

    chunk: Chunk
    position: int
    document: str
    run_ms: float


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
        return self.details.timeout_ms

    @property
    def details(self) -> TaskDetails:
        return parse_details(self.row.details)

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
        details = self.details
        state = AttemptState(
            policy=stored_policy(details.task_options),
            retry_count=details.retry_count,
            crash_count=details.crash_count,
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
        self, child: Child, rows: Sequence[ClaimedRow], worker_id: UUID, *, coroutines: int, expected_ms: float
    ) -> Chunk:
        """Add started tasks that are about to be sent to a child."""
        chunk = Chunk(next(self._numbers), rows, worker_id, child, coroutines=coroutines, expected_ms=expected_ms)
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
        """Whether any started task has no outcome yet and is not yet released."""
        in_chunks = any(min(chunk.states) < TaskState.STORING for chunk in self.chunks.values())
        return in_chunks or bool(self.unassigned)

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
        async_tasks: Collection[str],
        limits: ClaimLimits,
    ) -> None:
        self._in_flight = in_flight
        self._durations = durations
        self._async_tasks = async_tasks
        self._limits = limits
        self._controls: dict[Child, ChildControl] = {}
        self.other_tasks_grace_s = OTHER_TASKS_GRACE_S

    def accepts_work(self, child: Child) -> bool:
        """Whether the child takes tasks: not while a coroutine in it does not react to its cancellation."""
        control = self._controls.get(child)
        return child.accepts_work and not (control and control.uncancellable)

    def load(self, child: Child) -> ChildLoad:
        chunks, now = child.chunks, time.monotonic()
        if not chunks:
            return ChildLoad(pid=child.pid)
        return ChildLoad(
            pid=child.pid,
            tasks=child.tasks_in_child,
            remaining_ms=sum(chunk.remaining_ms(now) for chunk in chunks),
            has_coroutines=any(chunk.coroutines for chunk in chunks),
            has_functions=not all(chunk.is_async for chunk in chunks),
        )

    def is_async(self, row: ClaimedRow) -> bool:
        return row.task_name in self._async_tasks

    def assign(self, child: Child, rows: Sequence[ClaimedRow], worker_id: UUID) -> Sequence[ClaimedRow]:
        """Send started tasks to a child as one chunk; returns those it has no capacity for."""
        load = self.load(child)
        joining: list[int] = []
        if load.runs_only_coroutines:  # more of them can join, however long they take
            joining = [index for index, row in enumerate(rows) if self.is_async(row)]
            del joining[max(0, self._limits.async_concurrency - load.tasks) :]
        others = [index for index in range(len(rows)) if index not in joining] if joining else range(len(rows))
        run_times = [self._durations.for_task(rows[index].task_name) for index in others]
        selected = select_for_child(load, run_times, most=MAX_CHUNKS * self._limits.max_chunk)
        taken = [*joining, *(others[index] for index in selected)]
        if taken:
            self._send(child, [rows[index] for index in taken], worker_id)
        if len(taken) == len(rows):
            return ()
        left = set(range(len(rows))).difference(taken)
        return [rows[index] for index in sorted(left)]

    def observe(self, row: ClaimedRow, run_ms: float) -> None:
        """Record how long a task ran; a coroutine shares its child with others."""
        if row.task_name in self._async_tasks:
            run_ms /= self._limits.async_concurrency
        self._durations.observe(task_name=row.task_name, queue_name=row.queue_name, run_ms=run_ms)

    def on_began(self, began: Iterable[tuple[Chunk, int]]) -> None:
        now = time.monotonic()
        for chunk, position in began:
            chunk.began_at = now
            if chunk.rows[position].details is None and not chunk.stop_reasons:
                continue
            if not chunk.is_in_child(position):  # it has ended meanwhile
                continue
            self._start_timeout(chunk, position)
            reason = chunk.stop_reasons.get(position)
            if reason is not None and not self.is_async(chunk.rows[position]):
                self.kill_child(chunk.child, reason, chunk, position)  # it began before the recall arrived

    def on_out(self, chunk: Chunk, position: int) -> None:
        """A task left its child."""
        if self._controls and (control := self._controls.get(chunk.child)) is not None:
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

    def is_stopping(self, task: InFlightTask) -> bool:
        """Whether the task was stopped, or its child is being killed, and it has not left the child yet."""
        if task.chunk is None:
            return False
        control = self._controls.get(task.chunk.child)
        return task.position in task.chunk.stop_reasons or (control is not None and control.kill is not None)

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

    def _send(self, child: Child, rows: Sequence[ClaimedRow], worker_id: UUID) -> None:
        estimates = [UNKNOWN_MS if (ms := self._durations.for_task(row.task_name)) is None else ms for row in rows]
        coroutines = sum(map(self.is_async, rows)) if self._async_tasks else 0
        chunk = self._in_flight.add_chunk(
            child, rows, worker_id, coroutines=coroutines, expected_ms=sum(estimates) / len(rows)
        )
        if chunk.is_async and all(other.is_async for other in child.chunks):
            free_slots = max(0, self._limits.async_concurrency - child.tasks_in_child)
        else:
            free_slots = int(child.is_idle)
        if not free_slots or len(rows) > 1:  # a single task that need not wait begins at once: nothing to recall
            recall_s = recall_after_ms(sum(estimates)) / 1000
            chunk.recall_timer = asyncio.get_running_loop().call_later(recall_s, child.recall)
        # Those that wait behind others get their timeout when they begin.
        for position in range(min(free_slots, len(rows))):
            self._start_timeout(chunk, position)
        child.run(chunk)

    def _start_timeout(self, chunk: Chunk, position: int) -> None:
        limit_ms = parse_details(chunk.rows[position].details).timeout_ms
        if limit_ms is not None and position not in chunk.timers:
            loop = asyncio.get_running_loop()
            chunk.timers[position] = loop.call_later(limit_ms / 1000, self._stop, chunk, position, KillReason.TIMEOUT)

    def _control(self, child: Child) -> ChildControl:
        return self._controls.setdefault(child, ChildControl())
