"""What a worker has in its hands, from the claim until the outcome is stored."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from horsies.engine.pool.protocol import Assignment, Key
from horsies.model.capacity import CHUNK_MS, MOST_CHUNKS, PORTIONS, ChildLoad, Prospect, RunTimes, cut, recall_after_ms
from horsies.model.crash import Kill, KillReason
from horsies.model.retry import RetryPolicy
from horsies.store.claims import Hold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from uuid import UUID

    from horsies.engine.pool.child import Child
    from horsies.store.claims import ClaimedRow


_NO_OPTIONS: dict[str, Any] = {}

_text_of = lru_cache(maxsize=16)(str)
"""The id of a worker as text; there are few, and each task is handed over with one."""


class Phase(Enum):
    """How far a held task has come."""

    WAITING = "waiting"
    """CLAIMED, for a place that is not free yet."""
    HANDED = "handed"
    """RUNNING, in the hands of a child."""
    STORING = "storing"
    """Ended, and its outcome on the way into the database."""


class Held:
    """One attempt in this worker's hands."""

    __slots__ = ("alarm", "began_at", "child", "chunk", "hold", "key", "options", "phase", "row", "stopping")

    def __init__(self, row: ClaimedRow, worker_id: UUID, phase: Phase) -> None:
        self.row = row
        self.hold = Hold(row.id, row.claim_token, worker_id)
        self.key = Key(str(row.id), row.claim_token)
        self.phase = phase
        self.child: Child | None = None
        self.chunk: Chunk | None = None
        """What it was handed over with, last."""
        self.began_at: float | None = None
        self.alarm: asyncio.TimerHandle | None = None
        """Rings when its time is over."""
        self.stopping: KillReason | None = None
        """Why it was told to stop, which is then what became of it."""
        self.options: dict[str, Any] = json.loads(row.task_options) if row.task_options != "{}" else _NO_OPTIONS

    @property
    def timeout_ms(self) -> int | None:
        return self.options.get("timeout_ms")

    @property
    def policy(self) -> RetryPolicy | None:
        """The policy that travels with the task; one that no longer makes sense is none."""
        stored = self.options.get("retry_policy")
        try:
            return None if stored is None else RetryPolicy.model_validate(stored)
        except ValueError:
            return None

    def silence(self) -> None:
        """Its time no longer counts."""
        if self.alarm is not None:
            self.alarm.cancel()
            self.alarm = None

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
            worker_id=_text_of(self.hold.worker_id),
            flags=row.flags.encode(),
            possible_overlap=row.overlap_possible,
        )


class Desk:
    """Every attempt that this worker holds, by its key."""

    def __init__(self) -> None:
        self._held: dict[Key, Held] = {}
        self._emptied = asyncio.Event()
        self._emptied.set()

    def take(self, row: ClaimedRow, worker_id: UUID, phase: Phase) -> Held:
        held = Held(row, worker_id, phase)
        self._held[held.key] = held
        self._emptied.clear()
        return held

    def get(self, key: Key) -> Held | None:
        return self._held.get(key)

    def drop(self, held: Held) -> None:
        """It is stored, given back or lost: no longer ours to speak for."""
        held.silence()
        self._held.pop(held.key, None)
        if not self._held:
            self._emptied.set()

    def all(self, *phases: Phase) -> list[Held]:
        return [held for held in self._held.values() if held.phase in phases]

    def holds(self, key: Key) -> bool:
        return key in self._held

    def owners(self) -> set[UUID]:
        return {held.hold.worker_id for held in self._held.values()}

    async def until_empty(self) -> None:
        await self._emptied.wait()

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Held]:
        return iter(tuple(self._held.values()))


def in_child(helds: Iterable[Held], child: Child) -> list[Held]:
    return [held for held in helds if held.child is child]


# Handing tasks to children and taking them back: chunks, time-outs, recalls.

MOST_HAND_OVERS: Final = MOST_CHUNKS * PORTIONS
CANCEL_GRACE_S: Final = 2.0
"""How long a cancelled coroutine may take to go before its child gets no more work."""
NEIGHBOURS_GRACE_S: Final = 10.0
"""How long its neighbours may then go on before the child is killed."""

logger = logging.getLogger("horsies.worker")


@dataclass(slots=True, eq=False)
class Chunk:
    """Tasks that were handed over together, and the alarm that calls back what they have not begun."""

    keys: set[object]
    alarm: asyncio.TimerHandle | None = None

    def done(self, key: object) -> bool:
        """One of them is out of the child's hands; whether it was the last."""
        self.keys.discard(key)
        if not self.keys and self.alarm is not None:
            self.alarm.cancel()
        return not self.keys


@dataclass(slots=True, eq=False)
class Occupancy:
    """What one child has from us."""

    held: dict[object, Held] = field(default_factory=dict["object", "Held"])
    chunks: list[Chunk] = field(default_factory=list[Chunk])
    kill: Kill | None = None
    """What we have decided about it."""
    stubborn: set[object] = field(default_factory=set["object"])
    """Coroutines that have not gone when they were cancelled."""

    @property
    def is_closed(self) -> bool:
        """It gets no more work until the stubborn ones have gone."""
        return bool(self.stubborn)


class Hands:
    """Every child's occupancy; hands over, and watches the clock of what was handed over."""

    def __init__(self, times: RunTimes, *, is_async: Callable[[str], bool], is_capped: Callable[[str], bool]) -> None:
        self._times = times
        self.is_async_name = is_async
        self._is_capped = is_capped
        self._by_child: dict[Child, Occupancy] = {}
        self.max_chunk = 1
        self.neighbours_grace_s = NEIGHBOURS_GRACE_S

    def of(self, child: Child) -> Occupancy:
        occupancy = self._by_child.get(child)
        if occupancy is None:
            occupancy = self._by_child[child] = Occupancy()
        return occupancy

    def forget(self, child: Child) -> Occupancy:
        """The child is gone; returns what it had."""
        occupancy = self._by_child.pop(child, Occupancy())
        for chunk in occupancy.chunks:
            if chunk.alarm is not None:
                chunk.alarm.cancel()
        return occupancy

    def load_of(self, child: Child) -> ChildLoad:
        occupancy = self.of(child)
        chunks = len(occupancy.chunks)
        return ChildLoad(
            held=len(occupancy.held),
            chunks=chunks,
            is_async=self._is_all_async(occupancy),
            # Where nothing fits any more, nobody needs to look at every task.
            is_short=chunks < MOST_HAND_OVERS and self._is_short(occupancy),
        )

    def is_async(self, held: Held) -> bool:
        return self.is_async_name(held.row.task_name)

    def runs_coroutines(self, child: Child) -> bool:
        """Whether it has coroutines in hand and nothing else."""
        return self._is_all_async(self.of(child))

    def hand_over(self, child: Child, helds: Sequence[Held]) -> list[Held]:
        """Hand tasks to a child, cut into chunks; returns those for which it has no room after all."""
        occupancy = self.of(child)
        sizes = cut(self._prospects(helds), max_chunk=self.max_chunk)
        start = 0
        for size in sizes:
            part = helds[start : start + size]
            if not self._has_room(occupancy, part):
                break
            self._hand(child, occupancy, part)
            start += size
        return list(helds[start:])

    def began(self, child: Child, key: object) -> None:
        if held := self.of(child).held.get(key):
            held.began_at = time.monotonic()
            self._watch_time(held)
            if held.stopping is not None and not self.is_async(held):
                self.end(child, held.stopping, held)  # it was to be taken back, and began first

    def take_back(self, child: Child, key: object) -> Held | None:
        """A task is out of the child's hands."""
        occupancy = self.of(child)
        held = occupancy.held.pop(key, None)
        if held is None:
            return None
        if held.chunk is not None and held.chunk.done(key):
            occupancy.chunks.remove(held.chunk)
        if occupancy.stubborn:
            occupancy.stubborn.discard(key)
        held.silence()
        return held

    def learn(self, held: Held, run_ms: float | None) -> None:
        """Remember how long a task took."""
        if run_ms is not None:
            self._times.observe(task_name=held.row.task_name, queue_name=held.row.queue_name, run_ms=run_ms)

    def end(self, child: Child, reason: KillReason, held: Held | None) -> None:
        """Kill a child on purpose; the first decision stands."""
        occupancy = self.of(child)
        if occupancy.kill is None:
            occupancy.kill = Kill(reason=reason, pid=child.pid, task_id=held.key.task_id if held else None)
            child.kill(str(reason))

    def stop_task(self, held: Held, reason: KillReason) -> None:
        """End one task: taken back unbegun, a coroutine by itself if it goes, a function together with its child."""
        child, is_async = held.child, self.is_async(held)
        if child is None or held.key not in self.of(child).held:
            return  # out of its hands already
        held.silence()
        if not is_async and held.key not in child.unbegun:
            self.end(child, reason, held)
            return
        held.stopping = reason
        child.cancel(held.key)
        if is_async:
            loop = asyncio.get_running_loop()
            held.alarm = loop.call_later(CANCEL_GRACE_S, self._close, child, held, reason)

    def _close(self, child: Child, held: Held, reason: KillReason) -> None:
        """The coroutine is still there: let its neighbours finish for a while, then kill the child."""
        self.of(child).stubborn.add(held.key)
        held.alarm = asyncio.get_running_loop().call_later(self.neighbours_grace_s, self.end, child, reason, held)

    def _hand(self, child: Child, occupancy: Occupancy, helds: Sequence[Held]) -> None:
        loop = asyncio.get_running_loop()
        chunk = Chunk({held.key for held in helds})
        has_to_wait = bool(occupancy.held) and not self._runs_beside(occupancy, helds)
        if has_to_wait or len(helds) > 1:
            estimate_ms = sum(self._times.of_task(held.row.task_name) or 0.0 for held in helds)
            chunk.alarm = loop.call_later(recall_after_ms(estimate_ms) / 1000, child.recall)
        occupancy.chunks.append(chunk)
        for held in helds:
            held.child = child
            held.chunk = chunk
            held.phase = Phase.HANDED
            held.began_at = None
            occupancy.held[held.key] = held
            if not has_to_wait:
                self._watch_time(held)
        child.run([held.assignment() for held in helds])

    def _watch_time(self, held: Held) -> None:
        """Its timeout counts from the hand-over, or from its start where it had to wait for another."""
        if held.timeout_ms is not None and held.alarm is None:
            loop = asyncio.get_running_loop()
            held.alarm = loop.call_later(held.timeout_ms / 1000, self.stop_task, held, KillReason.TIMEOUT)

    def _expected_ms(self, held: Held) -> float:
        """By experience; one that takes longer than that is not thought short any more."""
        run_ms = self._times.of_task(held.row.task_name)
        if run_ms is None:
            return CHUNK_MS + 1
        if held.began_at is None:
            return run_ms
        return max(run_ms, (time.monotonic() - held.began_at) * 1000)

    def _has_room(self, occupancy: Occupancy, helds: Sequence[Held]) -> bool:
        """For coroutines beside others; for the rest behind one chunk, if it is not of coroutines that take long.

        A chunk of short ones may come in portions, and so may the one behind it.
        """
        if not occupancy.held or self._runs_beside(occupancy, helds):
            return True
        is_held_up = self._is_all_async(occupancy) and not self._is_short(occupancy)
        are_short = all(each.share_ms <= CHUNK_MS for each in self._prospects(helds))
        return len(occupancy.chunks) < (MOST_HAND_OVERS if are_short else MOST_CHUNKS) and not is_held_up

    def _is_all_async(self, occupancy: Occupancy) -> bool:
        return bool(occupancy.held) and all(map(self.is_async, occupancy.held.values()))

    def _is_short(self, occupancy: Occupancy) -> bool:
        return sum(map(self._expected_ms, occupancy.held.values())) <= CHUNK_MS

    def _runs_beside(self, occupancy: Occupancy, helds: Iterable[Held]) -> bool:
        """Coroutines run side by side; nothing waits behind them."""
        return all(map(self.is_async, chain(occupancy.held.values(), helds)))

    def _prospects(self, helds: Iterable[Held]) -> Iterator[Prospect]:
        known: dict[tuple[str, str, bool], Prospect] = {}
        for held in helds:
            kind = held.row.task_name, held.row.queue_name, held.timeout_ms is not None
            prospect = known.get(kind)
            if prospect is None:
                prospect = known[kind] = self._prospect(*kind)
            yield prospect

    def _prospect(self, task_name: str, queue_name: str, has_timeout: bool) -> Prospect:  # noqa: FBT001
        return Prospect(
            run_ms=self._times.of_task(task_name), has_timeout=has_timeout, is_capped=self._is_capped(queue_name)
        )
