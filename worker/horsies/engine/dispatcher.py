"""The dispatcher: claims tasks for free slots, assigns them to children, and releases what cannot run here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import product
from math import inf
from typing import TYPE_CHECKING
from uuid import UUID

from horsies.codec.results import error_document
from horsies.engine import events
from horsies.engine.in_flight import InFlightTask
from horsies.engine.service import run_until
from horsies.errors import BrokerError, HorsiesError
from horsies.model.capacity import (
    ChildLoad,
    ClaimLimits,
    ClaimPlan,
    ServedQueue,
    TaskKind,
    accepts,
    count_free_slots,
    plan_claim,
)
from horsies.model.crash import KillReason
from horsies.model.fence import may_assign
from horsies.model.task import TaskStatus, expired_error
from horsies.store.claims import ClaimedRow, ClaimRef, ClaimRequest, ClaimStatusRow
from horsies.store.connection import LockTimeout
from horsies.store.workers import WorkerState, WorkerStore

if TYPE_CHECKING:
    from horsies.engine.pool.child import Child
    from horsies.engine.worker import Parts

RECHECK_DELAY_S = 0.1
"""Delay of the second claim after a notification that woke several workers at once."""
MAX_SEARCH_PAUSE_S = 0.5
"""Longest pause between two claims of one kind of task that found none."""
SEARCH_PAUSE_FACTOR = 10
"""Such a claim may have read a long backlog of the other kind, so it is repeated only after ten times its duration."""


RELEASE_INTERVAL_S = 0.5
"""How often a draining worker tries to release tasks while the database does not answer."""


class Dispatcher:
    """Claims tasks and assigns them to children whenever it is woken."""

    name = "dispatcher"

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._backoff = parts.backoff(self.name)
        self._woken = asyncio.Event()
        self._open_kinds = set(TaskKind)
        """Kinds of tasks that the queues may hold for us. A claim that returned fewer rows than requested removes its
        kind; a notification, a due time or the poll adds it again. A slot becoming free does not."""
        self._search_after = dict.fromkeys(TaskKind, 0.0)
        """When tasks of a kind may be claimed again, after none were found."""
        self._was_notified = False
        """Whether a notification woke us, which woke other workers at the same time."""
        self._was_polled = False
        """Whether the poll interval has passed since the last claim."""
        self._recheck: asyncio.TimerHandle | None = None
        """Wakes the dispatcher to claim once more; one for all reasons."""

    def wake(self) -> None:
        """Run a pass: a slot became free or something must be released."""
        self._woken.set()

    def wake_to_claim(self) -> None:
        """Run a pass that also claims: the queues may have new tasks."""
        self._open_kinds = set(TaskKind)
        self._woken.set()

    def on_poll(self) -> None:
        """Like `wake_to_claim`, in case that a notification was lost; other workers' leases may have expired, too."""
        self._was_polled = True
        self.wake_to_claim()

    def on_task_notification(self) -> None:
        self._was_notified = True
        self.wake_to_claim()

    async def run(self, stop: asyncio.Event) -> None:
        """Dispatch until `stop` is set."""
        stopping = asyncio.create_task(stop.wait())
        stopping.add_done_callback(lambda _: self.wake())
        try:
            while not stop.is_set():
                self._woken.clear()
                await self._run_passes(stop)
                await self._woken.wait()
        finally:
            stopping.cancel()

    async def wait_until_idle(self) -> None:
        """Wait until no task is left in a child; releases tasks that come back unbegun."""
        while self._parts.in_flight.is_running:
            self._woken.clear()
            with suppress(HorsiesError):
                await self._parts.releases.release_unbegun()
            if self._parts.in_flight.is_running:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), RELEASE_INTERVAL_S)

    def recall_chunks(self) -> None:
        for child in self._parts.pool.children:
            if child.unbegun:
                child.recall()

    def kill_busy_children(self) -> None:
        """Kill every child that still has tasks; the shutdown grace period is over."""
        for child in self._parts.pool.children:
            if not child.is_idle:
                self._parts.assignments.kill_child(child, KillReason.SHUTDOWN)

    async def _run_passes(self, stop: asyncio.Event) -> None:
        """Run passes while they claim something; retry after a database error."""
        while not stop.is_set() and not self._parts.fence.is_fenced:
            try:
                async with self._parts.claim_lock:
                    await self._parts.releases.reconcile_if_due()
                    runs_again = await self._run_pass()
            except LockTimeout as error:  # nothing was claimed, and the database is available
                self._open_kinds = set(TaskKind)
                worker_id = str(self._parts.identity.worker_id)
                self._parts.reporter.emit(events.ClaimsBlocked(worker_id=worker_id, holder=error.message))
                await asyncio.sleep(RECHECK_DELAY_S)
            except HorsiesError as error:
                self._open_kinds = set(TaskKind)
                await self._backoff.wait(error)
                await self._reconcile_with_retry()
            else:
                self._backoff.reset()
                if not runs_again:
                    self._schedule_recheck()
                    return

    def _schedule_recheck(self) -> None:
        # Workers woken by the same notification skip each other's locked rows; one later claim finds what was missed.
        if self._was_notified and self._parts.capacity.has_room():
            self._wake_to_claim_in(RECHECK_DELAY_S)
            self._parts.look_for_due_in(RECHECK_DELAY_S)  # delayed sends notify, too
        self._was_notified = False

    def _wake_to_claim_in(self, delay_s: float) -> None:
        """Claim again after a delay; an earlier timer counts for a later one, too."""
        loop = asyncio.get_running_loop()
        if self._recheck is not None and not self._recheck.cancelled() and self._recheck.when() > loop.time():
            if self._recheck.when() <= loop.time() + delay_s:
                return
            self._recheck.cancel()
        self._recheck = loop.call_later(delay_s, self.wake_to_claim)

    async def _reconcile_with_retry(self) -> None:
        """Release tasks that the server claimed or started although we got an error instead of its answer."""
        while True:
            try:
                async with self._parts.claim_lock:
                    await self._parts.releases.reconcile()
            except BrokerError as error:
                await self._backoff.wait(error)
            else:
                return

    async def _run_pass(self) -> bool:
        """Release unbegun tasks, start prefetched ones, claim new ones; returns whether to run another pass."""
        await self._parts.releases.release_unbegun()
        await self._start_claimed()
        if not self._open_kinds:
            return False
        plan = self._parts.capacity.plan(self._kinds_to_claim())
        if plan is None:
            return False
        # Before the claim, so that a notification during the claim adds the kinds again.
        claimed_kinds = set(TaskKind) if plan.kind is TaskKind.ANY else {plan.kind}
        self._open_kinds -= claimed_kinds
        request = self._parts.capacity.request(plan, takes_expired_leases=self._take_poll())
        sent_at = time.monotonic()
        rows = await self._parts.claims.claim(request)
        took_s = time.monotonic() - sent_at
        self._parts.fence.record_statement(sent_at)
        if len(rows) >= request.limit or request.may_return_fewer or self._parts.degraded_reason:
            self._open_kinds |= claimed_kinds
        elif plan.kind is not TaskKind.ANY:
            pause_s = min(MAX_SEARCH_PAUSE_S, SEARCH_PAUSE_FACTOR * took_s)
            self._search_after[plan.kind] = time.monotonic() + pause_s
        self._accept(rows, plan, request.worker_id, took_s=took_s)
        await self._parts.releases.release_unbegun()
        return len(rows) > 0 or plan.kind is not TaskKind.ANY  # the other kind may be due

    def _kinds_to_claim(self) -> set[TaskKind]:
        """The open kinds, except those that are searched for later."""
        now = time.monotonic()
        waiting = {kind for kind in self._open_kinds if self._search_after[kind] > now}
        if waiting:
            self._wake_to_claim_in(min(self._search_after[kind] for kind in waiting) - now)
        return self._open_kinds - waiting

    def _accept(self, rows: Sequence[ClaimedRow], plan: ClaimPlan, worker_id: UUID, *, took_s: float) -> None:
        """Add claimed rows to the tasks in flight and assign those that were claimed as RUNNING."""
        parts = self._parts
        self._record_claimed(rows)
        running = [row for row in rows if row.worker_pid is not None]
        for row in rows if len(running) < len(rows) else ():
            if row.worker_pid is None:
                parts.in_flight.add_prefetched(row, worker_id)
        if may_assign(parts.app_config.recovery, took_s=took_s) and not parts.capacity.is_closed:
            for child, child_rows in self._split(running, plan):
                parts.releases.add_rows(parts.assignments.assign(child, child_rows, worker_id), worker_id)
        else:
            parts.releases.add_rows(running, worker_id)

    def _split(self, rows: Sequence[ClaimedRow], plan: ClaimPlan) -> Iterator[tuple[Child, Sequence[ClaimedRow]]]:
        """The rows of each child: those claimed for it, or an equal share of a few short tasks with idle children."""
        children = {child.pid: child for child in self._parts.capacity.available_children()}
        pids = set(plan.pids)
        if 1 < len(rows) < plan.limit and len(pids) == 1:
            pids |= self._parts.capacity.idle_pids(plan.kind)
            by_pid = {pid: rows[number :: len(pids)] for number, pid in enumerate(sorted(pids))}
        else:
            by_pid = {pid: [row for row in rows if row.worker_pid == pid] for pid in pids}
        for pid, child_rows in by_pid.items():
            if not child_rows:
                continue
            if pid in children:
                yield children[pid], child_rows
            else:  # the child died during the claim
                self._parts.releases.add_rows(child_rows, self._parts.identity.worker_id)

    def _record_claimed(self, rows: Sequence[ClaimedRow]) -> None:
        ids: dict[tuple[bool, str], list[UUID]] = {}
        for row in rows:
            ids.setdefault((row.worker_pid is None, row.queue_name), []).append(row.id)
        for (is_waiting, queue), task_ids in ids.items():
            kind, status = ("claim", TaskStatus.CLAIMED) if is_waiting else ("claim and start", TaskStatus.RUNNING)
            self._parts.reporter.record_change(kind, queue, TaskStatus.PENDING, status, task_ids)

    def _take_poll(self) -> bool:
        """Whether this claim has to look for expired leases: always with leases, else once per poll."""
        was_polled, self._was_polled = self._was_polled, False
        return was_polled or self._parts.app_config.claim_lease_ms is not None

    async def _start_claimed(self) -> None:
        """Start prefetched tasks for which a slot is free now."""
        parts = self._parts
        waiting = list(parts.in_flight.prefetched.values())
        if not waiting or parts.capacity.is_closed:
            return
        children = {child.pid: child for child in parts.capacity.available_children()}
        slots = list(parts.capacity.match_slots(waiting))
        if not slots:
            return
        sent_at = time.monotonic()
        rows = await parts.claims.start({task.claim: pid for task, pid in slots}, hostname=parts.identity.hostname)
        parts.fence.record_statement(sent_at)
        took_s = time.monotonic() - sent_at
        started = {(row.id, row.claim_token) for row in rows}
        moved = [task for task, _ in slots if (task.row.id, task.row.claim_token) in started]
        parts.reporter.record_unbegun_changes(moved, TaskStatus.CLAIMED, TaskStatus.RUNNING)
        rows_by_slot: dict[tuple[int, UUID], list[ClaimedRow]] = {}
        for task, pid in slots:
            parts.in_flight.settle(task)  # no longer as a prefetched task
            if (task.row.id, task.row.claim_token) not in started:
                await self._on_start_refused(task)
            elif may_assign(parts.app_config.recovery, took_s=took_s) and children[pid].accepts_work:
                rows_by_slot.setdefault((pid, task.worker_id), []).append(task.row)
            else:
                parts.releases.add_rows([task.row], task.worker_id)
        # All tasks of a child together: one by one, each would be a chunk, and a child takes only two chunks.
        for (pid, worker_id), child_rows in rows_by_slot.items():
            parts.releases.add_rows(parts.assignments.assign(children[pid], child_rows, worker_id), worker_id)

    async def _on_start_refused(self, task: InFlightTask) -> None:
        """The row could not be started: the task has expired, or this worker lost the claim."""
        parts = self._parts
        if (good_until := task.details.good_until) is not None:
            error = expired_error(task_id=task.key.task_id, good_until=good_until, worker_id=str(task.claim.worker_id))
            expired = await parts.claims.expire({task.claim: error_document(error)})
            if expired:
                parts.reporter.record_unbegun_changes([task], TaskStatus.CLAIMED, TaskStatus.EXPIRED)
                return
        parts.reporter.emit(
            events.ClaimLost(
                worker_id=str(task.claim.worker_id),
                task_id=task.key.task_id,
                claim_token=task.key.claim_token,
                queue_name=task.row.queue_name,
            )
        )


class Capacity:
    """Which tasks this worker can claim now."""

    def __init__(self, parts: Parts, *, async_tasks: Collection[str], limits: ClaimLimits) -> None:
        self._parts = parts
        self._async_tasks = sorted(async_tasks)
        self._limits = limits
        self.is_closed = False
        """The worker is stopping: nothing is claimed or assigned any more."""

    def has_room(self) -> bool:
        return self.plan(frozenset(TaskKind)) is not None

    def plan(self, kinds: Collection[TaskKind]) -> ClaimPlan | None:
        """Plan the next claim of these kinds; None if there is no capacity."""
        if self.is_closed:
            return None
        claimed = len(self._parts.in_flight.prefetched)
        return plan_claim(self._served_queues(), self._loads(), self._limits, claimed=claimed, kinds=kinds)

    def request(self, plan: ClaimPlan, *, takes_expired_leases: bool) -> ClaimRequest:
        identity, lease_ms = self._parts.identity, self._parts.app_config.claim_lease_ms
        return ClaimRequest(
            worker_id=identity.worker_id,
            hostname=identity.hostname,
            queues=plan.queues,
            limit=plan.limit,
            pids=plan.pids,
            lease_s=None if lease_ms is None else lease_ms / 1000,
            cluster_cap=plan.cluster_cap,
            only_tasks=self._async_tasks if plan.kind is TaskKind.COROUTINE else None,
            except_tasks=self._async_tasks if plan.kind is TaskKind.FUNCTION else None,
            takes_expired_leases=takes_expired_leases,
        )

    def available_children(self) -> list[Child]:
        """Children that accept tasks, the least busy first."""
        available = filter(self._parts.assignments.accepts_work, self._parts.pool.children)
        return sorted(available, key=lambda child: child.tasks_in_child)

    def idle_pids(self, kind: TaskKind) -> set[int]:
        """Idle children that may get tasks of this kind."""
        loads = self._loads()
        return {load.pid for load in loads if not load.tasks and accepts(load, kind, loads, self._limits)}

    def match_slots(self, waiting: Iterable[InFlightTask]) -> Iterator[tuple[InFlightTask, int]]:
        """Pair waiting tasks with free slots, in order; a task without a slot blocks those behind it."""
        loads, queues = self._loads(), self._served_queues()
        free = {kind: list[int]() for kind in TaskKind}
        for kind, load in product(TaskKind, loads):
            if accepts(load, kind, loads, self._limits):
                slots = max((count_free_slots(load, kind, queue, self._limits) for queue in queues), default=0)
                free[kind] += [load.pid] * slots
        for task in waiting:
            kind = TaskKind.COROUTINE if self._parts.assignments.is_async(task.row) else TaskKind.FUNCTION
            slots = free[kind] or free[TaskKind.ANY]
            if not slots:
                return
            yield task, slots.pop(0)

    def _loads(self) -> list[ChildLoad]:
        return list(map(self._parts.assignments.load, self.available_children()))

    def _served_queues(self) -> list[ServedQueue]:
        parts = self._parts
        caps = {queue.name: queue.max_concurrency for queue in parts.app_config.custom_queues or ()}
        return [
            ServedQueue(name=name, max_concurrency=caps.get(name), run_ms=parts.durations.for_queue(name))
            for name in parts.worker_config.queues or ()
        ]


class Releases:
    """Returns tasks that never began here to their queues; this costs no attempt, retry or crash."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._unbegun: list[InFlightTask] = []
        self._lost_starts: list[InFlightTask] = []
        """Unbegun tasks of children that died."""
        self._reconciled_at = time.monotonic()

    def add(self, tasks: Iterable[InFlightTask], *, lost_start: bool = False) -> None:
        """Queue tasks for release that are RUNNING in the database and have not begun; `lost_start` counts it."""
        queue = self._lost_starts if lost_start else self._unbegun
        queue += tasks

    def add_rows(self, rows: Sequence[ClaimedRow], worker_id: UUID) -> None:
        """Like `add`, for tasks that no child could take."""
        if rows:
            self.add(self._parts.in_flight.add_unassigned(rows, worker_id))

    async def release_unbegun(self) -> None:
        """Release the queued tasks; they stay queued if the database does not answer."""
        for queue in (self._unbegun, self._lost_starts):
            if tasks := list(queue):
                claims, is_lost = [task.claim for task in tasks], queue is self._lost_starts
                rows = await self._parts.claims.release_running(claims, lost_start=is_lost)
                del queue[: len(tasks)]  # others may have been added during the statement
                self._record_changes(TaskStatus.RUNNING, tasks, rows)
                for task in tasks:
                    self._parts.in_flight.settle(task)

    async def release_claimed(self) -> None:
        """Release all prefetched tasks."""
        tasks = list(self._parts.in_flight.prefetched.values())
        if tasks:
            rows = await self._parts.claims.release([task.claim for task in tasks])
            self._record_changes(TaskStatus.CLAIMED, tasks, rows)
        for task in tasks:
            self._parts.in_flight.settle(task)

    async def reconcile_if_due(self) -> None:
        """Reconcile once per check interval: the server may execute a statement long after we gave up on it."""
        if (time.monotonic() - self._reconciled_at) * 1000 >= self._parts.app_config.recovery.check_interval_ms:
            await self.reconcile()

    async def reconcile(self) -> None:
        """Release rows owned by this worker that are not in flight: the answer to their claim or start was lost.

        A former worker id that owns nothing any more is marked as stopped.
        """
        parts, identity = self._parts, self._parts.identity
        for worker_id in (*identity.former_ids, identity.worker_id):
            sent_at = time.monotonic()
            rows = await parts.claims.owned(worker_id)
            parts.fence.record_statement(sent_at)
            started = {(task.row.id, task.row.claim_token) for task in parts.in_flight.started()}
            await self._release_rows([row for row in rows if self._is_answer_lost(row, started)], worker_id)
            if not rows and worker_id in identity.former_ids:
                await parts.worker_store.set_state(worker_id, WorkerState.STOPPED)
                identity.former_ids.remove(worker_id)
        self._reconciled_at = time.monotonic()

    def _is_answer_lost(self, row: ClaimStatusRow, started: Container[tuple[UUID, int]]) -> bool:
        """Whether we do not know of this claim (not in flight) or of this start (still prefetched here)."""
        key = (row.id, row.claim_token)
        is_known = key in started or (row.status == TaskStatus.CLAIMED and key in self._parts.in_flight.prefetched)
        return not is_known

    async def _release_rows(self, rows: Sequence[ClaimStatusRow], worker_id: UUID) -> None:
        claims, in_flight = self._parts.claims, self._parts.in_flight
        if claimed := [_claim_ref(row, worker_id) for row in rows if row.status == TaskStatus.CLAIMED]:
            await claims.release(claimed)
        if running := [_claim_ref(row, worker_id) for row in rows if row.status == TaskStatus.RUNNING]:
            await claims.release_running(running)
        for row in rows:
            in_flight.prefetched.pop((row.id, row.claim_token), None)

    def _record_changes(
        self, source: TaskStatus, tasks: Iterable[InFlightTask], rows: Sequence[ClaimStatusRow]
    ) -> None:
        statuses = {(row.id, row.claim_token): TaskStatus(row.status) for row in rows}
        for target in set(statuses.values()):
            moved = [task for task in tasks if statuses.get((task.row.id, task.row.claim_token)) is target]
            self._parts.reporter.record_unbegun_changes(moved, source, target)


def _claim_ref(row: ClaimStatusRow, worker_id: UUID) -> ClaimRef:
    return ClaimRef(task_id=row.id, claim_token=row.claim_token, worker_id=worker_id)


class DuePoller:
    """Wakes the dispatcher when the next task becomes due, and at every poll interval in case a NOTIFY was lost."""

    name = "due poller"

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        # Not parts.worker_store, which uses the connection of the heartbeats.
        self._worker_store = WorkerStore(parts.claims.database)
        self._wake_at = 0.0
        """When to wake the dispatcher."""
        self._look_at = inf
        """When to ask the database for the next due time, if that is earlier."""
        self._changed = asyncio.Event()

    def expect_due_in(self, delay_s: float) -> None:
        """Wake the dispatcher in `delay_s` seconds at the latest: a task becomes due then."""
        self._wake_at = min(self._wake_at, time.monotonic() + delay_s)
        self._changed.set()

    def look_in(self, delay_s: float) -> None:
        """Ask for the next due time in `delay_s` seconds at the latest: a delayed task may have been sent."""
        self._look_at = min(self._look_at, time.monotonic() + delay_s)
        self._changed.set()

    async def run(self, stop: asyncio.Event) -> None:
        await run_until(stop, self._poll())

    async def _poll(self) -> None:
        poll_s = self._parts.app_config.resilience.notify_poll_interval_ms / 1000
        poll_at = time.monotonic() + poll_s
        while True:
            self._wake_at, self._look_at = poll_at, inf
            due_s = await self._next_due_s()
            if due_s is not None:
                self.expect_due_in(due_s)
            while (left_s := min(self._wake_at, self._look_at) - time.monotonic()) > 0:
                self._changed.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), left_s)
            if self._wake_at <= time.monotonic():
                self._parts.on_poll()
                poll_at = time.monotonic() + poll_s

    async def _next_due_s(self) -> float | None:
        """Seconds until the next task becomes due; None if there is none or the database is unavailable."""
        try:
            async with self._parts.claim_lock:
                return await self._worker_store.next_due_s(self._parts.worker_config.queues or [])
        except HorsiesError:
            return None
