"""The claim loop: claim what there is room for, start it, hand it over, and give back what cannot run here."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

from horsies.codec.failure import stored_error
from horsies.codec.wire import canonical
from horsies.engine.held import Held, Phase
from horsies.engine.messages import Key
from horsies.engine.settling import death_of
from horsies.errors import BrokerError, HorsiesError
from horsies.model import events
from horsies.model.chunks import chunk_size
from horsies.model.claiming import Limits, ServedQueue, next_pass, places_free
from horsies.model.crashes import Drop, HandBack, Kill, KillReason, Requeue, Settle
from horsies.model.expiry import expired_error
from horsies.model.fence import may_hand_over
from horsies.model.task import TaskStatus
from horsies.store.claims import ClaimRequest, Expiry, QueueRoom, Start
from horsies.store.fleet import WorkerState
from horsies.store.work import Hold

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from horsies.engine.deaths import ChildDied
    from horsies.engine.messages import Ending, Stream
    from horsies.engine.parts import Parts
    from horsies.engine.supervise import Child
    from horsies.model.crashes import Death
    from horsies.store.claims import ClaimedRow
    from horsies.store.work import MovedRow

SECOND_LOOK_S = 0.1

logger = logging.getLogger("horsies.worker")
output = logging.getLogger("horsies.task")


class Dispatcher:
    """Brings tasks from the queue into children, and hears from the children what became of them."""

    name = "dispatch"

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._backoff = parts.backoff("claim")
        self._woken = asyncio.Event()
        self._back: list[Held] = []
        """Handed to nobody, to be given back."""
        self._settling: set[asyncio.Task[None]] = set()
        self._reconciled_at = time.monotonic()
        self.is_draining = False
        self._has_looked_again = False

    def wake(self) -> None:
        """There may be something to do."""
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
                    await self._reconcile_in_time()
                    found = await self._pass()
            except HorsiesError as error:
                await self._backoff.wait(error)
                await self._reconcile_until_known()
            else:
                self._backoff.reset()
                if not found:
                    self._look_again_soon()
                    return

    def _look_again_soon(self) -> None:
        # Several workers woken by one notification hide rows from each other for an instant; once is enough to see.
        if self._has_looked_again:
            self._has_looked_again = False
        elif self._parts.desk.all(Phase.HANDED) == [] or self._request() is not None:
            self._has_looked_again = True
            asyncio.get_running_loop().call_later(SECOND_LOOK_S, self.wake)

    async def _pass(self) -> bool:
        """One look at what could be done; whether it brought anything."""
        await self.give_back()
        await self._start_waiting()
        request = self._request()
        if request is None:
            return False
        sent_at = time.monotonic()
        rows = await self._parts.claims.claim(request)
        self._parts.gate.passed(sent_at)
        self._take(rows, request.worker_id, took_s=time.monotonic() - sent_at)
        await self.give_back()
        return len(rows) > 0

    def _request(self) -> ClaimRequest | None:
        parts = self._parts
        children = self._children()
        waiting = parts.desk.all(Phase.WAITING)
        asked = next_pass(
            self._served(), [parts.hands.load_of(child) for child in children], self._limits(), claimed=len(waiting)
        )
        if asked is None:
            return None
        lease_ms = parts.app.claim_lease_ms
        return ClaimRequest(
            worker_id=parts.identity.worker_id,
            hostname=parts.identity.hostname,
            queues=[QueueRoom(queue_name=each.name, room=each.room, cap=each.cap) for each in asked.queues],
            limit=asked.limit,
            pids=self._places(children)[: asked.startable],
            lease_s=None if lease_ms is None else lease_ms / 1000,
            cluster_cap=asked.cluster_cap,
        )

    def _children(self) -> list[Child]:
        hands = self._parts.hands
        able = [child for child in self._parts.pool.children if child.accepts_work and not hands.of(child).is_closed]
        return sorted(able, key=lambda child: len(hands.of(child).held))

    def _places(self, children: Sequence[Child]) -> list[int]:
        """The child of each place, turn by turn, so that a few tasks are spread over all of them."""
        worker, hands = self._parts.worker, self._parts.hands
        size = max((each.chunk_size for each in self._served()), default=1)
        offers = (
            [child.pid] * places_free(hands.load_of(child), size, depth=2, async_concurrency=worker.async_concurrency)
            for child in children
        )
        return [pid for pid in chain.from_iterable(zip_longest(*offers)) if pid is not None]

    def _served(self) -> list[ServedQueue]:
        parts = self._parts
        caps = {queue.name: queue.max_concurrency for queue in parts.app.custom_queues or ()}
        is_cap_on_all = parts.app.cluster_wide_cap is not None
        return [
            ServedQueue(
                name=name,
                max_concurrency=caps.get(name),
                chunk_size=chunk_size(
                    parts.times.of_queue(name),
                    max_chunk=parts.worker.max_chunk,
                    is_capped=is_cap_on_all or caps.get(name) is not None,
                ),
            )
            for name in parts.worker.queues or ()
        ]

    def _limits(self) -> Limits:
        app, worker = self._parts.app, self._parts.worker
        return Limits(
            prefetch_buffer=app.prefetch_buffer,
            max_claim_batch=worker.max_claim_batch,
            max_claim_per_worker=worker.max_claim_per_worker,
            async_concurrency=worker.async_concurrency,
            cluster_wide_cap=app.cluster_wide_cap,
        )

    def _take(self, rows: Sequence[ClaimedRow], worker_id: UUID, *, took_s: float) -> None:
        """Put claimed rows on the desk and hand over those that are RUNNING already."""
        parts = self._parts
        running: list[Held] = []
        for row in rows:
            is_running = row.status == TaskStatus.RUNNING
            held = parts.desk.take(row, worker_id, Phase.HANDED if is_running else Phase.WAITING)
            if is_running:
                running.append(held)
        self._tell_claimed(rows)
        if may_hand_over(parts.app.recovery, took_s=took_s) and not self.is_draining:
            self._hand_over(running)
        else:
            self._back += running

    def _hand_over(self, helds: Iterable[Held]) -> None:
        children = {child.pid: child for child in self._children()}
        by_child: dict[int, list[Held]] = {}
        for held in helds:
            by_child.setdefault(held.row.worker_pid or 0, []).append(held)
        for pid, theirs in by_child.items():
            child = children.get(pid)
            self._back += theirs if child is None else self._parts.hands.hand_over(child, theirs)

    async def _start_waiting(self) -> None:
        """Begin claimed tasks for which a place is free now."""
        parts = self._parts
        waiting = parts.desk.all(Phase.WAITING)
        if not waiting or self.is_draining:
            return
        children = {child.pid: child for child in self._children()}
        pairs = list(zip(waiting, self._places(list(children.values())), strict=False))
        if not pairs:
            return
        sent_at = time.monotonic()
        started = await parts.claims.start(
            [Start(hold=held.hold, pid=pid) for held, pid in pairs], hostname=parts.identity.hostname
        )
        parts.gate.passed(sent_at)
        took_s = time.monotonic() - sent_at
        begun = {(row.id, row.claim_token) for row in started}
        for held, pid in pairs:
            if (held.row.id, held.row.claim_token) not in begun:
                await self._not_started(held)
            elif may_hand_over(parts.app.recovery, took_s=took_s) and children[pid].accepts_work:
                self._back += parts.hands.hand_over(children[pid], [held])
            else:
                self._back.append(held)

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
                return
        parts.reporter.emit(
            events.ClaimLost(
                worker_id=str(held.hold.worker_id),
                task_id=held.key.task_id,
                claim_token=held.key.claim_token,
                queue_name=held.row.queue_name,
            )
        )

    async def give_back(self) -> None:
        """Give back what was RUNNING in the table and never begun here; nothing is counted."""
        back = list(self._back)
        if not back:
            return
        await self._parts.claims.give_back([held.hold for held in back])
        del self._back[: len(back)]
        for held in back:
            self._parts.desk.drop(held)

    async def release_waiting(self) -> None:
        """Give up claims that wait for a place."""
        waiting = self._parts.desk.all(Phase.WAITING)
        if waiting:
            await self._parts.claims.release([held.hold for held in waiting])
        for held in waiting:
            self._parts.desk.drop(held)

    async def _reconcile_until_known(self) -> None:
        while True:
            try:
                async with self._parts.lane:
                    await self.reconcile()
            except BrokerError as error:
                await self._backoff.wait(error)
            else:
                return

    async def _reconcile_in_time(self) -> None:
        """Once per check interval: a statement that was given up may have been carried out long after."""
        if (time.monotonic() - self._reconciled_at) * 1000 >= self._parts.app.recovery.check_interval_ms:
            await self.reconcile()

    async def reconcile(self) -> None:
        """Give back what names this worker and was never handed over: the answer to its claim or start was lost.

        A former id under which nothing is held any more has stopped.
        """
        parts, identity = self._parts, self._parts.identity
        for worker_id in (*identity.former_ids, identity.worker_id):
            sent_at = time.monotonic()
            rows = await parts.claims.owned(worker_id)
            parts.gate.passed(sent_at)
            await self._put_back([row for row in rows if self._is_unheard(row)], worker_id)
            if not rows and worker_id in identity.former_ids:
                await parts.fleet.set_state(worker_id, WorkerState.STOPPED)
                identity.former_ids.remove(worker_id)
        self._reconciled_at = time.monotonic()

    def _is_unheard(self, row: MovedRow) -> bool:
        held = self._parts.desk.get(_key(row))
        return held is None or (held.phase is Phase.WAITING and row.status == TaskStatus.RUNNING)

    async def _put_back(self, rows: Sequence[MovedRow], worker_id: UUID) -> None:
        claims, desk = self._parts.claims, self._parts.desk
        if claimed := [_hold(row, worker_id) for row in rows if row.status == TaskStatus.CLAIMED]:
            await claims.release(claimed)
        if running := [_hold(row, worker_id) for row in rows if row.status == TaskStatus.RUNNING]:
            await claims.give_back(running)
        for row in rows:
            if (held := desk.get(_key(row))) is not None:
                desk.drop(held)

    def _tell_claimed(self, rows: Sequence[ClaimedRow]) -> None:
        ids: dict[tuple[str, str], list[str]] = {}
        for row in rows:
            ids.setdefault((row.status, row.queue_name), []).append(str(row.id))
        for (name, queue), theirs in ids.items():
            status = TaskStatus(name)
            kind = "claim and start" if status is TaskStatus.RUNNING else "claim"
            self._parts.reporter.moved(kind, queue, TaskStatus.PENDING, status, theirs)

    # What children report.

    def ready(self, child: Child) -> None:
        self._parts.hands.of(child)
        self.wake()

    def began(self, child: Child, key: Key) -> None:
        self._parts.hands.began(child, key)

    def ended(self, child: Child, key: Key, ending: Ending) -> None:
        held = self._parts.hands.take_back(child, key)
        if held is not None and held.stopping is not None:
            self._settle_soon(held, Kill(reason=held.stopping, pid=child.pid, task_id=key.task_id), None)
        elif held is not None:
            self._parts.hands.learn(held, ending.run_ms)
            self._parts.outcomes.ended(held, ending)
        self.wake()

    def recalled(self, child: Child, keys: Sequence[Key]) -> None:
        taken = [held for key in keys if (held := self._parts.hands.take_back(child, key)) is not None]
        others = [other for other in self._children() if other is not child and not self._parts.hands.of(other).held]
        for held, other in zip_longest(taken, others[: len(taken)]):
            if held is None:
                break
            self._back += [held] if other is None or self.is_draining else self._parts.hands.hand_over(other, [held])
        if taken:
            worker_id = str(self._parts.identity.worker_id)
            self._parts.reporter.emit(events.ChunkRecalled(worker_id=worker_id, pid=child.pid, unbegun=len(taken)))
        self.wake()

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
                self._back.append(held)
        begun = [held for key in death.begun if (held := occupancy.held.get(key)) is not None]
        verdict = death_of(death, occupancy.kill)
        for held in begun:
            held.silence()
            self._settle_soon(held, verdict, death)
        self.wake()

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
                self._back.append(held)
            case Drop():
                self._parts.desk.drop(held)
            case Requeue():
                await self._parts.requeues.put_back(held)
            case Settle():
                pass  # its outcome is on the way
        self.wake()

    async def _earlier_crashes(self, held: Held) -> tuple[str, ...]:
        try:
            return await self._parts.settling.earlier_crashes(held)
        except HorsiesError:
            return ()  # the causes are for people; the verdict does not wait for them

    async def until_nothing_runs(self) -> None:
        """Wait for every task in a child's hands to come out of them, giving back meanwhile what comes back unbegun."""
        while self._parts.desk.all(Phase.HANDED):
            self._woken.clear()
            with suppress(HorsiesError):
                await self.give_back()
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


def _key(row: MovedRow) -> Key:
    return Key(str(row.id), row.claim_token)


def _hold(row: MovedRow, worker_id: UUID) -> Hold:
    return Hold(task_id=row.id, claim_token=row.claim_token, worker_id=worker_id)
