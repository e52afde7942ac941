"""What children report, and what follows from it for their tasks."""

from __future__ import annotations

import asyncio
import logging
from itertools import zip_longest
from typing import TYPE_CHECKING

from horsies.engine.settling import death_of
from horsies.errors import HorsiesError
from horsies.model import events
from horsies.model.crashes import Drop, HandBack, Kill, Requeue, Settle

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
        hands = self._parts.hands
        taken = [held for key in keys if (held := hands.take_back(child, key)) is not None]
        others = [other for other in self._parts.room.children() if other is not child and not hands.of(other).held]
        for held, other in zip_longest(taken, others[: len(taken)]):
            if held is None:
                break
            if other is None or self._parts.room.is_closed:
                self._parts.returns.add([held])
            else:
                self._parts.returns.add(hands.hand_over(other, [held]))
        if taken:
            worker_id = str(self._parts.identity.worker_id)
            self._parts.reporter.emit(events.ChunkRecalled(worker_id=worker_id, pid=child.pid, unbegun=len(taken)))
        self._parts.wake()

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
