"""What a worker has in its hands, from the claim until the outcome is stored."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final
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
from horsies.model.retry import RetryPolicy
from horsies.store.claims import ClaimedRow, ClaimRef

if TYPE_CHECKING:
    from horsies.engine.pool.child import Child


_NO_OPTIONS: dict[str, Any] = {}

_cached_str = lru_cache(maxsize=16)(str)
"""The id of a worker as text; there are few, and each task is handed over with one."""


class Phase(Enum):
    """How far a held task has come."""

    CLAIMED = "waiting"
    """CLAIMED, for a place that is not free yet."""
    RUNNING = "handed"
    """RUNNING, in the hands of a child."""
    STORING = "storing"
    """Ended, and its outcome on the way into the database."""


class InFlightTask:
    """One attempt in this worker's hands."""

    __slots__ = ("began_at", "child", "chunk", "claim", "key", "options", "phase", "row", "stop_reason", "timer")

    def __init__(self, row: ClaimedRow, worker_id: UUID, phase: Phase) -> None:
        self.row = row
        self.claim = ClaimRef(row.id, row.claim_token, worker_id)
        self.key = AttemptKey(str(row.id), row.claim_token)
        self.phase = phase
        self.child: Child | None = None
        self.chunk: Chunk | None = None
        """What it was handed over with, last."""
        self.began_at: float | None = None
        self.timer: asyncio.TimerHandle | None = None
        """Rings when its time is over."""
        self.stop_reason: KillReason | None = None
        """Why it was told to stop, which is then what became of it."""
        self.options: dict[str, Any] = json.loads(row.task_options) if row.task_options != "{}" else _NO_OPTIONS

    @property
    def timeout_ms(self) -> int | None:
        return self.options.get("timeout_ms")

    @property
    def retry_policy(self) -> RetryPolicy | None:
        """The policy that travels with the task; one that no longer makes sense is none."""
        stored = self.options.get("retry_policy")
        try:
            return None if stored is None else RetryPolicy.model_validate(stored)
        except ValueError:
            return None

    def cancel_timer(self) -> None:
        """Its time no longer counts."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def assignment(self) -> Assignment:
        row = self.row
        return Assignment(
            task_id=self.key.task_id,
            claim_token=row.claim_token,
            task_name=row.task_name,
            args=row.args.encode(),
            kwargs=row.kwargs.encode(),
            context=None if row.context is None else row.context.encode(),
            queue_name=row.queue_name,
            attempt=row.attempts + 1,
            retry_count=row.retry_count,
            sent_at=row.sent_at,
            good_until=row.good_until,
            timeout_ms=self.timeout_ms,
            worker_id=_cached_str(self.claim.worker_id),
            flags=row.flags.encode(),
            possible_overlap=row.overlap_possible,
        )


class InFlight:
    """Every attempt that this worker holds, by its key."""

    def __init__(self) -> None:
        self._held: dict[AttemptKey, InFlightTask] = {}
        self._emptied = asyncio.Event()
        self._emptied.set()

    def add(self, row: ClaimedRow, worker_id: UUID, phase: Phase) -> InFlightTask:
        held = InFlightTask(row, worker_id, phase)
        self._held[held.key] = held
        self._emptied.clear()
        return held

    def get(self, key: AttemptKey) -> InFlightTask | None:
        return self._held.get(key)

    def remove(self, held: InFlightTask) -> None:
        """It is stored, given back or lost: no longer ours to speak for."""
        held.cancel_timer()
        self._held.pop(held.key, None)
        if not self._held:
            self._emptied.set()

    def in_phase(self, *phases: Phase) -> list[InFlightTask]:
        return [held for held in self._held.values() if held.phase in phases]

    def holds(self, key: AttemptKey) -> bool:
        return key in self._held

    def owners(self) -> set[UUID]:
        return {held.claim.worker_id for held in self._held.values()}

    async def until_empty(self) -> None:
        await self._emptied.wait()

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[InFlightTask]:
        return iter(tuple(self._held.values()))


def in_child(helds: Iterable[InFlightTask], child: Child) -> list[InFlightTask]:
    return [held for held in helds if held.child is child]


# Handing tasks to children and taking them back: chunks, time-outs, recalls.

MAX_SHORT_CHUNKS: Final = MAX_CHUNKS * PARTS_PER_CHUNK
CANCEL_GRACE_S: Final = 2.0
"""How long a cancelled coroutine may take to go before its child gets no more work."""
OTHER_TASKS_GRACE_S: Final = 10.0
"""How long its neighbours may then go on before the child is killed."""

logger = logging.getLogger("horsies.worker")


@dataclass(slots=True, eq=False)
class Chunk:
    """Tasks that were handed over together, and the alarm that calls back what they have not begun."""

    keys: set[object]
    recall_timer: asyncio.TimerHandle | None = None

    def remove(self, key: object) -> bool:
        """One of them is out of the child's hands; whether it was the last."""
        self.keys.discard(key)
        if not self.keys and self.recall_timer is not None:
            self.recall_timer.cancel()
        return not self.keys


@dataclass(slots=True, eq=False)
class ChildTasks:
    """What one child has from us."""

    tasks: dict[object, InFlightTask] = field(default_factory=dict["object", "InFlightTask"])
    chunks: list[Chunk] = field(default_factory=list[Chunk])
    kill: Kill | None = None
    """What we have decided about it."""
    uncancellable: set[object] = field(default_factory=set["object"])
    """Coroutines that have not gone when they were cancelled."""

    @property
    def is_closed(self) -> bool:
        """It gets no more work until the stubborn ones have gone."""
        return bool(self.uncancellable)


class Assignments:
    """Every child's occupancy; hands over, and watches the clock of what was handed over."""

    def __init__(
        self, times: DurationEstimates, *, is_async: Callable[[str], bool], is_capped: Callable[[str], bool]
    ) -> None:
        self._times = times
        self.is_async_task = is_async
        self._is_capped = is_capped
        self._by_child: dict[Child, ChildTasks] = {}
        self.max_chunk = 1
        self.other_tasks_grace_s = OTHER_TASKS_GRACE_S

    def for_child(self, child: Child) -> ChildTasks:
        occupancy = self._by_child.get(child)
        if occupancy is None:
            occupancy = self._by_child[child] = ChildTasks()
        return occupancy

    def remove_child(self, child: Child) -> ChildTasks:
        """The child is gone; returns what it had."""
        occupancy = self._by_child.pop(child, ChildTasks())
        for chunk in occupancy.chunks:
            if chunk.recall_timer is not None:
                chunk.recall_timer.cancel()
        return occupancy

    def load(self, child: Child) -> ChildLoad:
        occupancy = self.for_child(child)
        chunks = len(occupancy.chunks)
        return ChildLoad(
            tasks=len(occupancy.tasks),
            chunks=chunks,
            is_all_async=self._is_all_async(occupancy),
            # Where nothing fits any more, nobody needs to look at every task.
            is_short=chunks < MAX_SHORT_CHUNKS and self._is_short(occupancy),
        )

    def is_async(self, held: InFlightTask) -> bool:
        return self.is_async_task(held.row.task_name)

    def runs_only_coroutines(self, child: Child) -> bool:
        """Whether it has coroutines in hand and nothing else."""
        return self._is_all_async(self.for_child(child))

    def assign(self, child: Child, helds: Sequence[InFlightTask]) -> list[InFlightTask]:
        """Hand tasks to a child, cut into chunks; returns those for which it has no room after all."""
        occupancy = self.for_child(child)
        sizes = split_into_chunks(self._estimates(helds), max_chunk=self.max_chunk)
        start = 0
        for size in sizes:
            part = helds[start : start + size]
            if not self._has_capacity(occupancy, part):
                break
            self._send_chunk(child, occupancy, part)
            start += size
        return list(helds[start:])

    def on_began(self, child: Child, key: object) -> None:
        if held := self.for_child(child).tasks.get(key):
            held.began_at = time.monotonic()
            self._start_timeout(held)
            if held.stop_reason is not None and not self.is_async(held):
                self.kill_child(child, held.stop_reason, held)  # it was to be taken back, and began first

    def remove(self, child: Child, key: object) -> InFlightTask | None:
        """A task is out of the child's hands."""
        occupancy = self.for_child(child)
        held = occupancy.tasks.pop(key, None)
        if held is None:
            return None
        if held.chunk is not None and held.chunk.remove(key):
            occupancy.chunks.remove(held.chunk)
        if occupancy.uncancellable:
            occupancy.uncancellable.discard(key)
        held.cancel_timer()
        return held

    def record_duration(self, held: InFlightTask, run_ms: float | None) -> None:
        """Remember how long a task took."""
        if run_ms is not None:
            self._times.observe(task_name=held.row.task_name, queue_name=held.row.queue_name, run_ms=run_ms)

    def kill_child(self, child: Child, reason: KillReason, held: InFlightTask | None) -> None:
        """Kill a child on purpose; the first decision stands."""
        occupancy = self.for_child(child)
        if occupancy.kill is None:
            occupancy.kill = Kill(reason=reason, pid=child.pid, task_id=held.key.task_id if held else None)
            child.kill(str(reason))

    def stop_task(self, held: InFlightTask, reason: KillReason) -> None:
        """End one task: taken back unbegun, a coroutine by itself if it goes, a function together with its child."""
        child, is_async = held.child, self.is_async(held)
        if child is None or held.key not in self.for_child(child).tasks:
            return  # out of its hands already
        held.cancel_timer()
        if not is_async and held.key not in child.unbegun:
            self.kill_child(child, reason, held)
            return
        held.stop_reason = reason
        child.cancel(held.key)
        if is_async:
            loop = asyncio.get_running_loop()
            held.timer = loop.call_later(CANCEL_GRACE_S, self._on_cancel_timeout, child, held, reason)

    def _on_cancel_timeout(self, child: Child, held: InFlightTask, reason: KillReason) -> None:
        """The coroutine is still there: let its neighbours finish for a while, then kill the child."""
        self.for_child(child).uncancellable.add(held.key)
        held.timer = asyncio.get_running_loop().call_later(
            self.other_tasks_grace_s, self.kill_child, child, reason, held
        )

    def _send_chunk(self, child: Child, occupancy: ChildTasks, helds: Sequence[InFlightTask]) -> None:
        loop = asyncio.get_running_loop()
        chunk = Chunk({held.key for held in helds})
        has_to_wait = bool(occupancy.tasks) and not self._runs_concurrently(occupancy, helds)
        if has_to_wait or len(helds) > 1:
            estimate_ms = sum(self._times.for_task(held.row.task_name) or 0.0 for held in helds)
            chunk.recall_timer = loop.call_later(recall_after_ms(estimate_ms) / 1000, child.recall)
        occupancy.chunks.append(chunk)
        for held in helds:
            held.child = child
            held.chunk = chunk
            held.phase = Phase.RUNNING
            held.began_at = None
            occupancy.tasks[held.key] = held
            if not has_to_wait:
                self._start_timeout(held)
        child.run([held.assignment() for held in helds])

    def _start_timeout(self, held: InFlightTask) -> None:
        """Its timeout counts from the hand-over, or from its start where it had to wait for another."""
        if held.timeout_ms is not None and held.timer is None:
            loop = asyncio.get_running_loop()
            held.timer = loop.call_later(held.timeout_ms / 1000, self.stop_task, held, KillReason.TIMEOUT)

    def _expected_ms(self, held: InFlightTask) -> float:
        """By experience; one that takes longer than that is not thought short any more."""
        run_ms = self._times.for_task(held.row.task_name)
        if run_ms is None:
            return CHUNK_MS + 1
        if held.began_at is None:
            return run_ms
        return max(run_ms, (time.monotonic() - held.began_at) * 1000)

    def _has_capacity(self, occupancy: ChildTasks, helds: Sequence[InFlightTask]) -> bool:
        """For coroutines beside others; for the rest behind one chunk, if it is not of coroutines that take long.

        A chunk of short ones may come in portions, and so may the one behind it.
        """
        if not occupancy.tasks or self._runs_concurrently(occupancy, helds):
            return True
        is_held_up = self._is_all_async(occupancy) and not self._is_short(occupancy)
        are_short = all(each.share_ms <= CHUNK_MS for each in self._estimates(helds))
        return len(occupancy.chunks) < (MAX_SHORT_CHUNKS if are_short else MAX_CHUNKS) and not is_held_up

    def _is_all_async(self, occupancy: ChildTasks) -> bool:
        return bool(occupancy.tasks) and all(map(self.is_async, occupancy.tasks.values()))

    def _is_short(self, occupancy: ChildTasks) -> bool:
        return sum(map(self._expected_ms, occupancy.tasks.values())) <= CHUNK_MS

    def _runs_concurrently(self, occupancy: ChildTasks, helds: Iterable[InFlightTask]) -> bool:
        """Coroutines run side by side; nothing waits behind them."""
        return all(map(self.is_async, chain(occupancy.tasks.values(), helds)))

    def _estimates(self, helds: Iterable[InFlightTask]) -> Iterator[TaskEstimate]:
        known: dict[tuple[str, str, bool], TaskEstimate] = {}
        for held in helds:
            kind = held.row.task_name, held.row.queue_name, held.timeout_ms is not None
            prospect = known.get(kind)
            if prospect is None:
                prospect = known[kind] = self._estimate(*kind)
            yield prospect

    def _estimate(self, task_name: str, queue_name: str, has_timeout: bool) -> TaskEstimate:  # noqa: FBT001
        return TaskEstimate(
            run_ms=self._times.for_task(task_name), has_timeout=has_timeout, is_capped=self._is_capped(queue_name)
        )
