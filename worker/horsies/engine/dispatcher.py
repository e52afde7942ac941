"""The dispatcher: claims tasks for free slots, assigns them to children, and releases what cannot run here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
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
    ALL_KINDS,
    ChildLoad,
    ClaimLimits,
    ClaimPlan,
    DurationEstimates,
    ServedQueue,
    TaskKind,
    accepts,
    count_free_slots,
    plan_claim,
)
from horsies.model.events import TaskChange
from horsies.model.retry import KillReason
from horsies.model.task import TaskStatus, expired_error
from horsies.store.claims import ClaimedRow, ClaimRef, ClaimRequest, ClaimStatusRow, ClaimStore
from horsies.store.connection import LockTimeout
from horsies.store.workers import DueWork, WorkerState, WorkerStore

if TYPE_CHECKING:
    from horsies.engine.heartbeat import Health, WorkerIdentity
    from horsies.engine.in_flight import Assignments, InFlight
    from horsies.engine.pool.child import Child
    from horsies.engine.pool.pool import ChildPool
    from horsies.engine.reporter import Reporter
    from horsies.engine.service import Backoff
    from horsies.engine.unknown_tasks import UnknownTasks
    from horsies.model.capacity import Fence
    from horsies.model.settings import AppConfig, WorkerConfig

RECHECK_DELAY_S = 0.1
"""Delay of the second claim after a notification, which woke other workers too, and after a lock timeout."""
MAX_SEARCH_PAUSE_S = 0.5
"""Longest pause between two claims of one kind of task that found none."""
SEARCH_PAUSE_FACTOR = 10
"""Such a claim may have read a long backlog of the other kind, so it is repeated only after ten times its duration."""
RELEASE_INTERVAL_S = 0.5
"""How often a draining worker tries to release tasks while the database does not answer."""


class Wakeup:
    """Wakes the dispatcher; the only part of it that other services know."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.open_kinds = ALL_KINDS
        """Kinds of tasks that the queues may hold for us. A claim that returned fewer rows than requested removes its
        kind; a notification, a due time or the poll adds it again. A slot becoming free does not."""
        self.was_notified = False
        """Whether a notification, which other workers receive too, has arrived since the last claim."""
        self.was_polled = False
        """Whether the poll interval has passed or a task became due since the last claim."""
        self._timer: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        """Run a pass: a slot became free or something must be released."""
        self.event.set()

    def wake_to_claim(self) -> None:
        """Run a pass that also claims: the queues may have new tasks."""
        self.open_kinds = ALL_KINDS
        self.event.set()

    def on_task_notification(self) -> None:
        self.was_notified = True
        self.wake_to_claim()

    def on_poll(self) -> None:
        """Like `wake_to_claim`, in case a notification was lost; the next claim also takes expired leases."""
        self.was_polled = True
        self.wake_to_claim()

    def wake_to_claim_in(self, delay_s: float) -> None:
        """Claim again after a delay, or earlier if an earlier claim is already scheduled."""
        loop = asyncio.get_running_loop()
        if self._timer is not None and self._timer.when() > loop.time():
            if self._timer.when() <= loop.time() + delay_s:
                return
            self._timer.cancel()
        self._timer = loop.call_later(delay_s, self.wake_to_claim)


class Dispatcher:
    """Claims tasks and assigns them to children whenever it is woken."""

    name = "dispatcher"

    def __init__(
        self,
        *,
        wakeup: Wakeup,
        capacity: Capacity,
        claims: ClaimStore,
        in_flight: InFlight,
        assignments: Assignments,
        releases: Releases,
        due_poller: DuePoller,
        identity: WorkerIdentity,
        fence: Fence,
        health: Health,
        reporter: Reporter,
        backoff: Backoff,
        app_config: AppConfig,
        claim_lock: asyncio.Lock,
    ) -> None:
        self._wakeup = wakeup
        self._capacity = capacity
        self._claims = claims
        self._in_flight = in_flight
        self._assignments = assignments
        self._releases = releases
        self._due_poller = due_poller
        self._identity = identity
        self._fence = fence
        self._health = health
        self._reporter = reporter
        self._backoff = backoff
        self._app_config = app_config
        self._claim_lock = claim_lock
        self._search_after = dict.fromkeys(TaskKind, 0.0)
        """When tasks of a kind may be claimed again, after none were found."""
        self._needs_recheck = False
        """Whether to claim once more soon: the last claim followed a notification, which woke other workers too."""
        self._sent_elsewhere: dict[ClaimRef, int] = {}
        """The pid of the child that a task of the last claim was sent to, if it was claimed for another one."""

    async def run(self, stop: asyncio.Event) -> None:
        """Dispatch until `stop` is set."""
        stopping = asyncio.create_task(stop.wait())
        stopping.add_done_callback(lambda _: self._wakeup.wake())
        try:
            while not stop.is_set():
                self._wakeup.event.clear()
                await self._run_passes(stop)
                await self._wakeup.event.wait()
        finally:
            stopping.cancel()

    async def wait_until_idle(self) -> None:
        """Wait until no task is left in a child; releases tasks that come back unbegun."""
        while self._in_flight.is_running:
            self._wakeup.event.clear()
            with suppress(HorsiesError):
                await self._releases.release_unbegun()
            if self._in_flight.is_running:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wakeup.event.wait(), RELEASE_INTERVAL_S)

    def recall_chunks(self) -> None:
        for child in self._capacity.children:
            if child.unbegun:
                child.recall()

    def kill_busy_children(self) -> None:
        """Kill every child that still has tasks; the shutdown grace period is over."""
        for child in self._capacity.children:
            if not child.is_idle:
                self._assignments.kill_child(child, KillReason.SHUTDOWN)

    async def _run_passes(self, stop: asyncio.Event) -> None:
        """Run passes while they claim something; retry after a database error."""
        while not stop.is_set() and not self._fence.is_fenced(time.monotonic()):
            try:
                async with self._claim_lock:
                    await self._releases.reconcile_if_due()
                    runs_again = await self._run_pass()
            except LockTimeout as error:  # nothing was claimed, and the database is available
                self._wakeup.open_kinds = ALL_KINDS
                worker_id = str(self._identity.worker_id)
                self._reporter.emit(events.ClaimsBlocked(worker_id=worker_id, holder=error.message))
                await asyncio.sleep(RECHECK_DELAY_S)
            except HorsiesError as error:
                self._wakeup.open_kinds = ALL_KINDS
                await self._backoff.wait(error)
                await self._reconcile_with_retry()
            else:
                if self._backoff.failures:  # checked here to save a call per pass
                    self._backoff.reset()
                if not runs_again:
                    self._schedule_recheck()
                    return

    def _schedule_recheck(self) -> None:
        # Workers woken by the same notification skip each other's locked rows; one later claim finds what was missed.
        if self._needs_recheck:
            self._needs_recheck = False
            self._wakeup.wake_to_claim_in(RECHECK_DELAY_S)
            self._due_poller.look_in(RECHECK_DELAY_S)  # delayed sends notify too

    async def _reconcile_with_retry(self) -> None:
        """Release tasks that the server claimed or started although we got an error instead of its answer."""
        while True:
            try:
                async with self._claim_lock:
                    await self._releases.reconcile()
            except BrokerError as error:
                await self._backoff.wait(error)
            else:
                return

    async def _run_pass(self) -> bool:
        """Start prefetched tasks, release unbegun ones, claim new ones; returns whether to run another pass."""
        if self._in_flight.prefetched:
            if self._capacity.accepts_work:
                await self._start_prefetched()
            else:
                await self._releases.release_prefetched()
        await self._releases.release_unbegun()
        if not self._wakeup.open_kinds:
            return False
        plan = self._capacity.plan(self._kinds_to_claim())
        return plan is not None and await self._claim(plan)

    async def _claim(self, plan: ClaimPlan) -> bool:
        """Claim tasks and assign them; returns whether to run another pass."""
        # Before the claim, so that a notification during the claim adds the kinds again.
        claimed_kinds = ALL_KINDS if plan.kind is TaskKind.ANY else {plan.kind}
        self._wakeup.open_kinds -= claimed_kinds
        if self._wakeup.was_notified:  # cleared only here: a full worker remembers the notification until it can claim
            self._wakeup.was_notified, self._needs_recheck = False, True
        await self._capacity.unknown_tasks.search()
        request = self._capacity.request(plan, takes_expired_leases=self._take_poll())
        sent_at = time.monotonic()
        rows = await self._claims.claim(request)
        took_s = time.monotonic() - sent_at
        self._accept(rows, plan, request.worker_id, took_s=took_s)  # first of all: these tasks are waiting
        self._fence.record_statement(sent_at)
        if pids := self._sent_elsewhere:
            self._sent_elsewhere = {}
            await self._claims.record_children(pids)
        if len(rows) >= request.limit or request.may_return_fewer or self._health.listener_problem:
            self._wakeup.open_kinds |= claimed_kinds
        elif plan.kind is not TaskKind.ANY:
            pause_s = min(MAX_SEARCH_PAUSE_S, SEARCH_PAUSE_FACTOR * took_s)
            self._search_after[plan.kind] = time.monotonic() + pause_s
        await self._releases.release_unbegun()
        return len(rows) > 0 or plan.kind is not TaskKind.ANY  # the other kind may be due

    def _kinds_to_claim(self) -> frozenset[TaskKind]:
        """The open kinds, except those that are searched for later."""
        now = time.monotonic()
        waiting = {kind for kind in self._wakeup.open_kinds if self._search_after[kind] > now}
        if waiting:
            self._wakeup.wake_to_claim_in(min(self._search_after[kind] for kind in waiting) - now)
        return self._wakeup.open_kinds - waiting

    def _accept(self, rows: Sequence[ClaimedRow], plan: ClaimPlan, worker_id: UUID, *, took_s: float) -> None:
        """Add claimed rows to the tasks in flight and assign those that were claimed as RUNNING."""
        running = [row for row in rows if row.worker_pid is not None]
        for row in rows if len(running) < len(rows) else ():
            if row.worker_pid is None:
                self._in_flight.add_prefetched(row, worker_id)
        if self._may_assign(took_s=took_s):
            for child, child_rows in self._split(running, plan):
                self._assign(child, child_rows, worker_id)
        else:
            self._releases.add_rows(running, worker_id)
        self._record_claimed(rows)

    def _may_assign(self, *, took_s: float) -> bool:
        """Whether tasks returned after `took_s` seconds may start: they are still ours, and we still take new ones."""
        return self._fence.may_assign(took_s=took_s) and self._capacity.accepts_work

    def _assign(self, child: Child, rows: Sequence[ClaimedRow], worker_id: UUID) -> None:
        """Send started tasks to a child, or coroutines to others if it is kept for functions; release the rest.

        The claim did not know which tasks are coroutines, and may have started one in each idle child.
        """
        coroutines = list[ClaimedRow]()
        if self._capacity.is_kept_for_functions(child):
            coroutines = [row for row in rows if self._assignments.is_async(row)]
            rows = [row for row in rows if not self._assignments.is_async(row)]
        left = self._send(child, rows, worker_id)
        for other in self._capacity.coroutine_children() if coroutines else ():
            coroutines = self._send(other, coroutines, worker_id)
        self._releases.add_rows([*left, *coroutines], worker_id)

    def _send(self, child: Child, rows: Sequence[ClaimedRow], worker_id: UUID) -> Sequence[ClaimedRow]:
        """Send tasks to a child; returns those it has no capacity for. Remembers tasks claimed for another child."""
        left = self._assignments.assign(child, rows, worker_id)
        if rows and rows[0].worker_pid not in (None, child.pid):  # all rows were claimed for the same child
            left_ids = {row.id for row in left}
            self._sent_elsewhere |= {
                ClaimRef(task_id=row.id, claim_token=row.claim_token, worker_id=worker_id): child.pid
                for row in rows
                if row.id not in left_ids
            }
        return left

    def _split(self, rows: Sequence[ClaimedRow], plan: ClaimPlan) -> Iterator[tuple[Child, Sequence[ClaimedRow]]]:
        """Yield each child with its rows; a partial claim for one child is shared equally with the idle children."""
        children = {child.pid: child for child in self._capacity.available_children()}
        pids = set(plan.pids)
        if 1 < len(rows) < plan.limit and len(pids) == 1:
            pids |= self._capacity.idle_pids(plan.kind)
            by_pid = {pid: rows[number :: len(pids)] for number, pid in enumerate(sorted(pids))}
        else:
            by_pid = {pid: [row for row in rows if row.worker_pid == pid] for pid in pids}
        for pid, child_rows in by_pid.items():
            if not child_rows:
                continue
            if pid in children:
                yield children[pid], child_rows
            else:  # the child died during the claim
                self._releases.add_rows(child_rows, self._identity.worker_id)

    def _record_claimed(self, rows: Sequence[ClaimedRow]) -> None:
        ids: dict[tuple[bool, str], list[UUID]] = {}
        for row in rows:
            ids.setdefault((row.worker_pid is None, row.queue_name), []).append(row.id)
        for (is_prefetched, queue), task_ids in ids.items():
            kind, status = ("claim", TaskStatus.CLAIMED) if is_prefetched else ("claim and start", TaskStatus.RUNNING)
            change = TaskChange(kind=kind, queue=queue, source=TaskStatus.PENDING, target=status)
            self._reporter.changes.add(change, task_ids)

    def _take_poll(self) -> bool:
        """Whether this claim looks for expired leases: always if leases are configured, else once after `on_poll`."""
        was_polled, self._wakeup.was_polled = self._wakeup.was_polled, False
        return was_polled or self._app_config.claim_lease_ms is not None

    async def _start_prefetched(self) -> None:
        """Start the prefetched tasks that have a free slot."""
        children = {child.pid: child for child in self._capacity.available_children()}
        slots = list(self._capacity.match_slots(self._in_flight.prefetched.values()))
        if not slots:
            return
        sent_at = time.monotonic()
        rows = await self._claims.start({task.claim: pid for task, pid in slots}, hostname=self._identity.hostname)
        self._fence.record_statement(sent_at)
        took_s = time.monotonic() - sent_at
        started = {(row.id, row.claim_token) for row in rows}
        moved = [task for task, _ in slots if (task.row.id, task.row.claim_token) in started]
        self._reporter.record_unbegun_changes(moved, TaskStatus.CLAIMED, TaskStatus.RUNNING)
        rows_by_child, refused = dict[tuple[int, UUID], list[ClaimedRow]](), list[InFlightTask]()
        for task, pid in slots:
            self._in_flight.settle(task)  # no longer as a prefetched task
            if (task.row.id, task.row.claim_token) not in started:
                refused.append(task)
            elif self._may_assign(took_s=took_s) and children[pid].accepts_work:
                rows_by_child.setdefault((pid, task.worker_id), []).append(task.row)
            else:
                self._releases.add_rows([task.row], task.worker_id)
        # All tasks of a child together, as one chunk: after the first one alone the child may take no more.
        for (pid, worker_id), child_rows in rows_by_child.items():
            self._assign(children[pid], child_rows, worker_id)
        for task in refused:  # last: until it is assigned, a started task is not in flight, and its child may exit
            await self._on_start_refused(task)

    async def _on_start_refused(self, task: InFlightTask) -> None:
        """The row could not be started: the task has expired, or this worker lost the claim."""
        if (good_until := task.details.good_until) is not None:
            error = expired_error(task_id=task.key.task_id, good_until=good_until, worker_id=str(task.claim.worker_id))
            if await self._claims.expire({task.claim: error_document(error)}):
                self._reporter.record_unbegun_changes([task], TaskStatus.CLAIMED, TaskStatus.EXPIRED)
                return
        self._reporter.emit(
            events.ClaimLost(
                worker_id=str(task.claim.worker_id),
                task_id=task.key.task_id,
                claim_token=task.key.claim_token,
                queue_name=task.row.queue_name,
            )
        )


class Capacity:
    """Which tasks this worker can claim now."""

    def __init__(
        self,
        *,
        pool: ChildPool,
        assignments: Assignments,
        in_flight: InFlight,
        durations: DurationEstimates,
        identity: WorkerIdentity,
        app_config: AppConfig,
        worker_config: WorkerConfig,
        async_tasks: Collection[str],
        unknown_tasks: UnknownTasks,
        limits: ClaimLimits,
    ) -> None:
        self._pool = pool
        self.unknown_tasks = unknown_tasks
        self._assignments = assignments
        self._in_flight = in_flight
        self._durations = durations
        self._identity = identity
        self._app_config = app_config
        self._worker_config = worker_config
        self._async_tasks = sorted(async_tasks)
        self._limits = limits
        self._queue_caps = {queue.name: queue.max_concurrency for queue in app_config.custom_queues or ()}
        self._is_stopping = False

    def stop(self) -> None:
        """The worker is stopping: claim and assign nothing any more."""
        self._is_stopping = True

    @property
    def accepts_work(self) -> bool:
        """Whether this worker takes new tasks: not while it stops, nor while it could not replace a child that dies."""
        return not self._is_stopping and not self._pool.fork_server_lost.is_set()

    @property
    def children(self) -> tuple[Child, ...]:
        return tuple(self._pool.children)

    def plan(self, kinds: Collection[TaskKind]) -> ClaimPlan | None:
        """Plan the next claim of these kinds; None if there is no capacity."""
        if not self.accepts_work:
            return None
        claimed = len(self._in_flight.prefetched)
        return plan_claim(self._served_queues(), self._loads(), self._limits, claimed=claimed, kinds=kinds)

    def request(self, plan: ClaimPlan, *, takes_expired_leases: bool) -> ClaimRequest:
        identity, lease_ms = self._identity, self._app_config.claim_lease_ms
        unknown = self.unknown_tasks
        excluded = {*unknown.names, *(self._async_tasks if plan.kind is TaskKind.FUNCTION else ())}
        return ClaimRequest(
            worker_id=identity.worker_id,
            hostname=identity.hostname,
            queues=plan.queues,
            limit=plan.limit,
            pids=plan.pids,
            lease_s=None if lease_ms is None else lease_ms / 1000,
            cluster_cap=plan.cluster_cap,
            only_tasks=self._async_tasks if plan.kind is TaskKind.COROUTINE else None,
            except_tasks=sorted(excluded) or None,
            skip_before=unknown.skip_before,
            takes_expired_leases=takes_expired_leases,
        )

    def available_children(self) -> list[Child]:
        """Children that accept tasks, the least busy first."""
        available = filter(self._assignments.accepts_work, self._pool.children)
        return sorted(available, key=lambda child: child.tasks_in_child)

    def is_kept_for_functions(self, child: Child) -> bool:
        if not self._limits.keeps_child_for_functions:
            return False
        return accepts(self._assignments.load(child), TaskKind.FUNCTION, self._loads(), self._limits)

    def coroutine_children(self) -> list[Child]:
        """Children that run only coroutines, which others can join."""
        children = self.available_children()
        return [child for child in children if self._assignments.load(child).runs_only_coroutines]

    def idle_pids(self, kind: TaskKind) -> set[int]:
        """Idle children that may get tasks of this kind."""
        loads = self._loads()
        return {load.pid for load in loads if not load.tasks and accepts(load, kind, loads, self._limits)}

    def match_slots(self, waiting: Iterable[InFlightTask]) -> Iterator[tuple[InFlightTask, int]]:
        """Pair waiting tasks with free slots, in order; a coroutine without a slot does not block functions."""
        loads, queues = self._loads(), self._served_queues()
        free = {kind: list[int]() for kind in TaskKind}
        for kind, load in product(TaskKind, loads):
            if accepts(load, kind, loads, self._limits):
                slots = max((count_free_slots(load, kind, queue, self._limits) for queue in queues), default=0)
                free[kind] += [load.pid] * slots
        for task in waiting:
            kind = TaskKind.COROUTINE if self._assignments.is_async(task.row) else TaskKind.FUNCTION
            if slots := free[kind] or free[TaskKind.ANY]:
                yield task, slots.pop(0)

    def _loads(self) -> list[ChildLoad]:
        return list(map(self._assignments.load, self.available_children()))

    def _served_queues(self) -> list[ServedQueue]:
        return [
            ServedQueue(name=name, max_concurrency=self._queue_caps.get(name), run_ms=self._durations.for_queue(name))
            for name in self._worker_config.queues or ()
        ]


class ReleaseReason(Enum):
    """Why a RUNNING task returns to its queue."""

    UNBEGUN = "unbegun"
    """Recalled, or no child could take it."""
    LOST_START = "lost start"
    """Its child died before it began."""
    UNKNOWN = "unknown"
    """The app in the child does not define it."""


class Releases:
    """Returns tasks that never began here to their queues; this counts as no attempt, retry or crash."""

    def __init__(
        self,
        *,
        claims: ClaimStore,
        in_flight: InFlight,
        identity: WorkerIdentity,
        worker_store: WorkerStore,
        fence: Fence,
        reporter: Reporter,
        unknown_tasks: UnknownTasks,
        check_interval_ms: float,
    ) -> None:
        self._claims = claims
        self._in_flight = in_flight
        self._identity = identity
        self._worker_store = worker_store
        self._fence = fence
        self._reporter = reporter
        self._check_interval_ms = check_interval_ms
        self._unknown_tasks = unknown_tasks
        self._waiting: dict[ReleaseReason, list[InFlightTask]] = {reason: [] for reason in ReleaseReason}
        self._reconciled_at = time.monotonic()

    def add(self, tasks: Iterable[InFlightTask], reason: ReleaseReason | None = None) -> None:
        """Queue tasks for release that are RUNNING in the database and have not begun."""
        self._waiting[reason or ReleaseReason.UNBEGUN] += tasks

    def add_rows(self, rows: Sequence[ClaimedRow], worker_id: UUID) -> None:
        """Like `add`, for tasks that no child could take."""
        if rows:
            self.add(self._in_flight.add_unassigned(rows, worker_id))

    async def release_unbegun(self) -> None:
        """Release the queued tasks; they stay queued if the database does not answer."""
        for reason, queue in self._waiting.items():
            if tasks := list(queue):
                if reason is ReleaseReason.UNKNOWN:
                    self._unknown_tasks.expect_own_notifications({task.row.queue_name for task in tasks})
                claims, is_lost = [task.claim for task in tasks], reason is ReleaseReason.LOST_START
                rows = await self._claims.release_running(claims, lost_start=is_lost)
                del queue[: len(tasks)]  # others may have been added during the statement
                self._record_changes(TaskStatus.RUNNING, tasks, rows)
                for task in tasks:
                    self._in_flight.settle(task)

    async def release_prefetched(self) -> None:
        """Release all prefetched tasks."""
        tasks = list(self._in_flight.prefetched.values())
        if tasks:
            rows = await self._claims.release([task.claim for task in tasks])
            self._record_changes(TaskStatus.CLAIMED, tasks, rows)
        for task in tasks:
            self._in_flight.settle(task)

    async def reconcile_if_due(self) -> None:
        """Reconcile once per check interval: the server may execute a statement long after we gave up on it."""
        if (time.monotonic() - self._reconciled_at) * 1000 >= self._check_interval_ms:
            await self.reconcile()

    async def reconcile(self) -> None:
        """Release rows owned by this worker that are not in flight: the answer to their claim or start was lost.

        A former worker id that owns nothing any more is marked as stopped.
        """
        identity = self._identity
        for worker_id in (*identity.former_ids, identity.worker_id):
            sent_at = time.monotonic()
            rows = await self._claims.owned(worker_id)
            self._fence.record_statement(sent_at)
            started = {(task.row.id, task.row.claim_token) for task in self._in_flight.started()}
            await self._release_rows([row for row in rows if self._is_answer_lost(row, started)], worker_id)
            if not rows and worker_id in identity.former_ids:
                await self._worker_store.set_state(worker_id, WorkerState.STOPPED)
                identity.former_ids.remove(worker_id)
        self._reconciled_at = time.monotonic()

    def _is_answer_lost(self, row: ClaimStatusRow, started: Container[tuple[UUID, int]]) -> bool:
        """Whether the answer to its claim (not in flight) or to its start (still prefetched here) was lost."""
        key = (row.id, row.claim_token)
        is_known = key in started or (row.status == TaskStatus.CLAIMED and key in self._in_flight.prefetched)
        return not is_known

    async def _release_rows(self, rows: Sequence[ClaimStatusRow], worker_id: UUID) -> None:
        claims, in_flight = self._claims, self._in_flight
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
            self._reporter.record_unbegun_changes(moved, source, target)


def _claim_ref(row: ClaimStatusRow, worker_id: UUID) -> ClaimRef:
    return ClaimRef(task_id=row.id, claim_token=row.claim_token, worker_id=worker_id)


class DuePoller:
    """Wakes the dispatcher when the next task becomes due.

    At every poll interval, one statement asks for everything that a lost NOTIFY may have announced: tasks that are due,
    expired leases, and entries in the workflow outbox.
    """

    name = "due poller"

    def __init__(
        self,
        *,
        wakeup: Wakeup,
        worker_store: WorkerStore,
        queues: Sequence[str],
        poll_s: float,
        claim_lock: asyncio.Lock,
        fence: Fence,
        workflows_due: asyncio.Event,
    ) -> None:
        self._wakeup = wakeup
        self._worker_store = worker_store
        self._queues = queues
        self._poll_s = poll_s
        self._claim_lock = claim_lock
        self._fence = fence
        self._workflows_due = workflows_due
        self._due_at = inf
        """When the next known task becomes due."""
        self._look_at = inf
        """When to ask the database again at the latest."""
        self._changed = asyncio.Event()

    def expect_due_in(self, delay_s: float) -> None:
        """Wake the dispatcher in `delay_s` seconds at the latest: a task becomes due then."""
        if (due_at := time.monotonic() + delay_s) < self._due_at:
            self._due_at = due_at
            self._changed.set()

    def look_in(self, delay_s: float) -> None:
        """Ask for the next due time in `delay_s` seconds at the latest: a delayed task may have been sent."""
        if (look_at := time.monotonic() + delay_s) < self._look_at:
            self._look_at = look_at
            self._changed.set()

    async def run(self, stop: asyncio.Event) -> None:
        await run_until(stop, self._poll())

    async def _poll(self) -> None:
        poll_at = time.monotonic() + self._poll_s
        while True:
            is_poll = time.monotonic() >= poll_at
            if is_poll:
                poll_at = time.monotonic() + self._poll_s
            self._due_at, self._look_at = inf, poll_at
            due = await self._due_work()
            if is_poll:
                self._wake(due)
            elif due is None or due.has_due_tasks:  # it became due between the last claim and this read
                self._wakeup.wake_to_claim()
            if due is not None and due.next_due_s is not None:
                self.expect_due_in(due.next_due_s)
            while (left_s := min(self._due_at, self._look_at) - time.monotonic()) > 0:
                self._changed.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), left_s)
            if self._due_at <= time.monotonic():
                self._wakeup.on_poll()

    def _wake(self, due: DueWork | None) -> None:
        if due is None or due.has_due_tasks:  # a claim that fails reports the unavailable database
            self._wakeup.on_poll()
        else:
            self._wakeup.wake()  # without a claim: the dispatcher also reconciles from time to time
        if due is not None and due.has_outbox_entries:
            self._workflows_due.set()

    async def _due_work(self) -> DueWork | None:
        """None if the database is unavailable."""
        try:
            async with self._claim_lock:
                sent_at = time.monotonic()
                due = await self._worker_store.due_work(self._queues)
        except HorsiesError:
            return None
        self._fence.record_statement(sent_at)
        return due
