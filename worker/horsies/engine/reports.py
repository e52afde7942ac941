"""What children report, and what follows from it for their tasks."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from horsies.engine.settling import death_of
from horsies.errors import HorsiesError
from horsies.model import events
from horsies.model.crashes import Drop, HandBack, Kill, KillReason, Requeue, Settle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horsies.engine.deaths import ChildDied
    from horsies.engine.held import Held
    from horsies.engine.messages import Ending, Key, Stream
    from horsies.engine.parts import Parts
    from horsies.engine.supervise import Child
    from horsies.model.crashes import Death

output = logging.getLogger("horsies.task")


class Reports:
    """Hears the pool. Every task that was handed over ends as an outcome, is settled, or is given back."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._settling: set[asyncio.Task[None]] = set()

    def ready(self, child: Child) -> None:
        self._parts.hands.of(child)
        self._parts.wake()

    def began(self, child: Child, key: Key) -> None:
        self._parts.hands.began(child, key)

    def ended(self, child: Child, key: Key, ending: Ending) -> None:
        held = self._parts.hands.take_back(child, key)
        if held is not None and held.stopping is not None:
            self._settle_soon(held, Kill(reason=held.stopping, pid=child.pid, task_id=key.task_id), None)
        elif held is not None:
            self._parts.hands.learn(held, ending.run_ms)
            self._parts.outcomes.ended(held, ending)
        self._parts.wake()

    def recalled(self, child: Child, keys: Sequence[Key]) -> None:
        """Nothing of these has run: what was to be stopped goes back, the rest starts anew where a child is idle."""
        hands = self._parts.hands
        taken = [held for key in keys if (held := hands.take_back(child, key)) is not None]
        # A row that is no longer ours is refused there; one that an operator wants again is not to begin here first.
        self._parts.returns.add(held for held in taken if not _may_begin(held))
        others = [other for other in self._parts.room.children() if other is not child]
        self._hand_on([held for held in taken if _may_begin(held)], others)
        if taken:
            worker_id = str(self._parts.identity.worker_id)
            self._parts.reporter.emit(events.ChunkRecalled(worker_id=worker_id, pid=child.pid, unbegun=len(taken)))
        self._parts.wake()

    def _hand_on(self, helds: Sequence[Held], children: Sequence[Child]) -> None:
        """One to each child that is idle, the others back into the queue."""
        hands, returns = self._parts.hands, self._parts.returns
        idle = [] if self._parts.room.is_closed else [child for child in children if not hands.of(child).held]
        for held, child in zip(helds, idle, strict=False):
            held.stopping = None  # it was late through no fault of its own, and its time counts anew
            returns.add(hands.hand_over(child, [held]))
        returns.add(helds[len(idle) :])

    def beat(self, child: Child, keys: Sequence[Key]) -> None:
        """The child's own clock of silence counts it; nothing is written for a single beat."""

    def said(self, child: Child, key: Key | None, stream: Stream, line: str) -> None:
        level = logging.WARNING if stream == "stderr" else logging.INFO
        output.log(level, "%s", line, extra={"task_id": key.task_id if key else None, "pid": child.pid})

    def died(self, child: Child, death: ChildDied) -> None:
        occupancy = self._parts.hands.forget(child)
        for key in death.unbegun:
            if (held := occupancy.held.get(key)) is not None:
                held.silence()
                self._parts.returns.add([held])
        begun = [held for key in death.begun if (held := occupancy.held.get(key)) is not None]
        verdict = death_of(death, occupancy.kill)
        for held in begun:
            held.silence()
            self._settle_soon(held, verdict, death)
        self._parts.wake()

    def _settle_soon(self, held: Held, verdict: Death, death: ChildDied | None) -> None:
        task = asyncio.create_task(self._settle(held, verdict, death))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _settle(self, held: Held, verdict: Death, death: ChildDied | None) -> None:
        settling = self._parts.settling
        earlier = await self._earlier_crashes(held)
        if death is not None:
            settling.tell_death(held, verdict, death)
        match settling.settle(held, verdict, earlier=earlier):
            case HandBack():
                self._parts.returns.add([held])
            case Drop():
                self._parts.desk.drop(held)
            case Requeue():
                await self._parts.requeues.put_back(held)
            case Settle():
                pass  # its outcome is on the way
        self._parts.wake()

    async def _earlier_crashes(self, held: Held) -> tuple[str, ...]:
        try:
            return await self._parts.settling.earlier_crashes(held)
        except HorsiesError:
            return ()  # the causes are for people; the verdict does not wait for them


def _may_begin(held: Held) -> bool:
    return held.stopping is None or held.stopping is KillReason.TIMEOUT
