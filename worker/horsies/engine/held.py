"""What a worker has in its hands, from the claim until the outcome is stored."""

from __future__ import annotations

import asyncio
import json
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from horsies.engine.messages import Assignment, Key
from horsies.model.retry import RetryPolicy
from horsies.store.work import Hold

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from uuid import UUID

    from horsies.engine.hands import Chunk
    from horsies.engine.supervise import Child
    from horsies.model.crashes import KillReason
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
