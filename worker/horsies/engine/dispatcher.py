"""The claim loop: claim what there is room for, start it, hand it over, and give back what cannot run here."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

from horsies.codec.canonical_json import canonical
from horsies.codec.results import stored_error
from horsies.engine.in_flight import Held, Phase
from horsies.engine.pool.protocol import Key
from horsies.engine.service import run_until
from horsies.errors import BrokerError, HorsiesError
from horsies.model import events
from horsies.model.capacity import (
    MOST_CHUNKS,
    Admission,
    Limits,
    ServedQueue,
    chunk_size,
    fitted,
    next_pass,
    places_beside,
    places_free,
)
from horsies.model.crash import KillReason
from horsies.model.fence import may_hand_over
from horsies.model.task import TaskStatus, expired_error
from horsies.store.claims import ClaimRequest, Expiry, Hold, Start
from horsies.store.workers import FleetStore, WorkerState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from uuid import UUID

    from horsies.engine.pool.child import Child
    from horsies.engine.worker import Parts
    from horsies.store.claims import ClaimedRow, MovedRow


# Which child gets which of the tasks that were claimed: functions apart from coroutines.


def hand_over(parts: Parts, helds: Sequence[Held]) -> list[Held]:
    """Each to the child that its row names, or to one that suits it better; what no child has room for is given back.

    Returns the functions that were claimed for places beside coroutines and had to go back.
    """
    children = {child.pid: child for child in parts.room.children()}
    dealt = [(held, held.row.worker_pid or 0) for held in helds]
    beside = {pid for pid, child in children.items() if parts.hands.runs_coroutines(child)}
    if beside:
        dealt = _dealt_by_kind(parts, dealt, beside)
    by_child: dict[int, list[Held]] = {}
    for held, pid in dealt:
        by_child.setdefault(pid, []).append(held)
    turned_away: list[Held] = []
    for pid, theirs in by_child.items():
        child = children.get(pid)
        back = theirs if child is None else parts.hands.hand_over(child, theirs)
        parts.returns.add(back)
        if pid in beside:
            turned_away += [held for held in back if not parts.hands.is_async(held)]
    return turned_away


def _dealt_by_kind(parts: Parts, dealt: Sequence[tuple[Held, int]], beside: set[int]) -> list[tuple[Held, int]]:
    """Coroutines first: a child takes what it is handed in this order, up to the first that does not fit."""
    are_async = [parts.hands.is_async(held) for held, _ in dealt]
    pids = fitted([pid for _, pid in dealt], beside, are_async)
    anew = [(held, pid) for (held, _), pid in zip(dealt, pids, strict=True)]
    return sorted(anew, key=lambda each: each[1] in beside and not parts.hands.is_async(each[0]))


def paired(parts: Parts, waiting: Iterable[Held], children: Sequence[Child]) -> Iterator[tuple[Held, int]]:
    """Each with a place that suits it, in order: a function that finds none keeps those behind it waiting too."""
    places = parts.room.places(children)
    free, beside = iter(places.free), iter(places.beside)
    for held in waiting:
        pid = next(free, None)
        if pid is None and parts.hands.is_async(held):
            pid = next(beside, None)
        if pid is None:
            return
        yield held, pid


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


# What this worker can take now.


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The child of each place: those that any task may take, and those beside coroutines, for coroutines only."""

    free: list[int]
    beside: list[int]


class Room:
    """Places in children and budgets, as the next claim may use them; none once it is closed."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.is_closed = False
        """Nothing more is handed over: the worker is about to leave."""
        self.admission = Admission()

    def request(self) -> ClaimRequest | None:
        """What to ask the queue for; None when there is room for nothing."""
        parts = self._parts
        children = self.children()
        waiting = parts.desk.all(Phase.WAITING)
        # A function that has been claimed already comes before whatever could be claimed to run beside coroutines.
        is_awaited = not all(map(parts.hands.is_async, waiting))
        asked = next_pass(
            self._served(),
            [parts.hands.load_of(child) for child in children],
            self._limits(),
            claimed=len(waiting),
            most_beside=0 if is_awaited else self.admission.most(time.monotonic()),
        )
        if asked is None or self.is_closed:
            return None
        lease_ms, places = parts.app.claim_lease_ms, self.places(children)
        return ClaimRequest(
            worker_id=parts.identity.worker_id,
            hostname=parts.identity.hostname,
            queues=asked.queues,
            limit=asked.limit,
            pids=[*places.free[: asked.startable - asked.beside], *places.beside[: asked.beside]],
            lease_s=None if lease_ms is None else lease_ms / 1000,
            cluster_cap=asked.cluster_cap,
        )

    def children(self) -> list[Child]:
        """Those that take work, the least busy first."""
        hands = self._parts.hands
        able = [child for child in self._parts.pool.children if child.accepts_work and not hands.of(child).is_closed]
        return sorted(able, key=lambda child: len(hands.of(child).held))

    def places(self, children: Sequence[Child]) -> Places:
        """What these children offer."""
        loads = [(child.pid, self._parts.hands.load_of(child)) for child in children]
        size = max((each.chunk_size for each in self._served()), default=1)
        most = self._parts.worker.async_concurrency
        return Places(
            free=_turn_by_turn([pid] * places_free(load, size, depth=MOST_CHUNKS) for pid, load in loads),
            beside=_turn_by_turn([pid] * places_beside(load, async_concurrency=most) for pid, load in loads),
        )

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


def _turn_by_turn(offers: Iterable[Sequence[int]]) -> list[int]:
    """One of each, then the next, so that a few tasks are spread over all children."""
    return [pid for pid in chain.from_iterable(zip_longest(*offers)) if pid is not None]


# Giving back what is ours in the table and never began here: no attempt, no retry, no crash.


class Returns:
    """What is to be given back, and what is found to be ours without our knowing."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._unbegun: list[Held] = []
        self._reconciled_at = time.monotonic()

    def add(self, helds: Iterable[Held]) -> None:
        """RUNNING in the table, and handed to nobody who has begun it."""
        self._unbegun += helds

    async def give_back(self) -> None:
        """Store what was added; kept for the next time where the database does not answer."""
        back = list(self._unbegun)
        if not back:
            return
        rows = await self._parts.claims.give_back([held.hold for held in back])
        del self._unbegun[: len(back)]
        self._tell(TaskStatus.RUNNING, back, rows)
        for held in back:
            self._parts.desk.drop(held)

    async def release_waiting(self) -> None:
        """Give up claims that wait for a place."""
        waiting = self._parts.desk.all(Phase.WAITING)
        if waiting:
            rows = await self._parts.claims.release([held.hold for held in waiting])
            self._tell(TaskStatus.CLAIMED, waiting, rows)
        for held in waiting:
            self._parts.desk.drop(held)

    async def reconcile_in_time(self) -> None:
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

    def _tell(self, source: TaskStatus, helds: Iterable[Held], rows: Sequence[MovedRow]) -> None:
        status = {(row.id, row.claim_token): TaskStatus(row.status) for row in rows}
        for target in set(status.values()):
            moved = [held for held in helds if status.get((held.row.id, held.row.claim_token)) is target]
            self._parts.reporter.moved_unbegun(moved, source, target)

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


def _key(row: MovedRow) -> Key:
    return Key(str(row.id), row.claim_token)


def _hold(row: MovedRow, worker_id: UUID) -> Hold:
    return Hold(task_id=row.id, claim_token=row.claim_token, worker_id=worker_id)


# When the claim loop looks of its own accord: at the next due time, and at the poll that trusts nothing else.


class Wakeup:
    """Finds out when the next task is due, and looks every few seconds anyway."""

    name = "wake-up"

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._fleet = FleetStore(parts.claims.database)  # beats have their connection to themselves
        self._look_at = 0.0
        self._is_sooner = asyncio.Event()

    def expect(self, delay_s: float) -> None:
        """A task will be due after so many seconds, which this worker knows without asking."""
        due_at = time.monotonic() + delay_s
        if due_at < self._look_at:
            self._look_at = due_at
            self._is_sooner.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Wake the claim loop until stop is set."""
        await run_until(stop, self._poll())

    async def _poll(self) -> None:
        poll_s = self._parts.app.resilience.notify_poll_interval_ms / 1000
        while True:
            self._look_at = time.monotonic() + poll_s
            due_s = await self._until_due()
            if due_s is not None:
                self.expect(due_s)
            await self._until_it_is_time()
            self._parts.look()

    async def _until_due(self) -> float | None:
        """Seconds until the soonest task that is not due yet, if there is one."""
        try:
            async with self._parts.lane:
                return await self._fleet.next_due_s(self._parts.worker.queues or [])
        except HorsiesError:
            return None

    async def _until_it_is_time(self) -> None:
        while (left_s := self._look_at - time.monotonic()) > 0:
            self._is_sooner.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_sooner.wait(), left_s)
