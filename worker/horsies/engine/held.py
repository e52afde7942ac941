"""What a worker has in its hands, from the claim until the outcome is stored."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from horsies.engine.messages import Assignment, Key
from horsies.model.retry import RetryPolicy
from horsies.store.work import Hold

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from uuid import UUID

    from horsies.engine.supervise import Child
    from horsies.model.crashes import KillReason
    from horsies.store.claims import ClaimedRow


class Phase(Enum):
    """How far a held task has come."""

    WAITING = "waiting"
    """CLAIMED, for a place that is not free yet."""
    HANDED = "handed"
    """RUNNING, in the hands of a child."""
    STORING = "storing"
    """Ended, and its outcome on the way into the database."""


@dataclass(slots=True, kw_only=True, eq=False)
class Held:
    """One attempt in this worker's hands."""

    row: ClaimedRow
    hold: Hold
    phase: Phase
    child: Child | None = None
    began_at: float | None = None
    alarm: asyncio.TimerHandle | None = None
    """Rings when its time is over."""
    stopping: KillReason | None = None
    """Why it was told to stop, which is then what became of it."""
    options: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.options = json.loads(self.row.task_options) if self.row.task_options != "{}" else {}

    @property
    def key(self) -> Key:
        return Key(str(self.row.id), self.row.claim_token)

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
            task_id=str(row.id),
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
            worker_id=str(self.hold.worker_id),
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
        hold = Hold(task_id=row.id, claim_token=row.claim_token, worker_id=worker_id)
        held = Held(row=row, hold=hold, phase=phase)
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
