"""A worker process: assembles its services, runs and stops them, handles signals, and drains on shutdown."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

from horsies.engine import events
from horsies.engine.assembly import (
    Base,
    Signals,
    TaskServices,
    build_heartbeat,
    build_maintenance,
    build_notifications,
    build_registration,
    build_snapshot_writer,
    build_task_services,
    open_base,
)
from horsies.engine.child.lifetime import stop_signals
from horsies.engine.heartbeat import Registration, StartupReporter, WorkerIdentity
from horsies.engine.in_flight import InFlightTask
from horsies.engine.notifications import PROBE_AFTER_S
from horsies.engine.pool.fork_server import ForkServer
from horsies.engine.pool.protocol import ChildSpec
from horsies.engine.reporter import (
    TERMINAL_SUMMARY_INTERVAL_S,
    ChangePublisher,
    PeriodicSummary,
    Reporter,
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
from horsies.errors import BrokerError, ConfigurationError, ErrorCode, HorsiesError, format_one_line
from horsies.model.capacity import ClaimLimits, child_heartbeat_interval_s, silent_child_limit_s
from horsies.model.settings import AppConfig, WorkerConfig
from horsies.model.workflow.plan import WorkflowDefinitions
from horsies.recovery.hook_registry import RecoveryHooks
from horsies.registry.definition import HasDefinition, TaskCatalog
from horsies.scheduler.service import ScheduleSet
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database
from horsies.store.endpoint import migrate_or_check, resolve_database
from horsies.store.listen import is_notify_delivered
from horsies.store.operators import EventStore
from horsies.store.workers import CatalogStore, WorkerState

T = TypeVar("T")

LISTEN_TIMEOUT_S = 5.0
CLAIM_STOP_S = 0.25
"""How long a claim may still run after a stop was requested."""

logger = logging.getLogger("horsies.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """The services of a worker, in the order in which they are stopped, and what its start, stop and tests need."""

    services: Sequence[Service]
    base: Base
    tasks: TaskServices
    registration: Registration


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
        fork_server: ForkServer | None = None,
    ) -> None:
        self._app = app
        self._fork_server = fork_server
        """One that shares this process's memory; None: the pool starts one."""
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
        """Run until stopped by `stop`, SIGTERM, SIGINT or SIGHUP."""
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            for number in stop_signals():
                handler_before = signal.getsignal(number)
                # When a terminal closes, the shell and the kernel may both send SIGHUP: it never ends the grace period.
                loop.add_signal_handler(number, self._stop.set if number is signal.SIGHUP else self.stop)
                # Callbacks run in reverse: the loop resets the signal to its default action, which kills the process;
                # then the previous handler is restored.
                stack.callback(signal.signal, number, handler_before)
                stack.callback(loop.remove_signal_handler, number)
            await self._start_and_serve(stack)

    async def _start_and_serve(self, stack: AsyncExitStack) -> None:
        endpoint = await asyncio.to_thread(resolve_database, self._app.broker)
        stack.callback(endpoint.release)
        worker = self._assemble(stack, endpoint.connection_spec)
        # Start the children before opening any connection: they would inherit it and keep it open.
        processes = self._worker.processes
        logger.info("starting %d %s", processes, "child" if processes == 1 else "children")
        await self._unless_stopped(worker.tasks.pool.start())
        worker.tasks.pool.broken.add_done_callback(self._on_pool_broken)
        if await self._unless_stopped(self._prepare(endpoint.connection_spec, worker)):  # otherwise stopped meanwhile
            await self._serve(worker)
        if worker.tasks.pool.broken.done():
            worker.tasks.pool.broken.result()  # raises the error that broke the pool

    # Assembly

    def _assemble(self, stack: AsyncExitStack, spec: ConnectionSpec) -> Assembly:
        """Build all services; each uses only those built before it."""
        deadline, others = self._deadline, self._deadline.for_others
        base = open_base(
            self._app,
            self._worker,
            spec,
            stack,
            self.identity,
            Signals(stop=self._stop),
            hooks=self._hooks,
            task_lines=self._task_lines,
            listeners=self._listeners,
        )
        tasks = build_task_services(
            base, self._child_spec(), self._limits, async_tasks=self._async_tasks, fork_server=self._fork_server
        )
        stack.push_async_callback(tasks.pool.kill_all, "the worker is stopping")
        registration = build_registration(base, tasks, catalog_hash=self._catalog.catalog_hash)
        notifications = build_notifications(base, tasks, spec.direct, probe_after_s=self._probe_after_s)
        reaper, advancer, schedulers = build_maintenance(base, self._definitions, self._schedules)
        summary_s = events.REPORT_INTERVAL_S if self._task_lines is None else TERMINAL_SUMMARY_INTERVAL_S
        services: list[Service] = [  # in the order in which they are stopped: each may still need those after it
            StartupReporter(registration, notifications.listening, base.backoff(StartupReporter.name), spec.masked_url),
            *schedulers,
            DispatchThenDrain(
                tasks,
                registration,
                base.reporter,
                base.backoff("drain", hurry=self._stop),
                worker_config=self._worker,
                stop_now=self._stop_now,
                deadline=deadline,
            ),
            build_snapshot_writer(base, tasks, registration),
            reaper,  # after the drain: a worker that drains for a long time can still recover tasks of others
            BoundedService(tasks.completer, deadline.for_outcomes),
            tasks.due_poller,  # a draining worker still advances runs
            BoundedService(advancer, others),
            BoundedService(base.notifier, others),
            BoundedService(base.reporter, others),
            PeriodicSummary(base.reporter, self.identity, interval_s=summary_s),
            BoundedService(ChangePublisher(base.reporter, EventStore(base.database)), others),
            notifications,
            build_heartbeat(base, tasks, registration),
        ]
        return Assembly(services=services, base=base, tasks=tasks, registration=registration)

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
                await self._require_notifications(spec, worker.base.database)
                await CatalogStore(worker.base.database).publish(self._catalog.catalog_hash, self._catalog.entries_json)
                await worker.registration.register()
            except BrokerError as error:
                if not error.retryable:
                    raise
                await backoff.wait(error)
            else:
                return True

    async def _migrate_or_check(self, spec: ConnectionSpec) -> None:
        if applied := await migrate_or_check(spec, self._app.broker):
            names = ", ".join(map(str, applied if len(applied) < 4 else (applied[0], "…", applied[-1])))
            logger.info("applied %d %s: %s", len(applied), "migration" if len(applied) == 1 else "migrations", names)

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
        worker.tasks.wakeup.wake()
        try:
            await run_services(worker.services, self._stop)
        finally:
            await self._mark_stopped(worker)
        if unstored := worker.tasks.completer.unstored_ids:
            names = ", ".join(unstored[:20]) + (" …" if len(unstored) > 20 else "")
            raise HorsiesError(
                f"outcomes of {len(unstored)} tasks not stored: {names}",
                hint="the database did not accept them in time; recovery handles their tasks",
            )

    async def _mark_stopped(self, worker: Assembly) -> None:
        unstored = worker.tasks.completer.unstored_ids
        for first in range(0, len(unstored), 20):
            logger.error("outcomes not stored; recovery will handle their tasks: %s", ", ".join(unstored[first:][:20]))
        try:
            async with self._deadline.for_others():
                for worker_id in (*self.identity.former_ids, self.identity.worker_id):
                    await worker.base.heartbeat_store.set_state(worker_id, WorkerState.STOPPED)
        except (HorsiesError, TimeoutError) as error:
            logger.warning("cannot mark the worker as stopped: %s", format_one_line(error) or NO_ANSWER)
        totals, worker_id = worker.base.reporter.totals.total, str(self.identity.worker_id)
        worker.base.reporter.emit(
            events.WorkerStopped(worker_id=worker_id, ran=totals.count, failed=totals.failed, unstored=len(unstored))
        )

    def _on_pool_broken(self, broken: asyncio.Future[None]) -> None:
        if not broken.cancelled() and (error := broken.exception()) is not None:
            logger.critical("cannot start children, stopping the worker: %s", format_one_line(error))
            self._stop.set()


def _log_unavailable(error: Exception | None) -> None:
    if error is not None:
        logger.warning("database unavailable, retrying: %s", format_one_line(error))


class DispatchThenDrain:
    """Runs the dispatcher; on stop, releases waiting tasks and gives running ones the grace period to finish."""

    name = "dispatcher"

    def __init__(
        self,
        tasks: TaskServices,
        registration: Registration,
        reporter: Reporter,
        backoff: Backoff,
        *,
        worker_config: WorkerConfig,
        stop_now: asyncio.Event,
        deadline: ShutdownDeadline,
    ) -> None:
        self._dispatcher = tasks.dispatcher
        self._capacity = tasks.capacity
        self._releases = tasks.releases
        self._in_flight = tasks.in_flight
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
        self._capacity.stop()
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
        self._log_running(hint="press Ctrl-C again or send another SIGTERM to kill them now")
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

    def _log_running(self, **fields: str) -> None:
        if running := self._running():
            names = ", ".join(f"{task.row.task_name} {task.key.task_id}" for task in running[:20])
            logger.info("still running: %s%s", names, " …" if len(running) > 20 else "", extra=fields)

    def _running(self) -> list[InFlightTask]:
        return [task for task in self._in_flight.started() if not task.is_storing]
