"""A worker: its parts put together, its start, its signals and its end."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar

from horsies.engine.completer import Completer, CrashHandler, PoolEvents, Requeuer
from horsies.engine.dispatcher import Capacity, Dispatcher, DuePoller, Releases
from horsies.engine.heartbeat import Health, Heartbeat, SelfFence, WorkerIdentity
from horsies.engine.hooks import InterruptionNotifier
from horsies.engine.in_flight import Assignments, InFlight, InFlightTask, Phase
from horsies.engine.notifications import PROBE_AFTER_S, Notifications
from horsies.engine.pool.pool import ChildPool
from horsies.engine.pool.process import ChildSpec
from horsies.engine.reaper import build_reaper
from horsies.engine.reporter import ChangePublisher, PeriodicSummary, Reporter, SnapshotWriter
from horsies.engine.service import NO_ANSWER, Backoff, BoundedService, ShutdownBudget, run_services, run_until
from horsies.engine.workflows import WorkflowAdvancer
from horsies.errors import BrokerError, ConfigurationError, ErrorCode, HorsiesError, format_one_line
from horsies.model import events
from horsies.model.capacity import DurationEstimates
from horsies.model.fence import child_heartbeat_interval_s, silent_child_limit_s
from horsies.model.settings import AppConfig, WorkerConfig
from horsies.model.workflow.plan import WorkflowDefinitions
from horsies.recovery.hooks import HookCaller, HookFailure, RecoveryHooks
from horsies.store.claims import ClaimStore, FinishStore
from horsies.store.database import Database, PoolSettings
from horsies.store.endpoint import ConnectionSpecs, resolve_database
from horsies.store.listen import is_notify_delivered
from horsies.store.migrate import migrate, schema_state
from horsies.store.operators import EventStore
from horsies.store.tasks import TaskStore
from horsies.store.workers import HeartbeatStore, WorkerState, WorkerStore

# The parts of one worker, put together by `worker` and known to each other by name.


@dataclass(slots=True, kw_only=True)
class Parts:
    """What the loops of a worker share. Nothing here decides anything."""

    app: AppConfig
    worker: WorkerConfig
    identity: WorkerIdentity
    fence: SelfFence
    in_flight: InFlight
    durations: DurationEstimates
    assignments: Assignments
    claims: ClaimStore
    heartbeats: HeartbeatStore
    fleet: WorkerStore
    reporter: Reporter
    health: Health
    claim_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while claims or starts are on their way, or someone looks at what may be claimed: one at a time, on one
    connection; whoever holds it knows that no other is at it."""
    is_stopping: bool = False
    degraded_reason: str | None = None
    check_rows_now: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to have running rows looked at now, instead of with the next beat."""
    workflows_due: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to have runs of workflows advanced now, instead of with the next poll."""
    publish_health_now: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to have the worker's row say now how it fares, instead of with the next beat."""
    completer: Completer = field(init=False)
    hooks: HookCaller = field(init=False)
    interruption_notifier: InterruptionNotifier = field(init=False)
    crash_handler: CrashHandler = field(init=False)
    requeuer: Requeuer = field(init=False)
    pool: ChildPool = field(init=False)
    capacity: Capacity = field(init=False)
    releases: Releases = field(init=False)
    wake: Callable[[], None] = field(init=False)
    wake_to_claim: Callable[[], None] = field(init=False)
    on_task_notification: Callable[[], None] = field(init=False)
    expect_due_in: Callable[[float], None] = field(init=False)
    """A task will be due after so many seconds."""

    def backoff(self, duty: str) -> Backoff:
        """The pauses of one loop, which tells when the database goes away and comes back."""

        def changed(error: Exception | None) -> None:
            worker_id = str(self.identity.worker_id)
            if error is None:
                self.reporter.emit(events.DatabaseRestored(worker_id=worker_id, duty=duty))
            else:
                self.reporter.emit(events.DatabaseLost(worker_id=worker_id, service=duty, error=format_one_line(error)))

        return Backoff(self.app.resilience, on_change=changed)


# The end of a start: a worker is `running` once it hears of new work and of orders.


class StartupReporter:
    """Says once that the worker has started, then waits for its end as services do."""

    name = "start"

    def __init__(self, parts: Parts, *, listening: asyncio.Event, on_started: Callable[[], None]) -> None:
        self._parts = parts
        self._hears = listening
        self._tell = on_started

    async def run(self, stop: asyncio.Event) -> None:
        await run_until(stop, self._report_once())

    async def _report_once(self) -> None:
        await self._hears.wait()
        await self._set_running()
        self._tell()
        await asyncio.Event().wait()

    async def _set_running(self) -> None:
        backoff = self._parts.backoff(self.name)
        while True:
            try:
                await self._parts.fleet.set_state(self._parts.identity.worker_id, WorkerState.RUNNING)
            except HorsiesError as error:
                await backoff.wait(error)
            else:
                return


# Dispatch until told to stop, then bring what is in hand to an end within the grace.

logger = logging.getLogger("horsies.worker")


class DispatchThenDrain:
    """The dispatcher with its end: no more claims, what waits is released, what runs gets its grace."""

    name = "dispatch"

    def __init__(self, dispatcher: Dispatcher, parts: Parts, stop_now: asyncio.Event, budget: ShutdownBudget) -> None:
        self._dispatcher = dispatcher
        self._parts = parts
        self._hurry = stop_now
        """Set by a second signal: the grace is over."""
        self._allowance = budget

    async def run(self, stop: asyncio.Event) -> None:
        await BoundedService(self._dispatcher, self._allowance).run(stop)
        self._parts.capacity.is_closed = True
        await self._within_budget(self._begin_drain())
        self._dispatcher.recall_chunks()
        await self._wait_for_running()
        if self._running():
            await self._kill()
        await self._within_budget(self._give_back())

    async def _give_back(self) -> None:
        await self._parts.releases.release_unbegun()
        await self._parts.releases.reconcile()  # a claim that was given up at the stop may have been carried out

    async def _begin_drain(self) -> None:
        parts = self._parts
        parts.reporter.emit(
            events.WorkerDraining(
                worker_id=str(parts.identity.worker_id), running=len(self._running()), grace_s=parts.worker.grace_s
            )
        )
        await parts.fleet.set_state(parts.identity.worker_id, WorkerState.DRAINING)
        await self._parts.releases.release_claimed()

    async def _wait_for_running(self) -> None:
        """Wait for running tasks, as long as the grace lasts and nobody is in a hurry."""
        self._log_running("  hint=a second Ctrl-C or SIGTERM ends them now")
        finished = asyncio.create_task(self._dispatcher.wait_until_idle())
        hurried = asyncio.create_task(self._hurry.wait())
        waits: list[asyncio.Task[Any]] = [finished, hurried]
        await asyncio.wait(waits, timeout=self._parts.worker.grace_s, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    async def _kill(self) -> None:
        self._log_running()
        self._dispatcher.kill_busy_children()
        try:
            async with asyncio.timeout(self._parts.worker.kill_wait_s):
                await self._dispatcher.wait_until_idle()
        except TimeoutError:
            logger.warning("processes of %d tasks are not gone", len(self._running()))

    def _log_running(self, more: str = "") -> None:
        if running := self._running():
            names = ", ".join(f"{held.row.task_name} {held.key.task_id}" for held in running[:20])
            logger.info("still running: %s%s%s", names, " …" if len(running) > 20 else "", more)

    def _running(self) -> list[InFlightTask]:
        return self._parts.in_flight.in_phase(Phase.RUNNING)

    async def _within_budget(self, work: Awaitable[None]) -> None:
        try:
            async with self._allowance.spend():
                await work
        except (HorsiesError, TimeoutError) as error:
            logger.warning("while stopping: %s", format_one_line(error) or NO_ANSWER)


T = TypeVar("T")

LISTEN_TIMEOUT_S = 5.0
SURPLUS_CONNECTION_IDLE_S = 3.0
SHUTDOWN_BUDGET_S = 3.5
"""For the statements of a stop, where the database does not answer."""
REAPER_STOP_BUDGET_S = 1.0
"""For the reaper to end what it has in hand."""


def _log_unavailable(error: Exception | None) -> None:
    if error is not None:
        logger.warning("the database is away: %s", format_one_line(error))


class Worker:
    """One run of a worker process. `run` returns after a requested stop, and raises after any other end."""

    def __init__(
        self,
        app: AppConfig,
        worker: WorkerConfig,
        *,
        is_async: Callable[[str], bool],
        definitions: WorkflowDefinitions,
        hooks: RecoveryHooks | None = None,
        child_environment: Mapping[str, str] | None = None,
        probe_after_s: float = PROBE_AFTER_S,
    ) -> None:
        self._app = app
        self._worker = worker
        self._is_async = is_async
        self._definitions = definitions
        self._hooks = hooks or RecoveryHooks()
        self._environment = dict(child_environment or {})
        self._probe_after_s = probe_after_s
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._shutdown_budget = ShutdownBudget(SHUTDOWN_BUDGET_S)
        self._listeners: list[Callable[[events.Event], None]] = []
        self._parts_at_work: Parts | None = None
        self.identity = WorkerIdentity.new()

    def add_listener(self, listener: Callable[[events.Event], None]) -> None:
        """Hear every event of this worker."""
        self._listeners.append(listener)

    def stop(self) -> None:
        """Stop gracefully; the second time, at once."""
        if self._stop.is_set():
            self._stop_now.set()
        if self._parts_at_work is not None:
            self._parts_at_work.is_stopping = True
        self._stop.set()

    async def run(self) -> None:
        """Run until stopped."""
        async with AsyncExitStack() as stack:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._handle_signal(number, stack)
            await self._run(stack)

    def _handle_signal(self, number: signal.Signals, stack: AsyncExitStack) -> None:
        loop, before = asyncio.get_running_loop(), signal.getsignal(number)
        loop.add_signal_handler(number, self.stop)
        # The loop would leave the signal to the system, which kills.
        stack.callback(signal.signal, number, before)
        stack.callback(loop.remove_signal_handler, number)

    async def _run(self, stack: AsyncExitStack) -> None:
        reached = await asyncio.to_thread(resolve_database, self._app.broker)
        stack.callback(reached.release)
        parts, dispatcher = self._assemble(stack, reached.connection_specs)
        # Children come up before any connection is made: what they inherit of one would outlive it.
        logger.info("starting %d children", self._worker.processes)
        await self._unless_stopped(parts.pool.start())
        parts.pool.broken.add_done_callback(self._pool_broke)
        started_at = await self._unless_stopped(self._prepare(reached.connection_specs, parts))
        if started_at is not None:
            await self._serve(parts, dispatcher, reached.connection_specs, started_at)
        if parts.pool.broken.done():
            parts.pool.broken.result()

    def _assemble(self, stack: AsyncExitStack, links: ConnectionSpecs) -> tuple[Parts, Dispatcher]:
        database, beats = self._open(stack, links)
        parts = self._parts(database, beats)
        parts.capacity, parts.releases = Capacity(parts), Releases(parts)
        dispatcher = Dispatcher(parts)
        parts.wake, parts.wake_to_claim, parts.on_task_notification = (
            dispatcher.wake,
            dispatcher.wake_to_claim,
            dispatcher.on_task_notification,
        )
        parts.pool = ChildPool(self._child_spec(), self._worker.processes, PoolEvents(parts))
        stack.push_async_callback(parts.pool.kill_all, "the worker has ended")
        return parts, dispatcher

    async def _serve(self, parts: Parts, dispatcher: Dispatcher, links: ConnectionSpecs, started_at: datetime) -> None:
        wakeup, notices = DuePoller(parts), Notifications(parts, links.direct, probe_after_s=self._probe_after_s)
        parts.expect_due_in = wakeup.expect_due_in
        dispatcher.wake()
        services = [
            StartupReporter(parts, listening=notices.listening, on_started=lambda: self._emit_started(parts)),
            wakeup,
            DispatchThenDrain(dispatcher, parts, self._stop_now, self._shutdown_budget),
            SnapshotWriter(parts, started_at),
            # A worker that drains for long is as good a judge as another.
            BoundedService(build_reaper(parts), ShutdownBudget(REAPER_STOP_BUDGET_S)),
            BoundedService(parts.completer, self._shutdown_budget),
            BoundedService(WorkflowAdvancer(parts, self._definitions), self._shutdown_budget),
            BoundedService(parts.interruption_notifier, self._shutdown_budget),
            BoundedService(parts.reporter, self._shutdown_budget),
            PeriodicSummary(parts.reporter, self.identity),
            BoundedService(ChangePublisher(parts.reporter, EventStore(parts.claims.database)), self._shutdown_budget),
            notices,
            Heartbeat(parts, on_declared_lost=lambda: self._reregister(parts)),
        ]
        try:
            await run_services(services, self._stop_of(parts))
        finally:
            await self._mark_stopped(parts)

    def _parts(self, database: Database, beats: Database) -> Parts:
        app, worker = self._app, self._worker
        caps = {queue.name for queue in app.custom_queues or () if queue.max_concurrency is not None}
        times = DurationEstimates()
        hands = Assignments(
            times,
            is_async=self._is_async,
            is_capped=lambda queue: app.cluster_wide_cap is not None or queue in caps,
        )
        hands.max_chunk = worker.max_chunk
        reporter = Reporter(EventStore(database), Backoff(app.resilience))
        for listener in self._listeners:
            reporter.add_listener(listener)
        parts = Parts(
            app=app,
            worker=worker,
            identity=self.identity,
            fence=SelfFence(app.recovery),
            in_flight=InFlight(),
            durations=times,
            assignments=hands,
            claims=ClaimStore(database),
            heartbeats=HeartbeatStore(database=beats, hostname=self.identity.hostname),
            fleet=WorkerStore(beats),
            reporter=reporter,
            health=Health(recovery=app.recovery),
        )
        parts.completer = Completer(
            FinishStore(database),
            parts.in_flight,
            reporter,
            gate=parts.fence,
            backoff=parts.backoff("outcomes"),
            max_crashes=app.recovery.max_crashes,
            # The dispatcher that it wakes and the timer that it sets come later.
            on_stored=lambda: parts.wake(),  # noqa: PLW0108
            on_retry=lambda delay_s: parts.expect_due_in(delay_s),  # noqa: PLW0108
            on_nodes_finished=parts.workflows_due.set,
            on_unknown_task=self._unknown_task_emitter(reporter),
        )
        parts.hooks = HookCaller(self._hooks, on_failure=self._hook_failure_emitter(reporter))
        parts.interruption_notifier = InterruptionNotifier(
            parts.hooks, TaskStore(database), parts.backoff("interruptions")
        )
        if parts.hooks.has_interrupted_hooks:  # else nobody need hear of each task that ends
            reporter.add_listener(parts.interruption_notifier.on_event)
        parts.requeuer = Requeuer(database, parts.in_flight, parts.backoff("requeues"))
        parts.crash_handler = CrashHandler(
            parts.completer,
            TaskStore(database),
            reporter,
            max_crashes=app.recovery.max_crashes,
            on_attempt_failed=parts.interruption_notifier.on_attempt_failed,
        )
        return parts

    def _hook_failure_emitter(self, reporter: Reporter) -> Callable[[HookFailure], None]:
        def tell(failure: HookFailure) -> None:
            worker_id = str(self.identity.worker_id)
            reporter.emit(
                events.HookFailed(worker_id=worker_id, hook=failure.hook, error=failure.error, task_id=failure.task_id)
            )

        return tell

    def _unknown_task_emitter(self, reporter: Reporter) -> Callable[[str], None]:
        told: set[str] = set()

        def tell(name: str) -> None:
            if name not in told:
                told.add(name)
                worker_id = str(self.identity.worker_id)
                reporter.emit(events.TaskUnknown(worker_id=worker_id, task_name=name, app=self._worker.app_locator))

        return tell

    def _child_spec(self) -> ChildSpec:
        recovery, worker = self._app.recovery, self._worker
        return ChildSpec(
            app_locator=worker.app_locator,
            modules=tuple(worker.imports) or None,
            environment=self._environment,
            async_concurrency=worker.async_concurrency,
            heartbeat_interval_s=child_heartbeat_interval_s(recovery),
            silence_timeout_s=silent_child_limit_s(recovery),
            ack_timeout_s=recovery.running_stale_threshold_ms / 1000,
            max_tasks_per_child=worker.max_tasks_per_child,
            max_memory_per_child_mb=worker.max_memory_per_child_mb,
        )

    def _open(self, stack: AsyncExitStack, links: ConnectionSpecs) -> tuple[Database, Database]:
        broker, worker = self._app.broker, self._worker
        size = PoolSettings(
            min_size=1,
            max_size=worker.parent_pool_size + worker.parent_max_overflow,
            acquire_timeout_s=broker.pool_timeout,
            # An idle worker holds one: what a burst has opened is soon closed again.
            idle_s=min(broker.pool_recycle, SURPLUS_CONNECTION_IDLE_S),
            check_idle=broker.pool_pre_ping,
            setting_name="broker.worker_pool_size",
        )
        link = replace(links.main, force_generic_plan=True)
        database, beats = Database(link, size), Database(link, replace(size, max_size=1))
        for each in (database, beats):
            stack.callback(each.terminate)  # a server that does not answer would not answer a farewell either
        return database, beats

    async def _prepare(self, links: ConnectionSpecs, parts: Parts) -> datetime:
        """Migrate or refuse, see that notifications arrive, and write the row of this run; returns when that was."""
        backoff = Backoff(self._app.resilience, on_change=_log_unavailable)
        while True:
            try:
                await self._migrate_or_check(links)
                await self._require_listen(links, parts.claims.database)
                return await self._register(parts)
            except BrokerError as error:
                if not error.retryable:
                    raise
                await backoff.wait(error)

    async def _register(self, parts: Parts) -> datetime:
        sent_at = time.monotonic()
        started_at = await parts.fleet.register(self.identity.registration(self._worker, self._app))
        parts.fence.record_heartbeat(sent_at)
        return started_at

    async def _migrate_or_check(self, links: ConnectionSpecs) -> None:
        async with Database(replace(links.direct, statement_timeout_s=None), PoolSettings(max_size=1)) as direct:
            state = await schema_state(direct)
            is_empty = not state.applied
            if is_empty or self._app.broker.database_url.is_embedded or self._app.broker.auto_migrate:
                for migration in await migrate(direct):
                    logger.info("applied migration %s", migration)
            else:
                state.check_current()

    async def _require_listen(self, links: ConnectionSpecs, database: Database) -> None:
        if not await is_notify_delivered(database, links.direct, within_s=LISTEN_TIMEOUT_S):
            raise ConfigurationError(
                f"notifications do not arrive at {links.direct.masked_url}",
                code=ErrorCode.BROKER_INIT_FAILED,
                hint="set broker.session_database_url to the server itself, past any pooler",
            )

    async def _reregister(self, parts: Parts) -> None:
        """Others have declared this run lost: give up its claims and go on under a new id."""
        async with parts.claim_lock:
            await parts.releases.release_claimed()
            former = self.identity.renew()
        await parts.fleet.register(self.identity.registration(self._worker, self._app))
        state = WorkerState.DRAINING if parts.is_stopping else WorkerState.RUNNING
        await parts.fleet.set_state(self.identity.worker_id, state)
        parts.reporter.emit(events.WorkerReturned(worker_id=str(self.identity.worker_id), former_worker_id=str(former)))

    def _stop_of(self, parts: Parts) -> asyncio.Event:
        self._parts_at_work = parts
        if self._stop.is_set():
            parts.is_stopping = True
        return self._stop

    async def _mark_stopped(self, parts: Parts) -> None:
        unstored = parts.completer.unstored_count
        if unstored:
            logger.error("%d outcomes could not be stored; their rows are left to recovery", unstored)
        try:
            async with self._shutdown_budget.spend():
                for worker_id in (*self.identity.former_ids, self.identity.worker_id):
                    await parts.fleet.set_state(worker_id, WorkerState.STOPPED)
        except (HorsiesError, TimeoutError) as error:
            logger.warning("could not write that the worker has stopped: %s", format_one_line(error) or NO_ANSWER)
        ran, worker_id = parts.reporter.totals.total, str(self.identity.worker_id)
        parts.reporter.emit(
            events.WorkerStopped(worker_id=worker_id, ran=ran.count, failed=ran.failed, unstored=unstored)
        )

    def _emit_started(self, parts: Parts) -> None:
        parts.reporter.emit(
            events.WorkerStarted(
                worker_id=str(self.identity.worker_id),
                host=f"{self.identity.hostname}:{self.identity.pid}",
                queues=tuple(self._worker.queues or ()),
                processes=self._worker.processes,
                database=parts.claims.database.connection_spec.masked_url,
            )
        )

    def _pool_broke(self, broken: asyncio.Future[None]) -> None:
        if not broken.cancelled() and (error := broken.exception()) is not None:
            logger.critical("children cannot be started any more: %s", format_one_line(error))
            self._stop.set()

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of `work`; None, and nothing done any more, where a stop is asked for before it is there."""
        doing = asyncio.create_task(work)
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait([doing, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if doing.done():
            return doing.result()
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)
        return None
