"""The dispatcher: claims tasks for free slots, assigns them to children, and releases what cannot run here.

In the engine a *function* is a `def` task and a *coroutine* an `async def` task: a child runs one function at a time,
or several coroutines. An async-only slot is a free place beside running coroutines.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import TYPE_CHECKING
from uuid import UUID

from horsies.codec.results import error_document
from horsies.engine import events
from horsies.engine.in_flight import InFlightTask
from horsies.engine.service import run_until
from horsies.errors import BrokerError, HorsiesError
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
from horsies.store.claims import ClaimedRow, ClaimRef, ClaimRequest, ClaimStatusRow
from horsies.store.connection import LockTimeout
from horsies.store.workers import WorkerState, WorkerStore

if TYPE_CHECKING:
    from horsies.engine.pool.child import Child
    from horsies.engine.worker import Parts

RECHECK_DELAY_S = 0.1
"""Delay of the second claim after a notification that woke several workers at once."""


RELEASE_INTERVAL_S = 0.5
"""How often a draining worker tries to release tasks while the database does not answer."""


class Dispatcher:
    """Claims tasks and assigns them to children whenever it is woken."""

    name = "dispatcher"

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._backoff = parts.backoff(self.name)
        self._woken = asyncio.Event()
        self._may_have_work = True
        """Whether the queues may hold tasks for us. A claim that returned fewer rows than requested clears it; a
        notification, a due time or the poll sets it again. A slot becoming free does not."""
        self._was_notified = False
        """Whether a notification woke us, which woke other workers at the same time."""

    def wake(self) -> None:
        """Run a pass: a slot became free or something must be released."""
        self._woken.set()

    def wake_to_claim(self) -> None:
        """Run a pass that also claims: the queues may have new tasks."""
        self._may_have_work = True
        self._woken.set()

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
                    has_claimed = await self._run_pass()
            except LockTimeout as error:  # nothing was claimed, and the database is available
                self._may_have_work = True
                worker_id = str(self._parts.identity.worker_id)
                self._parts.reporter.emit(events.ClaimsBlocked(worker_id=worker_id, holder=error.message))
                await asyncio.sleep(RECHECK_DELAY_S)
            except HorsiesError as error:
                self._may_have_work = True
                await self._backoff.wait(error)
                await self._reconcile_with_retry()
            else:
                self._backoff.reset()
                if not has_claimed:
                    self._schedule_recheck()
                    return

    def _schedule_recheck(self) -> None:
        # Workers woken by the same notification skip each other's locked rows; one later claim finds what was missed.
        if self._was_notified and self._parts.capacity.claim_request() is not None:
            asyncio.get_running_loop().call_later(RECHECK_DELAY_S, self.wake_to_claim)
        self._was_notified = False

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
        """Release unbegun tasks, start prefetched ones, claim new ones; returns whether anything was claimed."""
        await self._parts.releases.release_unbegun()
        await self._start_claimed()
        request = self._parts.capacity.claim_request() if self._may_have_work else None
        if request is None:
            return False
        self._may_have_work = False  # before the claim, so that a notification during the claim sets it again
        sent_at = time.monotonic()
        rows = await self._parts.claims.claim(request)
        self._parts.fence.record_statement(sent_at)
        if len(rows) >= request.limit or request.may_return_fewer or self._parts.degraded_reason:
            self._may_have_work = True
        self._accept(rows, request.worker_id, took_s=time.monotonic() - sent_at)
        await self._parts.releases.release_unbegun()
        return len(rows) > 0

    def _accept(self, rows: Sequence[ClaimedRow], worker_id: UUID, *, took_s: float) -> None:
        """Add claimed rows to the tasks in flight and assign those that were claimed as RUNNING."""
        parts = self._parts
        self._record_claimed(rows)
        running: list[ClaimedRow] = []
        for row in rows:
            if row.status == TaskStatus.RUNNING:
                running.append(row)
            else:
                parts.in_flight.add_prefetched(row, worker_id)
        if may_assign(parts.app_config.recovery, took_s=took_s) and not parts.capacity.is_closed:
            rejected_functions = assign(parts, running, worker_id)
            self._update_admission(rows, rejected_functions)
        else:
            parts.releases.add_rows(running, worker_id)

    def _record_claimed(self, rows: Sequence[ClaimedRow]) -> None:
        ids: dict[tuple[str, str], list[UUID]] = {}
        for row in rows:
            ids.setdefault((row.status, row.queue_name), []).append(row.id)
        for (status_value, queue), task_ids in ids.items():
            status = TaskStatus(status_value)
            kind = "claim and start" if status is TaskStatus.RUNNING else "claim"
            self._parts.reporter.record_change(kind, queue, TaskStatus.PENDING, status, task_ids)

    def _update_admission(self, rows: Sequence[ClaimedRow], rejected_functions: Sequence[ClaimedRow]) -> None:
        """Adapt how many tasks the next claim may request for async-only slots."""
        admission, now = self._parts.capacity.async_admission, time.monotonic()
        if rejected_functions:
            pause_s = admission.on_rejected(rejected_functions[-1].id, now)
            asyncio.get_running_loop().call_later(pause_s, self.wake_to_claim)
        elif rows:
            is_last_async = self._parts.assignments.is_async_task(rows[-1].task_name)
            admission.on_claimed((row.id for row in rows), is_last_async=is_last_async, now=now)

    async def _start_claimed(self) -> None:
        """Start prefetched tasks for which a slot is free now."""
        parts = self._parts
        waiting = list(parts.in_flight.prefetched.values())
        if not waiting or parts.capacity.is_closed:
            return
        children = {child.pid: child for child in parts.capacity.available_children()}
        slots = list(match_slots(parts, waiting, list(children.values())))
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
        if task.row.good_until is not None:
            error = expired_error(
                task_id=task.key.task_id, good_until=task.row.good_until, worker_id=str(task.claim.worker_id)
            )
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


# Assigning tasks to slots


def assign(parts: Parts, rows: Sequence[ClaimedRow], worker_id: UUID) -> list[ClaimedRow]:
    """Assign each task to the child it was claimed for, after swapping slots so that coroutines run beside coroutines.

    Releases the tasks that do not fit; returns the functions among them that ended up with an async-only slot.
    """
    children = {child.pid: child for child in parts.capacity.available_children()}
    async_pids = {pid for pid, child in children.items() if parts.assignments.runs_only_coroutines(child)}
    rows_by_child: dict[int, list[ClaimedRow]] = {}
    for row, pid in _match_by_kind(parts, rows, async_pids) if async_pids else _claimed_slots(rows):
        rows_by_child.setdefault(pid, []).append(row)
    rejected_functions: list[ClaimedRow] = []
    for pid, child_rows in rows_by_child.items():
        child = children.get(pid)
        rejected = child_rows if child is None else parts.assignments.assign(child, child_rows, worker_id)
        parts.releases.add_rows(rejected, worker_id)
        if pid in async_pids:
            rejected_functions += [row for row in rejected if not parts.assignments.is_async(row)]
    return rejected_functions


def _claimed_slots(rows: Iterable[ClaimedRow]) -> list[tuple[ClaimedRow, int]]:
    return [(row, row.worker_pid or 0) for row in rows]  # 0: no child, so the task is released


def _match_by_kind(parts: Parts, rows: Sequence[ClaimedRow], async_pids: set[int]) -> list[tuple[ClaimedRow, int]]:
    """Swap slots so that coroutines get the async-only ones, and put leftover functions there last.

    A child accepts tasks in order up to the first that does not fit, so a function must not come before coroutines.
    """
    are_async = [parts.assignments.is_async(row) for row in rows]
    pids = swap_mismatched_slots([pid for _, pid in _claimed_slots(rows)], async_pids, are_async)
    swapped = list(zip(rows, pids, strict=True))
    return sorted(swapped, key=lambda slot: slot[1] in async_pids and not parts.assignments.is_async(slot[0]))


def match_slots(
    parts: Parts, waiting: Iterable[InFlightTask], children: Sequence[Child]
) -> Iterator[tuple[InFlightTask, int]]:
    """Pair waiting tasks with free slots, in order; a function without a slot blocks the tasks behind it."""
    free = parts.capacity.free_slots(children)
    any_task, async_only = iter(free.any_task), iter(free.async_only)
    for task in waiting:
        pid = next(any_task, None)
        if pid is None and parts.assignments.is_async(task.row):
            pid = next(async_only, None)
        if pid is None:
            return
        yield task, pid


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeSlots:
    """Free slots, each given by the pid of its child."""

    any_task: list[int]
    async_only: list[int]
    """Slots beside running coroutines."""


class Capacity:
    """How many tasks this worker can claim now."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.is_closed = False
        """The worker is stopping: nothing is claimed or assigned any more."""
        self.async_admission = AsyncAdmission()

    def claim_request(self) -> ClaimRequest | None:
        """The next claim; None if there is no capacity."""
        parts = self._parts
        children = self.available_children()
        waiting = parts.in_flight.prefetched.values()
        # A function that is already claimed goes before anything that could be claimed for async-only slots.
        has_waiting_function = not all(parts.assignments.is_async(task.row) for task in waiting)
        plan = plan_claim(
            self._served_queues(),
            [parts.assignments.load(child) for child in children],
            self._limits(),
            claimed=len(waiting),
            max_async_only=0 if has_waiting_function else self.async_admission.allowed(time.monotonic()),
        )
        if plan is None or self.is_closed:
            return None
        lease_ms, free = parts.app_config.claim_lease_ms, self.free_slots(children)
        return ClaimRequest(
            worker_id=parts.identity.worker_id,
            hostname=parts.identity.hostname,
            queues=plan.queues,
            limit=plan.limit,
            pids=[*free.any_task[: plan.startable - plan.async_only], *free.async_only[: plan.async_only]],
            lease_s=None if lease_ms is None else lease_ms / 1000,
            cluster_cap=plan.cluster_cap,
        )

    def available_children(self) -> list[Child]:
        """Children that accept tasks, the least busy first."""
        available = filter(self._parts.assignments.accepts_work, self._parts.pool.children)
        return sorted(available, key=lambda child: child.tasks_in_child)

    def free_slots(self, children: Sequence[Child]) -> FreeSlots:
        loads = [(child.pid, self._parts.assignments.load(child)) for child in children]
        size = max((queue.chunk_size for queue in self._served_queues()), default=1)
        concurrency = self._parts.worker_config.async_concurrency
        return FreeSlots(
            any_task=_round_robin([pid] * count_free_slots(load, size, depth=MAX_CHUNKS) for pid, load in loads),
            async_only=_round_robin(
                [pid] * count_async_slots(load, async_concurrency=concurrency) for pid, load in loads
            ),
        )

    def _served_queues(self) -> list[ServedQueue]:
        parts = self._parts
        caps = {queue.name: queue.max_concurrency for queue in parts.app_config.custom_queues or ()}
        has_cluster_cap = parts.app_config.cluster_wide_cap is not None
        return [
            ServedQueue(
                name=name,
                max_concurrency=caps.get(name),
                chunk_size=chunk_size(
                    parts.durations.for_queue(name),
                    max_chunk=parts.worker_config.max_chunk,
                    is_capped=has_cluster_cap or caps.get(name) is not None,
                ),
            )
            for name in parts.worker_config.queues or ()
        ]

    def _limits(self) -> ClaimLimits:
        app, worker = self._parts.app_config, self._parts.worker_config
        return ClaimLimits(
            prefetch_buffer=app.prefetch_buffer,
            max_claim_batch=worker.max_claim_batch,
            max_claim_per_worker=worker.max_claim_per_worker,
            async_concurrency=worker.async_concurrency,
            cluster_wide_cap=app.cluster_wide_cap,
        )


def _round_robin(slots_by_child: Iterable[Sequence[int]]) -> list[int]:
    """Alternate between children, so that a few tasks are spread over all of them."""
    return [pid for pid in chain.from_iterable(zip_longest(*slots_by_child)) if pid is not None]


class Releases:
    """Returns tasks that never began here to their queues; this costs no attempt, retry or crash."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._unbegun: list[InFlightTask] = []
        self._reconciled_at = time.monotonic()

    def add(self, tasks: Iterable[InFlightTask]) -> None:
        """Queue tasks for release that are RUNNING in the database and have not begun in a child."""
        self._unbegun += tasks

    def add_rows(self, rows: Sequence[ClaimedRow], worker_id: UUID) -> None:
        """Like `add`, for tasks that no child could take."""
        if rows:
            self.add(self._parts.in_flight.add_unassigned(rows, worker_id))

    async def release_unbegun(self) -> None:
        """Release the queued tasks; they stay queued if the database does not answer."""
        tasks = list(self._unbegun)
        if not tasks:
            return
        rows = await self._parts.claims.release_running([task.claim for task in tasks])
        del self._unbegun[: len(tasks)]  # others may have been added during the statement
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
        self._wake_at_changed = asyncio.Event()

    def expect_due_in(self, delay_s: float) -> None:
        """Wake up in `delay_s` seconds at the latest: a task becomes due then."""
        due_at = time.monotonic() + delay_s
        if due_at < self._wake_at:
            self._wake_at = due_at
            self._wake_at_changed.set()

    async def run(self, stop: asyncio.Event) -> None:
        await run_until(stop, self._poll())

    async def _poll(self) -> None:
        poll_s = self._parts.app_config.resilience.notify_poll_interval_ms / 1000
        while True:
            self._wake_at = time.monotonic() + poll_s
            due_s = await self._next_due_s()
            if due_s is not None:
                self.expect_due_in(due_s)
            while (left_s := self._wake_at - time.monotonic()) > 0:
                self._wake_at_changed.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake_at_changed.wait(), left_s)
            self._parts.wake_to_claim()

    async def _next_due_s(self) -> float | None:
        """Seconds until the next task becomes due; None if there is none or the database is unavailable."""
        try:
            async with self._parts.claim_lock:
                return await self._worker_store.next_due_s(self._parts.worker_config.queues or [])
        except HorsiesError:
            return None
