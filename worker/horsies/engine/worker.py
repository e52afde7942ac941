"""A worker process: assembles its services, runs and stops them, handles signals, and drains on shutdown."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from horsies.engine import events
from horsies.engine.completer import Completer
from horsies.engine.dispatcher import Capacity, Dispatcher, DuePoller, Releases, Wakeup
from horsies.engine.heartbeat import Health, Heartbeat, Registration, StartupReporter, WorkerIdentity
from horsies.engine.hooks import InterruptionNotifier
from horsies.engine.in_flight import Assignments, InFlight, InFlightTask
from horsies.engine.notifications import PROBE_AFTER_S, Notifications
from horsies.engine.pool.pool import ChildPool
from horsies.engine.pool.protocol import ChildSpec
from horsies.engine.pool_events import CrashHandler, PoolEvents, Requeuer
from horsies.engine.reaper import build_reaper
from horsies.engine.reporter import (
    TERMINAL_SUMMARY_INTERVAL_S,
    ChangePublisher,
    PeriodicSummary,
    Reporter,
    SnapshotWriter,
    TaskLines,
)
from horsies.engine.service import (
    NO_ANSWER,
    Backoff,
    BoundedService,
    Service,
    ShutdownDeadline,
    run_services,
)
from horsies.engine.unknown_tasks import UnknownTasks
from horsies.engine.workflows import WorkflowAdvancer
from horsies.errors import BrokerError, ConfigurationError, ErrorCode, HorsiesError, format_one_line
from horsies.model.capacity import ClaimLimits, DurationEstimates
from horsies.model.fence import Fence, child_heartbeat_interval_s, heartbeat_timeout_s, silent_child_limit_s
from horsies.model.settings import AppConfig, WorkerConfig
from horsies.model.settings.worker import WorkerResilienceConfig
from horsies.model.workflow.plan import WorkflowDefinitions
from horsies.recovery.hook_registry import RecoveryHooks
from horsies.recovery.hooks import HookCaller, HookFailure
from horsies.registry.definition import HasDefinition, TaskCatalog
from horsies.scheduler.service import Scheduler, ScheduleSet
from horsies.store.claims import ClaimStore
from horsies.store.connection import STATEMENT_TIMEOUT_S, ConnectionSpec
from horsies.store.database import Database, PoolSettings
from horsies.store.endpoint import migration_database, resolve_database
from horsies.store.listen import is_notify_delivered
from horsies.store.migrate import migrate, schema_state
from horsies.store.operators import EventStore
from horsies.store.tasks import TaskStore
from horsies.store.workers import CatalogStore, WorkerState, WorkerStore

T = TypeVar("T")

LISTEN_TIMEOUT_S = 5.0
SURPLUS_CONNECTION_IDLE_S = 3.0
CLAIM_STOP_S = 0.25
"""How long a claim may still run after a stop was requested."""
REAPER_STOP_S = 1.0

logger = logging.getLogger("horsies.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """The services of a worker, in the order in which they are stopped, and what its start, stop and tests need."""

    services: Sequence[Service]
    database: Database
    worker_store: WorkerStore
    registration: Registration
    pool: ChildPool
    in_flight: InFlight
    assignments: Assignments
    completer: Completer
    fence: Fence
    health: Health
    reporter: Reporter
    hooks: HookCaller
    wakeup: Wakeup


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
        schedules: ScheduleSet | None = None,
        probe_after_s: float = PROBE_AFTER_S,
        task_lines: TaskLines | None = None,
    ) -> None:
        self._app = app
        self._schedules = schedules
        """The schedules to sync and fire; None: this worker does not take part."""
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
        self._catalog = TaskCatalog.of(task.definition for task in tasks.values())
        self._definitions = definitions
        self._hooks = hooks or RecoveryHooks()
        self._environment = dict(child_environment or {})
        self._probe_after_s = probe_after_s
        self._task_lines = task_lines
        """Set if the log is shown on a terminal."""
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._deadline = ShutdownDeadline(grace_s=worker.grace_s, kill_wait_s=worker.kill_wait_s)
        self._listeners: list[Callable[[events.Event], None]] = []
        self._assembly: Assembly | None = None
        """Set once the services are running."""
        self.identity = WorkerIdentity.new()

    def add_listener(self, listener: Callable[[events.Event], None]) -> None:
        """Call `listener` with every event of this worker; to be called before `run`."""
        self._listeners.append(listener)

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        """Stop gracefully; a second call stops immediately."""
        if self._stop.is_set():
            self._stop_now.set()
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
        worker = self._assemble(stack, endpoint.connection_spec)
        # Start the children before opening any connection: they would inherit it and keep it open.
        processes = self._worker.processes
        logger.info("starting %d %s", processes, "child" if processes == 1 else "children")
        await self._unless_stopped(worker.pool.start())
        worker.pool.broken.add_done_callback(self._on_pool_broken)
        if await self._unless_stopped(self._prepare(endpoint.connection_spec, worker)):  # otherwise stopped meanwhile
            await self._serve(worker)
        if worker.pool.broken.done():
            worker.pool.broken.result()  # raises the error that broke the pool

    # Assembly

    def _assemble(self, stack: AsyncExitStack, spec: ConnectionSpec) -> Assembly:
        """Build all objects of the worker, each from those above it."""
        app, worker, identity = self._app, self._worker, self.identity
        queues, poll_s = worker.queues or [], app.resilience.notify_poll_interval_ms / 1000
        database, heartbeat_database = self._open_databases(stack, spec)
        claims, worker_store = ClaimStore(database), WorkerStore(heartbeat_database)
        check_rows_now, publish_health_now, workflows_due = asyncio.Event(), asyncio.Event(), asyncio.Event()
        schedules_changed = asyncio.Event()
        # Held during claims, starts, reconciliation and the due-time query: one of them at a time, on one connection.
        claim_lock = asyncio.Lock()
        wakeup, in_flight, durations = Wakeup(), InFlight(), DurationEstimates()
        reporter = Reporter(EventStore(database), Backoff(app.resilience), task_lines=self._task_lines)
        for listener in self._listeners:
            reporter.add_listener(listener)
        unknown_tasks = UnknownTasks(claims, queues, on_unknown=self._unknown_task_emitter(reporter))
        fence = Fence(app.recovery, now=time.monotonic())
        health = Health(
            recovery=app.recovery,
            audit_retention_hours=app.retention.audit_retention_hours,
            unknown_tasks=unknown_tasks.names,
        )
        backoff = partial(_backoff, app.resilience, reporter, identity)
        hooks = HookCaller(self._hooks, on_failure=self._hook_failure_emitter(reporter))
        notifier = InterruptionNotifier(hooks, TaskStore(database), backoff(InterruptionNotifier.name))
        if hooks.has_interrupted_hooks:  # otherwise save the call per finished task
            reporter.add_listener(notifier.on_event)

        due_poller = DuePoller(
            wakeup=wakeup,
            worker_store=WorkerStore(database),  # not the one on the connection of the heartbeats
            queues=queues,
            poll_s=poll_s,
            claim_lock=claim_lock,
            fence=fence,
            workflows_due=workflows_due,
        )
        completer = Completer(
            claims,
            in_flight,
            reporter,
            fence=fence,
            backoff=backoff(Completer.name, hurry=self._stop),
            on_stored=wakeup.wake,
            on_retry=due_poller.expect_due_in,
            on_nodes_finished=workflows_due.set,
        )
        releases = Releases(
            claims=claims,
            in_flight=in_flight,
            identity=identity,
            worker_store=worker_store,
            fence=fence,
            reporter=reporter,
            unknown_tasks=unknown_tasks,
            check_interval_ms=app.recovery.check_interval_ms,
        )
        assignments = Assignments(in_flight, durations, async_tasks=self._async_tasks, limits=self._limits)
        pool_events = PoolEvents(
            assignments=assignments,
            completer=completer,
            in_flight=in_flight,
            releases=releases,
            crash_handler=CrashHandler(
                completer,
                TaskStore(database),
                reporter,
                max_crashes=app.recovery.max_crashes,
                on_attempt_failed=notifier.on_attempt_failed,
            ),
            requeuer=Requeuer(database, in_flight, backoff("requeue")),
            reporter=reporter,
            identity=identity,
            wakeup=wakeup,
            unknown_tasks=unknown_tasks,
            fails_unknown_tasks=app.unknown_task_grace_s == 0,
            publish_health_now=publish_health_now,
        )
        pool = ChildPool(self._child_spec(), worker.processes, pool_events)
        stack.push_async_callback(pool.kill_all, "the worker is stopping")
        capacity = Capacity(
            pool=pool,
            assignments=assignments,
            in_flight=in_flight,
            durations=durations,
            identity=identity,
            app_config=app,
            worker_config=worker,
            async_tasks=self._async_tasks,
            unknown_tasks=unknown_tasks,
            limits=self._limits,
        )
        dispatcher = Dispatcher(
            wakeup=wakeup,
            capacity=capacity,
            claims=claims,
            in_flight=in_flight,
            assignments=assignments,
            releases=releases,
            due_poller=due_poller,
            identity=identity,
            fence=fence,
            health=health,
            reporter=reporter,
            backoff=backoff(Dispatcher.name),
            app_config=app,
            claim_lock=claim_lock,
        )
        notifications = Notifications(
            database,
            spec.direct,
            queues=queues,
            identity=identity,
            wakeup=wakeup,
            unknown_tasks=unknown_tasks,
            health=health,
            reporter=reporter,
            workflows_due=workflows_due,
            schedules_changed=schedules_changed,
            check_rows_now=check_rows_now,
            stop=self._stop,
            probe_after_s=self._probe_after_s,
        )
        registration = Registration(
            identity=identity,
            worker_store=worker_store,
            fence=fence,
            releases=releases,
            reporter=reporter,
            app_config=app,
            worker_config=worker,
            catalog_hash=self._catalog.catalog_hash,
            claim_lock=claim_lock,
            stop=self._stop,
        )
        reaper = build_reaper(
            app,
            database,
            identity=identity,
            health=health,
            reporter=reporter,
            hooks=hooks,
            workflows_due=workflows_due,
            publish_health_now=publish_health_now,
        )
        others = self._deadline.for_others
        advancer = WorkflowAdvancer(
            database,
            self._definitions,
            woken=workflows_due,
            backoff=backoff(WorkflowAdvancer.name),
            unknown_grace_s=app.unknown_task_grace_s,
        )
        scheduler = Scheduler(
            database,
            self._schedules or ScheduleSet(owner=""),
            identity.worker_id,
            woken=schedules_changed,
            is_notified=lambda: health.listener_problem is None,
        )
        services: list[Service] = [  # in the order in which they are stopped: each may still need those after it
            StartupReporter(registration, notifications.listening, backoff(StartupReporter.name), spec.masked_url),
            *(
                [BoundedService(scheduler, lambda: asyncio.timeout(REAPER_STOP_S))]
                if self._schedules is not None
                else []
            ),
            DispatchThenDrain(
                dispatcher,
                capacity=capacity,
                releases=releases,
                in_flight=in_flight,
                registration=registration,
                reporter=reporter,
                backoff=backoff("drain", hurry=self._stop),
                worker_config=worker,
                stop_now=self._stop_now,
                deadline=self._deadline,
            ),
            SnapshotWriter(
                worker_store=WorkerStore(database),
                registration=registration,
                in_flight=in_flight,
                pool=pool,
                app_config=app,
                worker_config=worker,
            ),
            # After the drain: a worker that drains for a long time can still recover tasks of others.
            BoundedService(reaper, lambda: asyncio.timeout(REAPER_STOP_S)),
            BoundedService(completer, self._deadline.for_outcomes),
            due_poller,  # a draining worker still advances runs
            BoundedService(advancer, others),
            BoundedService(notifier, others),
            BoundedService(reporter, others),
            PeriodicSummary(
                reporter,
                identity,
                interval_s=events.REPORT_INTERVAL_S if self._task_lines is None else TERMINAL_SUMMARY_INTERVAL_S,
            ),
            BoundedService(ChangePublisher(reporter, EventStore(database)), others),
            notifications,
            Heartbeat(
                identity=identity,
                worker_store=worker_store,
                fence=fence,
                health=health,
                in_flight=in_flight,
                assignments=assignments,
                pool=pool,
                reporter=reporter,
                wakeup=wakeup,
                app_config=app,
                check_rows_now=check_rows_now,
                publish_health_now=publish_health_now,
                on_declared_lost=registration.renew,
            ),
        ]
        return Assembly(
            services=services,
            database=database,
            worker_store=worker_store,
            registration=registration,
            pool=pool,
            in_flight=in_flight,
            assignments=assignments,
            completer=completer,
            fence=fence,
            health=health,
            reporter=reporter,
            hooks=hooks,
            wakeup=wakeup,
        )

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

    def _hook_failure_emitter(self, reporter: Reporter) -> Callable[[HookFailure], None]:
        def emit(failure: HookFailure) -> None:
            worker_id = str(self.identity.worker_id)
            reporter.emit(
                events.HookFailed(worker_id=worker_id, hook=failure.hook, error=failure.error, task_id=failure.task_id)
            )

        return emit

    def _unknown_task_emitter(self, reporter: Reporter) -> Callable[[str], None]:
        def emit(name: str) -> None:
            worker_id = str(self.identity.worker_id)
            reporter.emit(events.TaskUnknown(worker_id=worker_id, task_name=name, app=self._worker.app_locator))

        return emit

    def _child_spec(self) -> ChildSpec:
        recovery, worker = self._app.recovery, self._worker
        return ChildSpec(
            app_locator=worker.app_locator,
            modules=tuple(worker.imports) or None,
            environment=self._environment,
            log_level=logger.getEffectiveLevel(),
            async_concurrency=worker.async_concurrency,
            heartbeat_interval_s=child_heartbeat_interval_s(recovery),
            silence_timeout_s=silent_child_limit_s(recovery),
            ack_timeout_s=recovery.running_stale_threshold_ms / 1000,
            max_tasks_per_child=worker.max_tasks_per_child,
            max_memory_per_child_mb=worker.max_memory_per_child_mb,
        )

    # Start

    async def _prepare(self, spec: ConnectionSpec, worker: Assembly) -> bool:
        """Migrate or check the schema, check that notifications arrive, and register."""
        backoff = Backoff(self._app.resilience, on_change=_log_unavailable)
        while True:
            try:
                await self._migrate_or_check(spec)
                await self._require_notifications(spec, worker.database)
                await CatalogStore(worker.database).publish(self._catalog.catalog_hash, self._catalog.entries_json)
                await worker.registration.register()
            except BrokerError as error:
                if not error.retryable:
                    raise
                await backoff.wait(error)
            else:
                return True

    async def _migrate_or_check(self, spec: ConnectionSpec) -> None:
        async with migration_database(spec) as direct:
            state = await schema_state(direct)
            is_empty = not state.applied
            if is_empty or self._app.broker.database_url.is_embedded or self._app.broker.auto_migrate:
                if applied := await migrate(direct):
                    names = ", ".join(map(str, applied if len(applied) < 4 else (applied[0], "…", applied[-1])))
                    logger.info(
                        "applied %d %s: %s", len(applied), "migration" if len(applied) == 1 else "migrations", names
                    )
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

    async def _serve(self, worker: Assembly) -> None:
        self._assembly = worker
        worker.wakeup.wake()
        try:
            await run_services(worker.services, self._stop)
        finally:
            await self._mark_stopped(worker)
        if unstored := worker.completer.unstored_ids:
            names = ", ".join(unstored[:20]) + (" …" if len(unstored) > 20 else "")
            raise HorsiesError(
                f"outcomes of {len(unstored)} tasks not stored: {names}",
                hint="the database did not accept them in time; recovery handles their tasks",
            )

    async def _mark_stopped(self, worker: Assembly) -> None:
        unstored = worker.completer.unstored_ids
        for first in range(0, len(unstored), 20):
            logger.error("outcomes not stored; recovery will handle their tasks: %s", ", ".join(unstored[first:][:20]))
        try:
            async with self._deadline.for_others():
                for worker_id in (*self.identity.former_ids, self.identity.worker_id):
                    await worker.worker_store.set_state(worker_id, WorkerState.STOPPED)
        except (HorsiesError, TimeoutError) as error:
            logger.warning("cannot mark the worker as stopped: %s", format_one_line(error) or NO_ANSWER)
        totals, worker_id = worker.reporter.totals.total, str(self.identity.worker_id)
        worker.reporter.emit(
            events.WorkerStopped(worker_id=worker_id, ran=totals.count, failed=totals.failed, unstored=len(unstored))
        )

    def _on_pool_broken(self, broken: asyncio.Future[None]) -> None:
        if not broken.cancelled() and (error := broken.exception()) is not None:
            logger.critical("cannot start children, stopping the worker: %s", format_one_line(error))
            self._stop.set()


def _log_unavailable(error: Exception | None) -> None:
    if error is not None:
        logger.warning("database unavailable, retrying: %s", format_one_line(error))


def _backoff(
    config: WorkerResilienceConfig,
    reporter: Reporter,
    identity: WorkerIdentity,
    service: str,
    *,
    hurry: asyncio.Event | None = None,
) -> Backoff:
    """A backoff that emits an event when the service loses the database and when it is back."""

    def on_change(error: Exception | None) -> None:
        worker_id = str(identity.worker_id)
        if error is None:
            reporter.emit(events.DatabaseRestored(worker_id=worker_id, service=service))
        else:
            reporter.emit(events.DatabaseLost(worker_id=worker_id, service=service, error=format_one_line(error)))

    return Backoff(config, on_change=on_change, hurry=hurry)


class DispatchThenDrain:
    """Runs the dispatcher; on stop, releases waiting tasks and gives running ones the grace period to finish."""

    name = "dispatcher"

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        capacity: Capacity,
        releases: Releases,
        in_flight: InFlight,
        registration: Registration,
        reporter: Reporter,
        backoff: Backoff,
        worker_config: WorkerConfig,
        stop_now: asyncio.Event,
        deadline: ShutdownDeadline,
    ) -> None:
        self._dispatcher = dispatcher
        self._capacity = capacity
        self._releases = releases
        self._in_flight = in_flight
        self._registration = registration
        self._reporter = reporter
        self._backoff = backoff
        self._worker_config = worker_config
        self._stop_now = stop_now
        """Set by a second signal: ends the grace period."""
        self._deadline = deadline

    async def run(self, stop: asyncio.Event) -> None:
        await BoundedService(self._dispatcher, self._begin).run(stop)
        self._begin()  # again, in case the dispatcher had ended by then
        self._emit_draining()
        # Beside the running tasks: their time must not depend on the database.
        releasing = asyncio.create_task(self._retry(self._release_prefetched))
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
                await self._retry(self._release_remaining)
        except (HorsiesError, TimeoutError) as error:
            logger.warning("cannot release tasks: %s", format_one_line(error) or NO_ANSWER)
        finally:
            releasing.cancel()
            await asyncio.gather(releasing, return_exceptions=True)

    def _begin(self) -> asyncio.Timeout:
        """Start nothing more, and give the claim loop a moment to end."""
        self._capacity.is_closed = True
        self._deadline.begin()
        return asyncio.timeout(CLAIM_STOP_S)

    def _emit_draining(self) -> None:
        running = len(self._running())
        self._reporter.emit(
            events.WorkerDraining(
                worker_id=self._registration.worker_id, running=running, grace_s=self._worker_config.grace_s
            )
        )

    async def _retry(self, step: Callable[[], Awaitable[None]]) -> None:
        """Repeat a step until the database answers."""
        while True:
            try:
                await step()
            except HorsiesError as error:
                await self._backoff.wait(error)
            else:
                return self._backoff.reset()

    async def _release_prefetched(self) -> None:
        await self._registration.set_state(WorkerState.DRAINING)
        await self._releases.release_prefetched()
        await self._releases.reconcile()  # a claim cancelled by the stop may have been executed

    async def _wait_for_running(self) -> None:
        """Wait for running tasks until the grace period ends or a second signal arrives."""
        self._log_running("  hint=press Ctrl-C again or send another SIGTERM to kill them now")
        idle = asyncio.create_task(self._dispatcher.wait_until_idle())
        stop_now = asyncio.create_task(self._stop_now.wait())
        waits: list[asyncio.Task[Any]] = [idle, stop_now]
        await asyncio.wait(waits, timeout=self._worker_config.grace_s, return_when=asyncio.FIRST_COMPLETED)
        if self._stop_now.is_set():
            self._deadline.end_grace()
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    async def _kill_running(self) -> None:
        self._log_running()
        self._dispatcher.kill_busy_children()
        try:
            async with asyncio.timeout(self._worker_config.kill_wait_s):
                await self._dispatcher.wait_until_idle()
        except TimeoutError:
            logger.warning("%d task processes still alive after SIGKILL", len(self._running()))

    async def _release_remaining(self) -> None:
        await self._releases.release_unbegun()
        await self._releases.reconcile()

    def _log_running(self, suffix: str = "") -> None:
        if running := self._running():
            names = ", ".join(f"{task.row.task_name} {task.key.task_id}" for task in running[:20])
            logger.info("still running: %s%s%s", names, " …" if len(running) > 20 else "", suffix)

    def _running(self) -> list[InFlightTask]:
        return [task for task in self._in_flight.started() if not task.is_storing]
