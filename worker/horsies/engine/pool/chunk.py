"""A chunk: claimed tasks that a child got in one command, from the command until each task is settled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from horsies.engine.pool.protocol import ProtocolError
from horsies.model.crash import KillReason
from horsies.store.claims import ClaimedRow

if TYPE_CHECKING:
    from horsies.engine.pool.child import Child


class TaskState(IntEnum):
    """Progress of one task of a chunk, in this order."""

    WAITING = 0
    """In the child, not begun."""
    RUNNING = 1
    """The child has reported its start."""
    OUT = 2
    """Recalled, stopped, or lost with the child: to be released, resolved or requeued."""
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
        """Whether its only task counts as begun before the child says so.

        Otherwise a task whose command kills the child while decoding it would never count as crashed: it would be
        released and sent again without end.
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
        """A task left the child's queue before it began."""
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
        # A task that already runs longer than expected may run on for as long again.
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
