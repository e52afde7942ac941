"""A worker process: builds its parts, starts its services, handles signals, and drains on shutdown."""

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

from horsies.engine import events
from horsies.engine.completer import Completer
from horsies.engine.dispatcher import Capacity, Dispatcher, DuePoller, Releases
from horsies.engine.heartbeat import Health, Heartbeat, SelfFence, WorkerIdentity
from horsies.engine.hooks import InterruptionNotifier
from horsies.engine.in_flight import Assignments, InFlight, InFlightTask
from horsies.engine.notifications import PROBE_AFTER_S, Notifications
from horsies.engine.pool.pool import ChildPool
from horsies.engine.pool.protocol import ChildSpec
from horsies.engine.pool_events import CrashHandler, PoolEvents, Requeuer
from horsies.engine.reaper import build_reaper
from horsies.engine.reporter import ChangePublisher, PeriodicSummary, Reporter, SnapshotWriter
from horsies.engine.service import NO_ANSWER, Backoff, BoundedService, ShutdownDeadline, run_services, run_until
from horsies.engine.workflows import WorkflowAdvancer
from horsies.errors import BrokerError, ConfigurationError, ErrorCode, HorsiesError, format_one_line
from horsies.model.capacity import ClaimLimits, DurationEstimates
from horsies.model.fence import child_heartbeat_interval_s, heartbeat_timeout_s, silent_child_limit_s
from horsies.model.settings import AppConfig, WorkerConfig
from horsies.model.workflow.plan import WorkflowDefinitions
from horsies.recovery.hooks import HookCaller, HookFailure, RecoveryHooks
from horsies.registry.definition import HasDefinition
from horsies.store.claims import ClaimStore
from horsies.store.connection import STATEMENT_TIMEOUT_S, ConnectionSpec
from horsies.store.database import Database, PoolSettings
from horsies.store.endpoint import migration_database, resolve_database
from horsies.store.listen import is_notify_delivered
from horsies.store.migrate import migrate, schema_state
from horsies.store.operators import EventStore
from horsies.store.tasks import TaskStore
from horsies.store.workers import WorkerState, WorkerStore

T = TypeVar("T")

LISTEN_TIMEOUT_S = 5.0
SURPLUS_CONNECTION_IDLE_S = 3.0
CLAIM_STOP_S = 0.25
"""How long a claim may still run after a stop was requested."""
REAPER_STOP_S = 1.0

logger = logging.getLogger("horsies.worker")


@dataclass(slots=True, kw_only=True)
class Parts:
    """The objects that the services of one worker share.

    Fields with `init=False` need other parts; `Worker._build_parts`, `_assemble` and `_serve` set them before any
    service runs.
    """

    app_config: AppConfig
    worker_config: WorkerConfig
    identity: WorkerIdentity
    fence: SelfFence
    in_flight: InFlight
    durations: DurationEstimates
    assignments: Assignments
    claims: ClaimStore
    worker_store: WorkerStore
    """On the connection of the heartbeats."""
    reporter: Reporter
    health: Health
    claim_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held during claims, starts, reconciliation and the due-time query: one of them at a time, on one connection."""
    is_stopping: bool = False
    degraded_reason: str | None = None
    """Why notifications may be missed; None if they arrive."""
    check_rows_now: asyncio.Event = field(default_factory=asyncio.Event)
    """Set it to check the rows of running tasks before the next heartbeat is due."""
    workflows_due: asyncio.Event = field(default_factory=asyncio.Event)
    """Set it to advance workflow runs before the next poll."""
    publish_health_now: asyncio.Event = field(default_factory=asyncio.Event)
    """Set it to publish the health document before the next heartbeat is due."""
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
    on_poll: Callable[[], None] = field(init=False)
    on_task_notification: Callable[[], None] = field(init=False)
    expect_due_in: Callable[[float], None] = field(init=False)
    """Announce a task that becomes due after so many seconds."""
    look_for_due_in: Callable[[float], None] = field(init=False)
    """Ask the database for the next due time after so many seconds."""

    def backoff(self, service: str, *, hurry: asyncio.Event | None = None) -> Backoff:
        """A backoff that emits an event when the service loses the database and when it is back."""

        def on_change(error: Exception | None) -> None:
            worker_id = str(self.identity.worker_id)
            if error is None:
                self.reporter.emit(events.DatabaseRestored(worker_id=worker_id, service=service))
            else:
                lost = events.DatabaseLost(worker_id=worker_id, service=service, error=format_one_line(error))
                self.reporter.emit(lost)

        return Backoff(self.app_config.resilience, on_change=on_change, hurry=hurry)


class Worker:
    """One run of a worker process. `run` returns after a requested stop and raises after any other end."""

    def __init__(
        self,
        app: AppConfig,
        worker: WorkerConfig,
        *,
        tasks: Mapping[str, HasDefinition],
        definitions: WorkflowDefinitions,
        hooks: RecoveryHooks | None = None,
        child_environment: Mapping[str, str] | None = None,
        probe_after_s: float = PROBE_AFTER_S,
    ) -> None:
        self._app = app
        self._worker = worker
        served = [task.definition for task in tasks.values() if task.definition.queue_name in (worker.queues or ())]
        has_functions = not all(definition.is_async for definition in served)
        self._async_tasks = frozenset(name for name, task in tasks.items() if task.definition.is_async)
        self._limits = ClaimLimits(
            processes=worker.processes,
            prefetch_buffer=app.prefetch_buffer,
            max_claim_batch=worker.max_claim_batch,
            max_claim_per_worker=worker.max_claim_per_worker,
            max_chunk=worker.max_chunk,
            async_concurrency=worker.async_concurrency,
            cluster_wide_cap=app.cluster_wide_cap,
            keeps_child_for_functions=has_functions and bool(self._async_tasks) and worker.processes > 1,
        )
        self._definitions = definitions
        self._hooks = hooks or RecoveryHooks()
        self._environment = dict(child_environment or {})
        self._probe_after_s = probe_after_s
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._deadline = ShutdownDeadline(grace_s=worker.grace_s, kill_wait_s=worker.kill_wait_s)
        self._listeners: list[Callable[[events.Event], None]] = []
        self._parts: Parts | None = None
        """Set once the services are running."""
        self.identity = WorkerIdentity.new()

    def add_listener(self, listener: Callable[[events.Event], None]) -> None:
        """Call `listener` with every event of this worker; to be called before `run`."""
        self._listeners.append(listener)

    def stop(self) -> None:
        """Stop gracefully; a second call stops immediately."""
        if self._stop.is_set():
            self._stop_now.set()
        if self._parts is not None:
            self._parts.is_stopping = True
        self._stop.set()

    async def run(self) -> None:
        """Run until stopped by `stop`, SIGTERM or SIGINT."""
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            for number in (signal.SIGTERM, signal.SIGINT):
                handler_before = signal.getsignal(number)
                loop.add_signal_handler(number, self.stop)
                # Callbacks run in reverse: the loop resets the signal to its default action, which kills the process;
                # then the previous handler is restored.
                stack.callback(signal.signal, number, handler_before)
                stack.callback(loop.remove_signal_handler, number)
            await self._run(stack)

    async def _run(self, stack: AsyncExitStack) -> None:
        endpoint = await asyncio.to_thread(resolve_database, self._app.broker)
        stack.callback(endpoint.release)
        parts, dispatcher = self._assemble(stack, endpoint.connection_spec)
        # Start the children before opening any connection: they would inherit it and keep it open.
        logger.info("starting %d children", self._worker.processes)
        await self._unless_stopped(parts.pool.start())
        parts.pool.broken.add_done_callback(self._on_pool_broken)
        started_at = await self._unless_stopped(self._prepare(endpoint.connection_spec, parts))
        if started_at is not None:  # None: stopped during the start
            await self._serve(parts, dispatcher, endpoint.connection_spec, started_at)
        if parts.pool.broken.done():
            parts.pool.broken.result()  # raises the error that broke the pool

    # Building the parts

    def _assemble(self, stack: AsyncExitStack, spec: ConnectionSpec) -> tuple[Parts, Dispatcher]:
        database, heartbeat_database = self._open_databases(stack, spec)
        parts = self._build_parts(database, heartbeat_database)
        parts.capacity = Capacity(parts, async_tasks=self._async_tasks, limits=self._limits)
        parts.releases = Releases(parts)
        dispatcher = Dispatcher(parts)
        parts.wake, parts.wake_to_claim, parts.on_poll = dispatcher.wake, dispatcher.wake_to_claim, dispatcher.on_poll
        parts.on_task_notification = dispatcher.on_task_notification
        parts.pool = ChildPool(self._child_spec(), self._worker.processes, PoolEvents(parts))
        stack.push_async_callback(parts.pool.kill_all, "the worker is stopping")
        return parts, dispatcher

    def _open_databases(self, stack: AsyncExitStack, spec: ConnectionSpec) -> tuple[Database, Database]:
        """Two connection pools to the same database: a general one, and a single connection for the heartbeats."""
        broker, worker = self._app.broker, self._worker
        settings = PoolSettings(
            min_size=1,
            max_size=worker.parent_pool_size + worker.parent_max_overflow,
            acquire_timeout_s=broker.pool_timeout,
            # An idle worker keeps one connection; those opened for a burst are closed soon.
            idle_s=min(broker.pool_recycle, SURPLUS_CONNECTION_IDLE_S),
            check_idle=broker.pool_pre_ping,
            setting_name="broker.worker_pool_size",
        )
        spec = replace(spec, force_generic_plan=True)
        database = Database(spec, settings)
        timeout_s = heartbeat_timeout_s(self._app.recovery, claim_lease_ms=self._app.claim_lease_ms)
        heartbeat_database = Database(
            replace(spec, statement_timeout_s=min(STATEMENT_TIMEOUT_S, timeout_s)),
            replace(settings, max_size=1),
            # What stopped the heartbeat stops the other statements too, but they wait for longer.
            on_timeout=database.drop_connections,
        )
        for opened in (database, heartbeat_database):
            stack.callback(opened.terminate)  # not close, which would wait for a server that may not answer
        return database, heartbeat_database

    def _build_parts(self, database: Database, heartbeat_database: Database) -> Parts:
        app, worker = self._app, self._worker
        durations = DurationEstimates()
        in_flight = InFlight()
        assignments = Assignments(in_flight, durations, async_tasks=self._async_tasks, limits=self._limits)
        reporter = Reporter(EventStore(database), Backoff(app.resilience))
        for listener in self._listeners:
            reporter.add_listener(listener)
        parts = Parts(
            app_config=app,
            worker_config=worker,
            identity=self.identity,
            fence=SelfFence(app.recovery),
            in_flight=in_flight,
            durations=durations,
            assignments=assignments,
            claims=ClaimStore(database),
            worker_store=WorkerStore(heartbeat_database),
            reporter=reporter,
            health=Health(recovery=app.recovery, audit_retention_hours=app.retention.audit_retention_hours),
        )
        parts.completer = Completer(
            parts.claims,
            parts.in_flight,
            reporter,
            fence=parts.fence,
            backoff=parts.backoff(Completer.name, hurry=self._stop),
            # Lambdas, because `parts.wake` and `parts.expect_due_in` are set later.
            on_stored=lambda: parts.wake(),  # noqa: PLW0108
            on_retry=lambda delay_s: parts.expect_due_in(delay_s),  # noqa: PLW0108
            on_nodes_finished=parts.workflows_due.set,
            on_unknown_task=self._unknown_task_emitter(reporter),
        )
        parts.hooks = HookCaller(self._hooks, on_failure=self._hook_failure_emitter(reporter))
        parts.interruption_notifier = InterruptionNotifier(
            parts.hooks, TaskStore(database), parts.backoff(InterruptionNotifier.name)
        )
        if parts.hooks.has_interrupted_hooks:  # otherwise save the call per finished task
            reporter.add_listener(parts.interruption_notifier.on_event)
        parts.requeuer = Requeuer(database, parts.in_flight, parts.backoff("requeue"))
        parts.crash_handler = CrashHandler(
            parts.completer,
            TaskStore(database),
            reporter,
            max_crashes=app.recovery.max_crashes,
            on_attempt_failed=parts.interruption_notifier.on_attempt_failed,
        )
        return parts

    def _hook_failure_emitter(self, reporter: Reporter) -> Callable[[HookFailure], None]:
        def emit(failure: HookFailure) -> None:
            worker_id = str(self.identity.worker_id)
            reporter.emit(
                events.HookFailed(worker_id=worker_id, hook=failure.hook, error=failure.error, task_id=failure.task_id)
            )

        return emit

    def _unknown_task_emitter(self, reporter: Reporter) -> Callable[[str], None]:
        """Emit TaskUnknown once per task name."""
        emitted: set[str] = set()

        def emit(name: str) -> None:
            if name not in emitted:
                emitted.add(name)
                worker_id = str(self.identity.worker_id)
                reporter.emit(events.TaskUnknown(worker_id=worker_id, task_name=name, app=self._worker.app_locator))

        return emit

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

    # Start

    async def _prepare(self, spec: ConnectionSpec, parts: Parts) -> datetime:
        """Migrate or check the schema, check that notifications arrive, and register; returns the start time."""
        backoff = Backoff(self._app.resilience, on_change=_log_unavailable)
        while True:
            try:
                await self._migrate_or_check(spec)
                await self._require_notifications(spec, parts.claims.database)
                sent_at = time.monotonic()
                started_at = await parts.worker_store.register(self.identity.registration(self._worker, self._app))
                parts.fence.record_heartbeat(sent_at)
            except BrokerError as error:
                if not error.retryable:
                    raise
                await backoff.wait(error)
            else:
                return started_at

    async def _migrate_or_check(self, spec: ConnectionSpec) -> None:
        async with migration_database(spec) as direct:
            state = await schema_state(direct)
            is_empty = not state.applied
            if is_empty or self._app.broker.database_url.is_embedded or self._app.broker.auto_migrate:
                for migration in await migrate(direct):
                    logger.info("applied migration %s", migration)
            else:
                state.check_current()

    async def _require_notifications(self, spec: ConnectionSpec, database: Database) -> None:
        if not await is_notify_delivered(database, spec.direct, within_s=LISTEN_TIMEOUT_S):
            raise ConfigurationError(
                f"no notifications received from {spec.direct.masked_url}",
                code=ErrorCode.BROKER_INIT_FAILED,
                hint="set broker.session_database_url to the address of the server itself, not of a pooler",
            )

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of `work`; None, with `work` cancelled, if a stop is requested before it is done."""
        working = asyncio.create_task(work)
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if working.done():
            return working.result()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        return None

    # Running and stopping

    async def _serve(self, parts: Parts, dispatcher: Dispatcher, spec: ConnectionSpec, started_at: datetime) -> None:
        due_poller = DuePoller(parts)
        notifications = Notifications(parts, spec.direct, probe_after_s=self._probe_after_s)
        parts.expect_due_in, parts.look_for_due_in = due_poller.expect_due_in, due_poller.look_in
        dispatcher.wake()
        # In the order in which they are stopped: each may still need those after it.
        services = [
            StartupReporter(parts, listening=notifications.listening, on_started=lambda: self._emit_started(parts)),
            due_poller,
            DispatchThenDrain(dispatcher, parts, self._stop_now, self._deadline),
            SnapshotWriter(parts, started_at),
            # After the drain: a worker that drains for a long time can still recover tasks of others.
            BoundedService(build_reaper(parts), lambda: asyncio.timeout(REAPER_STOP_S)),
            BoundedService(parts.completer, self._deadline.for_outcomes),
            BoundedService(WorkflowAdvancer(parts, self._definitions), self._deadline.for_others),
            BoundedService(parts.interruption_notifier, self._deadline.for_others),
            BoundedService(parts.reporter, self._deadline.for_others),
            PeriodicSummary(parts.reporter, self.identity),
            BoundedService(
                ChangePublisher(parts.reporter, EventStore(parts.claims.database)), self._deadline.for_others
            ),
            notifications,
            Heartbeat(parts, on_declared_lost=lambda: self._reregister(parts)),
        ]
        self._parts = parts
        if self._stop.is_set():  # `stop` was called before it could reach `parts`
            parts.is_stopping = True
        try:
            await run_services(services, self._stop)
        finally:
            await self._mark_stopped(parts)
        if unstored := parts.completer.unstored_ids:
            names = ", ".join(unstored[:20]) + (" …" if len(unstored) > 20 else "")
            raise HorsiesError(
                f"outcomes of {len(unstored)} tasks not stored: {names}",
                hint="the database did not accept them in time; recovery handles their tasks",
            )

    async def _reregister(self, parts: Parts) -> None:
        """Another worker declared this one lost: release its claims and continue under a new id."""
        async with parts.claim_lock:
            await parts.releases.release_claimed()
            former = self.identity.renew()
        await parts.worker_store.register(self.identity.registration(self._worker, self._app))
        state = WorkerState.DRAINING if parts.is_stopping else WorkerState.RUNNING
        await parts.worker_store.set_state(self.identity.worker_id, state)
        parts.reporter.emit(events.WorkerReturned(worker_id=str(self.identity.worker_id), former_worker_id=str(former)))

    async def _mark_stopped(self, parts: Parts) -> None:
        unstored = parts.completer.unstored_ids
        for first in range(0, len(unstored), 20):
            logger.error("outcomes not stored; recovery will handle their tasks: %s", ", ".join(unstored[first:][:20]))
        try:
            async with self._deadline.for_others():
                for worker_id in (*self.identity.former_ids, self.identity.worker_id):
                    await parts.worker_store.set_state(worker_id, WorkerState.STOPPED)
        except (HorsiesError, TimeoutError) as error:
            logger.warning("cannot mark the worker as stopped: %s", format_one_line(error) or NO_ANSWER)
        totals, worker_id = parts.reporter.totals.total, str(self.identity.worker_id)
        parts.reporter.emit(
            events.WorkerStopped(worker_id=worker_id, ran=totals.count, failed=totals.failed, unstored=len(unstored))
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

    def _on_pool_broken(self, broken: asyncio.Future[None]) -> None:
        if not broken.cancelled() and (error := broken.exception()) is not None:
            logger.critical("cannot start children, stopping the worker: %s", format_one_line(error))
            self._stop.set()


def _log_unavailable(error: Exception | None) -> None:
    if error is not None:
        logger.warning("database unavailable, retrying: %s", format_one_line(error))


class StartupReporter:
    """Marks the worker as running once it receives notifications, then waits to be stopped."""

    name = "startup"

    def __init__(self, parts: Parts, *, listening: asyncio.Event, on_started: Callable[[], None]) -> None:
        self._parts = parts
        self._listening = listening
        self._on_started = on_started

    async def run(self, stop: asyncio.Event) -> None:
        await run_until(stop, self._report_once())

    async def _report_once(self) -> None:
        await self._listening.wait()
        await self._set_running()
        self._on_started()
        await asyncio.Event().wait()  # a service that returns before it is stopped ends the worker

    async def _set_running(self) -> None:
        backoff = self._parts.backoff(self.name)
        while True:
            try:
                await self._parts.worker_store.set_state(self._parts.identity.worker_id, WorkerState.RUNNING)
            except HorsiesError as error:
                await backoff.wait(error)
            else:
                return


class DispatchThenDrain:
    """Runs the dispatcher; on stop, releases waiting tasks and gives running ones the grace period to finish."""

    name = "dispatcher"

    def __init__(
        self, dispatcher: Dispatcher, parts: Parts, stop_now: asyncio.Event, deadline: ShutdownDeadline
    ) -> None:
        self._dispatcher = dispatcher
        self._parts = parts
        self._stop_now = stop_now
        """Set by a second signal: ends the grace period."""
        self._deadline = deadline

    async def run(self, stop: asyncio.Event) -> None:
        await BoundedService(self._dispatcher, self._begin).run(stop)
        self._begin()  # again, in case the dispatcher had ended by then
        self._emit_draining()
        # Beside the running tasks: their time must not depend on the database.
        releasing = asyncio.create_task(self._retry(self._release_claimed, stop))
        await asyncio.wait([releasing], timeout=CLAIM_STOP_S)
        try:
            self._dispatcher.recall_chunks()
            await self._wait_for_running()
            if self._running():
                await self._kill_running()
            self._deadline.on_tasks_ended()
            # Tasks that a child has not begun are RUNNING in the database: unless released, they count as crashed.
            async with self._deadline.for_outcomes() if self._running() else self._deadline.for_others():
                await releasing
                await self._retry(self._release_remaining, stop)
        except (HorsiesError, TimeoutError) as error:
            logger.warning("cannot release tasks: %s", format_one_line(error) or NO_ANSWER)
        finally:
            releasing.cancel()
            await asyncio.gather(releasing, return_exceptions=True)

    def _begin(self) -> asyncio.Timeout:
        """Start nothing more, and give the claim loop a moment to end."""
        self._parts.capacity.is_closed = True
        self._deadline.begin()
        return asyncio.timeout(CLAIM_STOP_S)

    def _emit_draining(self) -> None:
        parts, running = self._parts, len(self._running())
        parts.reporter.emit(
            events.WorkerDraining(
                worker_id=str(parts.identity.worker_id), running=running, grace_s=parts.worker_config.grace_s
            )
        )

    async def _retry(self, step: Callable[[], Awaitable[None]], stop: asyncio.Event) -> None:
        """Repeat a step until the database answers."""
        backoff = self._parts.backoff("drain", hurry=stop)
        while True:
            try:
                await step()
            except HorsiesError as error:
                await backoff.wait(error)
            else:
                return backoff.reset()

    async def _release_claimed(self) -> None:
        await self._parts.worker_store.set_state(self._parts.identity.worker_id, WorkerState.DRAINING)
        await self._parts.releases.release_claimed()
        await self._parts.releases.reconcile()  # a claim cancelled by the stop may have been executed

    async def _wait_for_running(self) -> None:
        """Wait for running tasks until the grace period ends or a second signal arrives."""
        self._log_running("  hint=press Ctrl-C again or send another SIGTERM to kill them now")
        idle = asyncio.create_task(self._dispatcher.wait_until_idle())
        stop_now = asyncio.create_task(self._stop_now.wait())
        waits: list[asyncio.Task[Any]] = [idle, stop_now]
        await asyncio.wait(waits, timeout=self._parts.worker_config.grace_s, return_when=asyncio.FIRST_COMPLETED)
        if self._stop_now.is_set():
            self._deadline.end_grace()
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    async def _kill_running(self) -> None:
        self._log_running()
        self._dispatcher.kill_busy_children()
        try:
            async with asyncio.timeout(self._parts.worker_config.kill_wait_s):
                await self._dispatcher.wait_until_idle()
        except TimeoutError:
            logger.warning("%d task processes still alive after SIGKILL", len(self._running()))

    async def _release_remaining(self) -> None:
        await self._parts.releases.release_unbegun()
        await self._parts.releases.reconcile()

    def _log_running(self, suffix: str = "") -> None:
        if running := self._running():
            names = ", ".join(f"{task.row.task_name} {task.key.task_id}" for task in running[:20])
            logger.info("still running: %s%s%s", names, " …" if len(running) > 20 else "", suffix)

    def _running(self) -> list[InFlightTask]:
        return [task for task in self._parts.in_flight.started() if not task.is_storing]
