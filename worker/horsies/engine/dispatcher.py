"""The claim loop: claim what there is room for, start it, hand it over, and give back what cannot run here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import TYPE_CHECKING
from uuid import UUID

from horsies.codec.canonical_json import canonical_json
from horsies.codec.results import encode_task_error
from horsies.engine.in_flight import InFlightTask, Phase
from horsies.engine.pool.protocol import AttemptKey
from horsies.engine.service import run_until
from horsies.errors import BrokerError, HorsiesError
from horsies.model import events
from horsies.model.capacity import (
    MAX_CHUNKS,
    AsyncAdmission,
    ClaimLimits,
    ServedQueue,
    chunk_size,
    count_async_slots,
    count_free_slots,
    plan_claim,
    swap_mismatched_slots,
)
from horsies.model.crash import KillReason
from horsies.model.fence import may_assign
from horsies.model.task import TaskStatus, expired_error
from horsies.store.claims import ClaimedRow, ClaimRef, ClaimRequest, ClaimStatusRow, TaskExpiry, TaskStart
from horsies.store.workers import WorkerState, WorkerStore

if TYPE_CHECKING:
    from horsies.engine.pool.child import Child
    from horsies.engine.worker import Parts


# Which child gets which of the tasks that were claimed: functions apart from coroutines.


def assign(parts: Parts, helds: Sequence[InFlightTask]) -> list[InFlightTask]:
    """Each to the child that its row names, or to one that suits it better; what no child has room for is given back.

    Returns the functions that were claimed for places beside coroutines and had to go back.
    """
    children = {child.pid: child for child in parts.capacity.available_children()}
    dealt = [(held, held.row.worker_pid or 0) for held in helds]
    beside = {pid for pid, child in children.items() if parts.assignments.runs_only_coroutines(child)}
    if beside:
        dealt = _match_by_kind(parts, dealt, beside)
    by_child: dict[int, list[InFlightTask]] = {}
    for held, pid in dealt:
        by_child.setdefault(pid, []).append(held)
    turned_away: list[InFlightTask] = []
    for pid, theirs in by_child.items():
        child = children.get(pid)
        back = theirs if child is None else parts.assignments.assign(child, theirs)
        parts.releases.add(back)
        if pid in beside:
            turned_away += [held for held in back if not parts.assignments.is_async(held)]
    return turned_away


def _match_by_kind(
    parts: Parts, dealt: Sequence[tuple[InFlightTask, int]], beside: set[int]
) -> list[tuple[InFlightTask, int]]:
    """Coroutines first: a child takes what it is handed in this order, up to the first that does not fit."""
    are_async = [parts.assignments.is_async(held) for held, _ in dealt]
    pids = swap_mismatched_slots([pid for _, pid in dealt], beside, are_async)
    anew = [(held, pid) for (held, _), pid in zip(dealt, pids, strict=True)]
    return sorted(anew, key=lambda each: each[1] in beside and not parts.assignments.is_async(each[0]))


def match_slots(
    parts: Parts, waiting: Iterable[InFlightTask], children: Sequence[Child]
) -> Iterator[tuple[InFlightTask, int]]:
    """Each with a place that suits it, in order: a function that finds none keeps those behind it waiting too."""
    places = parts.capacity.free_slots(children)
    free, beside = iter(places.any_task), iter(places.async_only)
    for held in waiting:
        pid = next(free, None)
        if pid is None and parts.assignments.is_async(held):
            pid = next(beside, None)
        if pid is None:
            return
        yield held, pid


RECHECK_DELAY_S = 0.1


class Dispatcher:
    """Brings tasks from the queue into children."""

    name = "dispatch"

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._backoff = parts.backoff("claim")
        self._woken = asyncio.Event()
        self._may_have_work = True
        """Whether the queue may hold something for us: a claim that got less than it asked for has emptied it, until
        there is news. A place that becomes free is no news."""
        self._was_notified = False
        """Whether the news came as a notification, which other workers have heard too."""

    def wake(self) -> None:
        """There may be something to do."""
        self._woken.set()

    def on_task_notification(self) -> None:
        """There is something to claim, for whoever is first."""
        self._was_notified = True
        self.wake_to_claim()

    def wake_to_claim(self) -> None:
        """There may be something to claim."""
        self._may_have_work = True
        self._woken.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Claim until stop is set."""
        stopping = asyncio.create_task(stop.wait())
        stopping.add_done_callback(lambda _: self.wake())
        try:
            while not stop.is_set():
                self._woken.clear()
                await self._run_passes(stop)
                await self._woken.wait()
        finally:
            stopping.cancel()

    async def _run_passes(self, stop: asyncio.Event) -> None:
        """Passes for as long as they bring something; a pass that found no database is tried again."""
        while not stop.is_set() and not self._parts.fence.is_fenced:
            try:
                async with self._parts.claim_lock:
                    await self._parts.releases.reconcile_if_due()
                    found = await self._pass()
            except HorsiesError as error:
                self._may_have_work = True
                await self._backoff.wait(error)
                await self._reconcile_with_retry()
            else:
                self._backoff.reset()
                if not found:
                    self._schedule_recheck()
                    return

    def _schedule_recheck(self) -> None:
        # Several workers woken by one notification hide rows from each other for an instant; once is enough to see.
        if self._was_notified and self._parts.capacity.claim_request() is not None:
            asyncio.get_running_loop().call_later(RECHECK_DELAY_S, self.wake_to_claim)
        self._was_notified = False

    async def _pass(self) -> bool:
        """One look at what could be done; whether it brought anything."""
        await self._parts.releases.release_unbegun()
        await self._start_claimed()
        request = self._parts.capacity.claim_request() if self._may_have_work else None
        if request is None:
            return False
        self._may_have_work = False  # what is announced from now on may be too late for this claim
        sent_at = time.monotonic()
        rows = await self._parts.claims.claim(request)
        self._parts.fence.record_statement(sent_at)
        if len(rows) >= request.limit or request.may_return_fewer or self._parts.degraded_reason:
            self._may_have_work = True
        self._accept(rows, request.worker_id, took_s=time.monotonic() - sent_at)
        await self._parts.releases.release_unbegun()
        return len(rows) > 0

    def _accept(self, rows: Sequence[ClaimedRow], worker_id: UUID, *, took_s: float) -> None:
        """Put claimed rows on the desk and hand over those that are RUNNING already."""
        parts = self._parts
        helds = [parts.in_flight.add(row, worker_id, _phase_of(row)) for row in rows]
        running = [held for held in helds if held.phase is Phase.RUNNING]
        self._record_claimed(helds)
        if may_assign(parts.app.recovery, took_s=took_s) and not self._parts.capacity.is_closed:
            turned_away = assign(parts, running)
            self._update_admission(rows, turned_away)
        else:
            self._parts.releases.add(running)

    def _update_admission(self, rows: Sequence[ClaimedRow], turned_away: Sequence[InFlightTask]) -> None:
        """What a claim says about the next one for places beside coroutines."""
        admission, now = self._parts.capacity.async_admission, time.monotonic()
        if turned_away:
            pause_s = admission.on_rejected(turned_away[-1].row.id, now)
            asyncio.get_running_loop().call_later(pause_s, self.wake_to_claim)
        elif rows:
            is_last_async = self._parts.assignments.is_async_task(rows[-1].task_name)
            admission.on_claimed((row.id for row in rows), is_last_async=is_last_async, now=now)

    async def _start_claimed(self) -> None:
        """Begin claimed tasks for which a place is free now."""
        parts = self._parts
        waiting = parts.in_flight.in_phase(Phase.CLAIMED)
        if not waiting or self._parts.capacity.is_closed:
            return
        children = {child.pid: child for child in self._parts.capacity.available_children()}
        pairs = list(match_slots(parts, waiting, list(children.values())))
        if not pairs:
            return
        sent_at = time.monotonic()
        started = await parts.claims.start(
            [TaskStart(claim=held.claim, pid=pid) for held, pid in pairs], hostname=parts.identity.hostname
        )
        parts.fence.record_statement(sent_at)
        took_s = time.monotonic() - sent_at
        begun = {(row.id, row.claim_token) for row in started}
        moved = [held for held, _ in pairs if (held.row.id, held.row.claim_token) in begun]
        parts.reporter.record_unbegun_changes(moved, TaskStatus.CLAIMED, TaskStatus.RUNNING)
        by_child: dict[int, list[InFlightTask]] = {}
        for held, pid in pairs:
            if (held.row.id, held.row.claim_token) not in begun:
                await self._on_start_refused(held)
            elif may_assign(parts.app.recovery, took_s=took_s) and children[pid].accepts_work:
                by_child.setdefault(pid, []).append(held)
            else:
                self._parts.releases.add([held])
        # Together: one by one each would be a chunk of its own, of which a child holds only two.
        for pid, theirs in by_child.items():
            self._parts.releases.add(parts.assignments.assign(children[pid], theirs))

    async def _on_start_refused(self, held: InFlightTask) -> None:
        """The start was refused: the task has expired, or another hand has moved it."""
        parts = self._parts
        parts.in_flight.remove(held)
        if held.row.good_until is not None:
            error = expired_error(
                task_id=held.key.task_id, good_until=held.row.good_until, worker_id=str(held.claim.worker_id)
            )
            expired = await parts.claims.expire(
                [TaskExpiry(claim=held.claim, document=canonical_json({"err": encode_task_error(error)}))]
            )
            if expired:
                parts.reporter.record_unbegun_changes([held], TaskStatus.CLAIMED, TaskStatus.EXPIRED)
                return
        parts.reporter.emit(
            events.ClaimLost(
                worker_id=str(held.claim.worker_id),
                task_id=held.key.task_id,
                claim_token=held.key.claim_token,
                queue_name=held.row.queue_name,
            )
        )

    async def _reconcile_with_retry(self) -> None:
        while True:
            try:
                async with self._parts.claim_lock:
                    await self._parts.releases.reconcile()
            except BrokerError as error:
                await self._backoff.wait(error)
            else:
                return

    def _record_claimed(self, helds: Sequence[InFlightTask]) -> None:
        ids: dict[tuple[str, str], list[str]] = {}
        for held in helds:
            ids.setdefault((held.row.status, held.row.queue_name), []).append(held.key.task_id)
        for (name, queue), theirs in ids.items():
            status = TaskStatus(name)
            kind = "claim and start" if status is TaskStatus.RUNNING else "claim"
            self._parts.reporter.record_change(kind, queue, TaskStatus.PENDING, status, theirs)

    async def wait_until_idle(self) -> None:
        """Wait for every task in a child's hands to come out of them, giving back meanwhile what comes back unbegun."""
        while self._parts.in_flight.in_phase(Phase.RUNNING):
            self._woken.clear()
            with suppress(HorsiesError):
                await self._parts.releases.release_unbegun()
            if self._parts.in_flight.in_phase(Phase.RUNNING):
                await self._woken.wait()

    def kill_busy_children(self) -> None:
        """The grace is over: end every child that still works."""
        for child in self._parts.pool.children:
            if self._parts.assignments.for_child(child).tasks:
                self._parts.assignments.kill_child(child, KillReason.SHUTDOWN, None)

    def recall_chunks(self) -> None:
        for child in self._parts.pool.children:
            if child.unbegun:
                child.recall()


def _phase_of(row: ClaimedRow) -> Phase:
    return Phase.RUNNING if row.status == TaskStatus.RUNNING else Phase.CLAIMED


# What this worker can take now.


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeSlots:
    """The child of each place: those that any task may take, and those beside coroutines, for coroutines only."""

    any_task: list[int]
    async_only: list[int]


class Capacity:
    """Places in children and budgets, as the next claim may use them; none once it is closed."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.is_closed = False
        """Nothing more is handed over: the worker is about to leave."""
        self.async_admission = AsyncAdmission()

    def claim_request(self) -> ClaimRequest | None:
        """What to ask the queue for; None when there is room for nothing."""
        parts = self._parts
        children = self.available_children()
        waiting = parts.in_flight.in_phase(Phase.CLAIMED)
        # A function that has been claimed already comes before whatever could be claimed to run beside coroutines.
        is_awaited = not all(map(parts.assignments.is_async, waiting))
        asked = plan_claim(
            self._served(),
            [parts.assignments.load(child) for child in children],
            self._limits(),
            claimed=len(waiting),
            max_async_only=0 if is_awaited else self.async_admission.allowed(time.monotonic()),
        )
        if asked is None or self.is_closed:
            return None
        lease_ms, places = parts.app.claim_lease_ms, self.free_slots(children)
        return ClaimRequest(
            worker_id=parts.identity.worker_id,
            hostname=parts.identity.hostname,
            queues=asked.queues,
            limit=asked.limit,
            pids=[*places.any_task[: asked.startable - asked.async_only], *places.async_only[: asked.async_only]],
            lease_s=None if lease_ms is None else lease_ms / 1000,
            cluster_cap=asked.cluster_cap,
        )

    def available_children(self) -> list[Child]:
        """Those that take work, the least busy first."""
        hands = self._parts.assignments
        able = [
            child for child in self._parts.pool.children if child.accepts_work and not hands.for_child(child).is_closed
        ]
        return sorted(able, key=lambda child: len(hands.for_child(child).tasks))

    def free_slots(self, children: Sequence[Child]) -> FreeSlots:
        """What these children offer."""
        loads = [(child.pid, self._parts.assignments.load(child)) for child in children]
        size = max((each.chunk_size for each in self._served()), default=1)
        most = self._parts.worker.async_concurrency
        return FreeSlots(
            any_task=_round_robin([pid] * count_free_slots(load, size, depth=MAX_CHUNKS) for pid, load in loads),
            async_only=_round_robin([pid] * count_async_slots(load, async_concurrency=most) for pid, load in loads),
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
                    parts.durations.for_queue(name),
                    max_chunk=parts.worker.max_chunk,
                    is_capped=is_cap_on_all or caps.get(name) is not None,
                ),
            )
            for name in parts.worker.queues or ()
        ]

    def _limits(self) -> ClaimLimits:
        app, worker = self._parts.app, self._parts.worker
        return ClaimLimits(
            prefetch_buffer=app.prefetch_buffer,
            max_claim_batch=worker.max_claim_batch,
            max_claim_per_worker=worker.max_claim_per_worker,
            async_concurrency=worker.async_concurrency,
            cluster_wide_cap=app.cluster_wide_cap,
        )


def _round_robin(offers: Iterable[Sequence[int]]) -> list[int]:
    """One of each, then the next, so that a few tasks are spread over all children."""
    return [pid for pid in chain.from_iterable(zip_longest(*offers)) if pid is not None]


# Giving back what is ours in the table and never began here: no attempt, no retry, no crash.


class Releases:
    """What is to be given back, and what is found to be ours without our knowing."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._unbegun: list[InFlightTask] = []
        self._reconciled_at = time.monotonic()

    def add(self, helds: Iterable[InFlightTask]) -> None:
        """RUNNING in the table, and handed to nobody who has begun it."""
        self._unbegun += helds

    async def release_unbegun(self) -> None:
        """Store what was added; kept for the next time where the database does not answer."""
        back = list(self._unbegun)
        if not back:
            return
        rows = await self._parts.claims.release_running([held.claim for held in back])
        del self._unbegun[: len(back)]
        self._record_changes(TaskStatus.RUNNING, back, rows)
        for held in back:
            self._parts.in_flight.remove(held)

    async def release_claimed(self) -> None:
        """Give up claims that wait for a place."""
        waiting = self._parts.in_flight.in_phase(Phase.CLAIMED)
        if waiting:
            rows = await self._parts.claims.release([held.claim for held in waiting])
            self._record_changes(TaskStatus.CLAIMED, waiting, rows)
        for held in waiting:
            self._parts.in_flight.remove(held)

    async def reconcile_if_due(self) -> None:
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
            parts.fence.record_statement(sent_at)
            await self._release_rows([row for row in rows if self._is_answer_lost(row)], worker_id)
            if not rows and worker_id in identity.former_ids:
                await parts.fleet.set_state(worker_id, WorkerState.STOPPED)
                identity.former_ids.remove(worker_id)
        self._reconciled_at = time.monotonic()

    def _record_changes(
        self, source: TaskStatus, helds: Iterable[InFlightTask], rows: Sequence[ClaimStatusRow]
    ) -> None:
        status = {(row.id, row.claim_token): TaskStatus(row.status) for row in rows}
        for target in set(status.values()):
            moved = [held for held in helds if status.get((held.row.id, held.row.claim_token)) is target]
            self._parts.reporter.record_unbegun_changes(moved, source, target)

    def _is_answer_lost(self, row: ClaimStatusRow) -> bool:
        held = self._parts.in_flight.get(_key(row))
        return held is None or (held.phase is Phase.CLAIMED and row.status == TaskStatus.RUNNING)

    async def _release_rows(self, rows: Sequence[ClaimStatusRow], worker_id: UUID) -> None:
        claims, desk = self._parts.claims, self._parts.in_flight
        if claimed := [_claim_ref(row, worker_id) for row in rows if row.status == TaskStatus.CLAIMED]:
            await claims.release(claimed)
        if running := [_claim_ref(row, worker_id) for row in rows if row.status == TaskStatus.RUNNING]:
            await claims.release_running(running)
        for row in rows:
            if (held := desk.get(_key(row))) is not None:
                desk.remove(held)


def _key(row: ClaimStatusRow) -> AttemptKey:
    return AttemptKey(str(row.id), row.claim_token)


def _claim_ref(row: ClaimStatusRow, worker_id: UUID) -> ClaimRef:
    return ClaimRef(task_id=row.id, claim_token=row.claim_token, worker_id=worker_id)


# When the claim loop looks of its own accord: at the next due time, and at the poll that trusts nothing else.


class DuePoller:
    """Finds out when the next task is due, and looks every few seconds anyway."""

    name = "wake-up"

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._fleet = WorkerStore(parts.claims.database)  # beats have their connection to themselves
        self._wake_at = 0.0
        self._wake_at_changed = asyncio.Event()

    def expect_due_in(self, delay_s: float) -> None:
        """A task will be due after so many seconds, which this worker knows without asking."""
        due_at = time.monotonic() + delay_s
        if due_at < self._wake_at:
            self._wake_at = due_at
            self._wake_at_changed.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Wake the claim loop until stop is set."""
        await run_until(stop, self._poll())

    async def _poll(self) -> None:
        poll_s = self._parts.app.resilience.notify_poll_interval_ms / 1000
        while True:
            self._wake_at = time.monotonic() + poll_s
            due_s = await self._next_due_s()
            if due_s is not None:
                self.expect_due_in(due_s)
            await self._sleep_until_wake()
            self._parts.wake_to_claim()

    async def _next_due_s(self) -> float | None:
        """Seconds until the soonest task that is not due yet, if there is one."""
        try:
            async with self._parts.claim_lock:
                return await self._fleet.next_due_s(self._parts.worker.queues or [])
        except HorsiesError:
            return None

    async def _sleep_until_wake(self) -> None:
        while (left_s := self._wake_at - time.monotonic()) > 0:
            self._wake_at_changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake_at_changed.wait(), left_s)
