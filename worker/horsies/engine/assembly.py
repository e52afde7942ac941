"""Builds the services of a worker in groups; `Worker` puts them in the order in which they stop.

A group is passed between these functions only: each service gets what it uses as constructor arguments.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

from horsies.engine import events
from horsies.engine.completer import Completer
from horsies.engine.dispatcher import Capacity, Dispatcher, DuePoller, Releases, Wakeup
from horsies.engine.heartbeat import Health, Heartbeat, Registration, WorkerIdentity
from horsies.engine.hooks import InterruptionNotifier
from horsies.engine.in_flight import Assignments, InFlight
from horsies.engine.notifications import Notifications
from horsies.engine.pool.fork_server import ForkServer
from horsies.engine.pool.pool import ChildPool
from horsies.engine.pool.protocol import ChildSpec
from horsies.engine.pool_events import CrashHandler, PoolEvents, Requeuer
from horsies.engine.reaper import build_reaper
from horsies.engine.reporter import Reporter, SnapshotWriter, TaskLines
from horsies.engine.service import Backoff, BoundedService, Service
from horsies.engine.unknown_tasks import UnknownTasks
from horsies.engine.workflows import WorkflowAdvancer
from horsies.errors import format_one_line
from horsies.model.capacity import ClaimLimits, DurationEstimates, Fence, heartbeat_timeout_s
from horsies.model.settings import AppConfig, WorkerConfig
from horsies.model.workflow.plan import WorkflowDefinitions
from horsies.recovery.hook_registry import RecoveryHooks
from horsies.recovery.hooks import HookCaller, HookFailure
from horsies.scheduler.service import Scheduler, ScheduleSet
from horsies.store.claims import ClaimStore
from horsies.store.connection import STATEMENT_TIMEOUT_S, ConnectionSpec
from horsies.store.database import Database, PoolSettings
from horsies.store.operators import EventStore
from horsies.store.tasks import TaskStore
from horsies.store.workers import WorkerStore

SURPLUS_CONNECTION_IDLE_S = 3.0
MAINTENANCE_STOP_S = 1.0
"""How long the reaper or the scheduler may keep running after a stop was requested."""


@dataclass(frozen=True, slots=True)
class Signals:
    """Events by which the services of a worker wake each other, and the lock of claims."""

    stop: asyncio.Event
    check_rows_now: asyncio.Event = field(default_factory=asyncio.Event)
    publish_health_now: asyncio.Event = field(default_factory=asyncio.Event)
    workflows_due: asyncio.Event = field(default_factory=asyncio.Event)
    schedules_changed: asyncio.Event = field(default_factory=asyncio.Event)
    claim_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held during claims, starts, reconciliation and the due-time query: one of them at a time, on one connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What the services of all groups use: databases, reporter, fence, health and hooks."""

    app: AppConfig
    worker: WorkerConfig
    identity: WorkerIdentity
    signals: Signals
    database: Database
    claims: ClaimStore
    heartbeat_store: WorkerStore
    """On a connection of its own."""
    reporter: Reporter
    fence: Fence
    unknown_tasks: UnknownTasks
    health: Health
    hooks: HookCaller
    notifier: InterruptionNotifier

    @property
    def queues(self) -> Sequence[str]:
        return self.worker.queues or []

    def backoff(self, service: str, *, hurry: asyncio.Event | None = None) -> Backoff:
        return _backoff(self.app, self.reporter, self.identity, service, hurry=hurry)


def open_base(
    app: AppConfig,
    worker: WorkerConfig,
    spec: ConnectionSpec,
    stack: AsyncExitStack,
    identity: WorkerIdentity,
    signals: Signals,
    *,
    hooks: RecoveryHooks,
    task_lines: TaskLines | None,
    listeners: Iterable[Callable[[events.Event], None]],
) -> Base:
    """Open the databases, which `stack` closes, and build what all services use."""
    database, heartbeat_database = _open_databases(app, worker, spec, stack)
    claims = ClaimStore(database)
    reporter = Reporter(EventStore(database), Backoff(app.resilience), task_lines=task_lines)
    for listener in listeners:
        reporter.add_listener(listener)

    def on_unknown(name: str) -> None:
        worker_id = str(identity.worker_id)  # a worker that was declared lost gets a new one
        reporter.emit(events.TaskUnknown(worker_id=worker_id, task_name=name, app=worker.app_locator))

    def on_hook_failure(failure: HookFailure) -> None:
        reporter.emit(
            events.HookFailed(
                worker_id=str(identity.worker_id), hook=failure.hook, error=failure.error, task_id=failure.task_id
            )
        )

    unknown_tasks = UnknownTasks(claims, worker.queues or [], on_unknown=on_unknown)
    hook_caller = HookCaller(hooks, on_failure=on_hook_failure)
    notifier = InterruptionNotifier(
        hook_caller, TaskStore(database), _backoff(app, reporter, identity, InterruptionNotifier.name)
    )
    if hook_caller.has_interrupted_hooks:  # without hooks, save the call per finished task
        reporter.add_listener(notifier.on_event)
    return Base(
        app=app,
        worker=worker,
        identity=identity,
        signals=signals,
        database=database,
        claims=claims,
        heartbeat_store=WorkerStore(heartbeat_database),
        reporter=reporter,
        fence=Fence(app.recovery, now=time.monotonic()),
        unknown_tasks=unknown_tasks,
        health=Health(
            recovery=app.recovery,
            audit_retention_hours=app.retention.audit_retention_hours,
            unknown_tasks=unknown_tasks.names,
        ),
        hooks=hook_caller,
        notifier=notifier,
    )


def _open_databases(
    app: AppConfig, worker: WorkerConfig, spec: ConnectionSpec, stack: AsyncExitStack
) -> tuple[Database, Database]:
    """Two connection pools to the same database: a general one, and a single connection for the heartbeats."""
    broker = app.broker
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
    timeout_s = heartbeat_timeout_s(app.recovery, claim_lease_ms=app.claim_lease_ms)
    heartbeat_database = Database(
        replace(spec, statement_timeout_s=min(STATEMENT_TIMEOUT_S, timeout_s)),
        replace(settings, max_size=1),
        # Other statements hang for the same reason as the heartbeat, but have a longer timeout.
        on_timeout=database.drop_connections,
    )
    for opened in (database, heartbeat_database):
        stack.callback(opened.terminate)  # not close, which would wait for a server that may not answer
    return database, heartbeat_database


def _backoff(
    app: AppConfig, reporter: Reporter, identity: WorkerIdentity, service: str, *, hurry: asyncio.Event | None = None
) -> Backoff:
    """A backoff that emits an event when the service loses the database and when it is back."""

    def on_change(error: Exception | None) -> None:
        worker_id = str(identity.worker_id)
        if error is None:
            reporter.emit(events.DatabaseRestored(worker_id=worker_id, service=service))
        else:
            reporter.emit(events.DatabaseLost(worker_id=worker_id, service=service, error=format_one_line(error)))

    return Backoff(app.resilience, on_change=on_change, hurry=hurry)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskServices:
    """What a task passes through, from its claim to its stored outcome."""

    wakeup: Wakeup
    in_flight: InFlight
    assignments: Assignments
    due_poller: DuePoller
    completer: Completer
    releases: Releases
    pool: ChildPool
    capacity: Capacity
    dispatcher: Dispatcher


def build_task_services(
    base: Base,
    child_spec: ChildSpec,
    limits: ClaimLimits,
    *,
    async_tasks: Collection[str],
    fork_server: ForkServer | None,
) -> TaskServices:
    """Build the services between a claim and its stored outcome; each uses only those built before it."""
    app, signals, claims, reporter = base.app, base.signals, base.claims, base.reporter
    wakeup, in_flight, durations = Wakeup(), InFlight(), DurationEstimates()
    assignments = Assignments(in_flight, durations, async_tasks=async_tasks, limits=limits)
    due_poller = DuePoller(
        wakeup=wakeup,
        worker_store=WorkerStore(base.database),  # not the one on the connection of the heartbeats
        queues=base.queues,
        poll_s=app.resilience.notify_poll_interval_ms / 1000,
        claim_lock=signals.claim_lock,
        fence=base.fence,
        workflows_due=signals.workflows_due,
    )
    completer = Completer(
        claims,
        in_flight,
        reporter,
        fence=base.fence,
        backoff=base.backoff(Completer.name, hurry=signals.stop),
        on_stored=wakeup.wake,
        on_retry=due_poller.expect_due_in,
        on_nodes_finished=signals.workflows_due.set,
    )
    releases = Releases(
        claims=claims,
        in_flight=in_flight,
        identity=base.identity,
        worker_store=base.heartbeat_store,
        fence=base.fence,
        reporter=reporter,
        unknown_tasks=base.unknown_tasks,
        check_interval_ms=app.recovery.check_interval_ms,
    )
    crash_handler = CrashHandler(
        completer,
        TaskStore(base.database),
        reporter,
        max_crashes=app.recovery.max_crashes,
        on_attempt_failed=base.notifier.on_attempt_failed,
    )
    pool_events = PoolEvents(
        assignments=assignments,
        completer=completer,
        in_flight=in_flight,
        releases=releases,
        crash_handler=crash_handler,
        requeuer=Requeuer(base.database, in_flight, base.backoff("requeue")),
        reporter=reporter,
        identity=base.identity,
        wakeup=wakeup,
        unknown_tasks=base.unknown_tasks,
        fails_unknown_tasks=app.unknown_task_grace_s == 0,
        publish_health_now=signals.publish_health_now,
    )
    pool = ChildPool(child_spec, base.worker.processes, pool_events, fork_server=fork_server)
    capacity = Capacity(
        pool=pool,
        assignments=assignments,
        in_flight=in_flight,
        durations=durations,
        identity=base.identity,
        app_config=app,
        worker_config=base.worker,
        async_tasks=async_tasks,
        unknown_tasks=base.unknown_tasks,
        limits=limits,
    )
    dispatcher = Dispatcher(
        wakeup=wakeup,
        capacity=capacity,
        claims=claims,
        in_flight=in_flight,
        assignments=assignments,
        releases=releases,
        due_poller=due_poller,
        identity=base.identity,
        fence=base.fence,
        health=base.health,
        reporter=reporter,
        backoff=base.backoff(Dispatcher.name),
        app_config=app,
        claim_lock=signals.claim_lock,
    )
    return TaskServices(
        wakeup=wakeup,
        in_flight=in_flight,
        assignments=assignments,
        due_poller=due_poller,
        completer=completer,
        releases=releases,
        pool=pool,
        capacity=capacity,
        dispatcher=dispatcher,
    )


def build_registration(base: Base, tasks: TaskServices, *, catalog_hash: str) -> Registration:
    return Registration(
        identity=base.identity,
        worker_store=base.heartbeat_store,
        fence=base.fence,
        releases=tasks.releases,
        reporter=base.reporter,
        app_config=base.app,
        worker_config=base.worker,
        catalog_hash=catalog_hash,
        claim_lock=base.signals.claim_lock,
        stop=base.signals.stop,
    )


def build_notifications(
    base: Base, tasks: TaskServices, direct: ConnectionSpec, *, probe_after_s: float
) -> Notifications:
    return Notifications(
        base.database,
        direct,
        queues=base.queues,
        identity=base.identity,
        wakeup=tasks.wakeup,
        unknown_tasks=base.unknown_tasks,
        health=base.health,
        reporter=base.reporter,
        workflows_due=base.signals.workflows_due,
        schedules_changed=base.signals.schedules_changed,
        check_rows_now=base.signals.check_rows_now,
        stop=base.signals.stop,
        probe_after_s=probe_after_s,
    )


def build_heartbeat(base: Base, tasks: TaskServices, registration: Registration) -> Heartbeat:
    return Heartbeat(
        identity=base.identity,
        worker_store=base.heartbeat_store,
        fence=base.fence,
        health=base.health,
        in_flight=tasks.in_flight,
        assignments=tasks.assignments,
        pool=tasks.pool,
        reporter=base.reporter,
        wakeup=tasks.wakeup,
        app_config=base.app,
        check_rows_now=base.signals.check_rows_now,
        publish_health_now=base.signals.publish_health_now,
        on_declared_lost=registration.renew,
    )


def build_snapshot_writer(base: Base, tasks: TaskServices, registration: Registration) -> SnapshotWriter:
    return SnapshotWriter(
        worker_store=WorkerStore(base.database),
        registration=registration,
        in_flight=tasks.in_flight,
        pool=tasks.pool,
        app_config=base.app,
        worker_config=base.worker,
    )


def build_maintenance(
    base: Base, definitions: WorkflowDefinitions, schedules: ScheduleSet | None
) -> tuple[Service, WorkflowAdvancer, Sequence[Service]]:
    """The reaper, the service that advances workflow runs, and the scheduler if there are schedules."""
    signals, health = base.signals, base.health
    reaper = build_reaper(
        base.app,
        base.database,
        identity=base.identity,
        health=health,
        reporter=base.reporter,
        hooks=base.hooks,
        workflows_due=signals.workflows_due,
        publish_health_now=signals.publish_health_now,
    )
    advancer = WorkflowAdvancer(
        base.database,
        definitions,
        woken=signals.workflows_due,
        backoff=base.backoff(WorkflowAdvancer.name),
        unknown_grace_s=base.app.unknown_task_grace_s,
    )
    scheduler = Scheduler(
        base.database,
        schedules or ScheduleSet(owner=""),
        base.identity.worker_id,
        woken=signals.schedules_changed,
        is_notified=lambda: health.listener_problem is None,
    )
    return _bounded(reaper), advancer, [] if schedules is None else [_bounded(scheduler)]


def _bounded(service: Service) -> BoundedService:
    return BoundedService(service, lambda: asyncio.timeout(MAINTENANCE_STOP_S))
