"""The claim loop: claim what there is room for, start it, hand it over, and give back what cannot run here."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from horsies.codec.failure import stored_error
from horsies.codec.wire import canonical
from horsies.engine.held import Held, Phase
from horsies.engine.placing import hand_over, paired
from horsies.errors import BrokerError, HorsiesError
from horsies.model import events
from horsies.model.crashes import KillReason
from horsies.model.expiry import expired_error
from horsies.model.fence import may_hand_over
from horsies.model.task import TaskStatus
from horsies.store.claims import Expiry, Start

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from horsies.engine.parts import Parts
    from horsies.store.claims import ClaimedRow

SECOND_LOOK_S = 0.1


class Dispatcher:
    """Brings tasks from the queue into children."""

    name = "dispatch"

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._backoff = parts.backoff("claim")
        self._woken = asyncio.Event()
        self._may_find = True
        """Whether the queue may hold something for us: a claim that got less than it asked for has emptied it, until
        there is news. A place that becomes free is no news."""
        self._is_announced = False
        """Whether the news came as a notification, which other workers have heard too."""

    def wake(self) -> None:
        """There may be something to do."""
        self._woken.set()

    def hear_news(self) -> None:
        """There is something to claim, for whoever is first."""
        self._is_announced = True
        self.look()

    def look(self) -> None:
        """There may be something to claim."""
        self._may_find = True
        self._woken.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Claim until stop is set."""
        stopping = asyncio.create_task(stop.wait())
        stopping.add_done_callback(lambda _: self.wake())
        try:
            while not stop.is_set():
                self._woken.clear()
                await self._pass_until_done(stop)
                await self._woken.wait()
        finally:
            stopping.cancel()

    async def _pass_until_done(self, stop: asyncio.Event) -> None:
        """Passes for as long as they bring something; a pass that found no database is tried again."""
        while not stop.is_set() and not self._parts.gate.is_shut:
            try:
                async with self._parts.lane:
                    await self._parts.returns.reconcile_in_time()
                    found = await self._pass()
            except HorsiesError as error:
                self._may_find = True
                await self._backoff.wait(error)
                await self._reconcile_until_known()
            else:
                self._backoff.reset()
                if not found:
                    self._look_again_soon()
                    return

    def _look_again_soon(self) -> None:
        # Several workers woken by one notification hide rows from each other for an instant; once is enough to see.
        if self._is_announced and self._parts.room.request() is not None:
            asyncio.get_running_loop().call_later(SECOND_LOOK_S, self.look)
        self._is_announced = False

    async def _pass(self) -> bool:
        """One look at what could be done; whether it brought anything."""
        await self._parts.returns.give_back()
        await self._start_waiting()
        request = self._parts.room.request() if self._may_find else None
        if request is None:
            return False
        self._may_find = False  # what is announced from now on may be too late for this claim
        sent_at = time.monotonic()
        rows = await self._parts.claims.claim(request)
        self._parts.gate.passed(sent_at)
        if len(rows) >= request.limit or request.is_held_back or self._parts.degraded:
            self._may_find = True
        self._take(rows, request.worker_id, took_s=time.monotonic() - sent_at)
        await self._parts.returns.give_back()
        return len(rows) > 0

    def _take(self, rows: Sequence[ClaimedRow], worker_id: UUID, *, took_s: float) -> None:
        """Put claimed rows on the desk and hand over those that are RUNNING already."""
        parts = self._parts
        helds = [parts.desk.take(row, worker_id, _phase_of(row)) for row in rows]
        running = [held for held in helds if held.phase is Phase.HANDED]
        self._tell_claimed(helds)
        if may_hand_over(parts.app.recovery, took_s=took_s) and not self._parts.room.is_closed:
            turned_away = hand_over(parts, running)
            self._learn(rows, turned_away)
        else:
            self._parts.returns.add(running)

    def _learn(self, rows: Sequence[ClaimedRow], turned_away: Sequence[Held]) -> None:
        """What a claim says about the next one for places beside coroutines."""
        admission, now = self._parts.room.admission, time.monotonic()
        if turned_away:
            pause_s = admission.turned_away(turned_away[-1].row.id, now)
            asyncio.get_running_loop().call_later(pause_s, self.look)
        elif rows:
            is_last_async = self._parts.hands.is_async_name(rows[-1].task_name)
            admission.found((row.id for row in rows), is_last_async=is_last_async, now=now)

    async def _start_waiting(self) -> None:
        """Begin claimed tasks for which a place is free now."""
        parts = self._parts
        waiting = parts.desk.all(Phase.WAITING)
        if not waiting or self._parts.room.is_closed:
            return
        children = {child.pid: child for child in self._parts.room.children()}
        pairs = list(paired(parts, waiting, list(children.values())))
        if not pairs:
            return
        sent_at = time.monotonic()
        started = await parts.claims.start(
            [Start(hold=held.hold, pid=pid) for held, pid in pairs], hostname=parts.identity.hostname
        )
        parts.gate.passed(sent_at)
        took_s = time.monotonic() - sent_at
        begun = {(row.id, row.claim_token) for row in started}
        moved = [held for held, _ in pairs if (held.row.id, held.row.claim_token) in begun]
        parts.reporter.moved_unbegun(moved, TaskStatus.CLAIMED, TaskStatus.RUNNING)
        by_child: dict[int, list[Held]] = {}
        for held, pid in pairs:
            if (held.row.id, held.row.claim_token) not in begun:
                await self._not_started(held)
            elif may_hand_over(parts.app.recovery, took_s=took_s) and children[pid].accepts_work:
                by_child.setdefault(pid, []).append(held)
            else:
                self._parts.returns.add([held])
        # Together: one by one each would be a chunk of its own, of which a child holds only two.
        for pid, theirs in by_child.items():
            self._parts.returns.add(parts.hands.hand_over(children[pid], theirs))

    async def _not_started(self, held: Held) -> None:
        """The start was refused: the task has expired, or another hand has moved it."""
        parts = self._parts
        parts.desk.drop(held)
        if held.row.good_until is not None:
            error = expired_error(
                task_id=held.key.task_id, good_until=held.row.good_until, worker_id=str(held.hold.worker_id)
            )
            expired = await parts.claims.expire(
                [Expiry(hold=held.hold, document=canonical({"err": stored_error(error)}))]
            )
            if expired:
                parts.reporter.moved_unbegun([held], TaskStatus.CLAIMED, TaskStatus.EXPIRED)
                return
        parts.reporter.emit(
            events.ClaimLost(
                worker_id=str(held.hold.worker_id),
                task_id=held.key.task_id,
                claim_token=held.key.claim_token,
                queue_name=held.row.queue_name,
            )
        )

    async def _reconcile_until_known(self) -> None:
        while True:
            try:
                async with self._parts.lane:
                    await self._parts.returns.reconcile()
            except BrokerError as error:
                await self._backoff.wait(error)
            else:
                return

    def _tell_claimed(self, helds: Sequence[Held]) -> None:
        ids: dict[tuple[str, str], list[str]] = {}
        for held in helds:
            ids.setdefault((held.row.status, held.row.queue_name), []).append(held.key.task_id)
        for (name, queue), theirs in ids.items():
            status = TaskStatus(name)
            kind = "claim and start" if status is TaskStatus.RUNNING else "claim"
            self._parts.reporter.moved(kind, queue, TaskStatus.PENDING, status, theirs)

    async def until_nothing_runs(self) -> None:
        """Wait for every task in a child's hands to come out of them, giving back meanwhile what comes back unbegun."""
        while self._parts.desk.all(Phase.HANDED):
            self._woken.clear()
            with suppress(HorsiesError):
                await self._parts.returns.give_back()
            if self._parts.desk.all(Phase.HANDED):
                await self._woken.wait()

    def kill_all(self) -> None:
        """The grace is over: end every child that still works."""
        for child in self._parts.pool.children:
            if self._parts.hands.of(child).held:
                self._parts.hands.end(child, KillReason.SHUTDOWN, None)

    def call_back_chunks(self) -> None:
        for child in self._parts.pool.children:
            if child.unbegun:
                child.recall()


def _phase_of(row: ClaimedRow) -> Phase:
    return Phase.HANDED if row.status == TaskStatus.RUNNING else Phase.WAITING
