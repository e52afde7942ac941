"""`Ops`: every read and action an operator has on one database. `connect()` opens it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from horsies.config import load_settings
from horsies.errors import Refused
from horsies.model.settings import AppConfig
from horsies.store.connection import PERMISSION_DENIED, StatementFailed
from horsies.store.database import Database, PoolSettings
from horsies.store.endpoint import resolved_database
from horsies.store.operators import AuditEntry, AuditProgress, Operator, record_audit
from horsies_ops.actions import plan as plans
from horsies_ops.actions import queues as queue_actions
from horsies_ops.actions import schedules as schedule_actions
from horsies_ops.actions import sweep as sweep_actions
from horsies_ops.actions import tasks as task_actions
from horsies_ops.actions import workflows as workflow_actions
from horsies_ops.reads import events as event_reads
from horsies_ops.reads import overview as overview_reads
from horsies_ops.reads import schedules as schedule_reads
from horsies_ops.reads import search as search_reads
from horsies_ops.reads import server as server_reads
from horsies_ops.reads import stale as stale_reads
from horsies_ops.reads import tasks as task_reads
from horsies_ops.reads import workers as worker_reads
from horsies_ops.reads import workflows as workflow_reads

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from horsies.model.settings import PostgresConfig
    from horsies.store.connection import ConnectionSpec
    from horsies.store.database import Transaction

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class OperatorSession:
    """A database and the operator who changes it."""

    database: Database
    operator: Operator

    @classmethod
    def for_actor(cls, actor: str | None, *, via: str, database: Database) -> OperatorSession:
        """Act as `actor`, else as HORSIES_ACTOR, else as user@host."""
        return cls(database, Operator.current(via=via, actor=actor))

    def require_writable(self) -> None:
        if self.database.connection_spec.read_only:
            raise Refused("this connection is read-only", hint="connect without read_only to change anything")

    async def run(self, work: Callable[[Transaction], Awaitable[A]]) -> A:
        """Run `work` in a transaction; raises `Refused` on a read-only connection."""
        self.require_writable()
        return await self.database.run(work)

    async def record_dry_run(self, entry: AuditEntry, progress: AuditProgress) -> int | None:
        """Write the audit entry of a dry run; None for a viewer, whose connection or role may not write one."""
        if self.database.connection_spec.read_only:
            return None
        try:
            return await self.database.run(lambda transaction: record_audit(transaction, entry, progress))
        except StatementFailed as error:
            if error.sqlstate != PERMISSION_DENIED:
                raise
            return None

    def audit_entry(
        self,
        action: str,
        reason: str | None,
        filter: Mapping[str, object],  # noqa: A002  # the column's name
        *,
        matched: int = 1,
        is_dry_run: bool = False,
    ) -> AuditEntry:
        """Return the audit entry of an action of this operator."""
        return AuditEntry(
            operator=self.operator, action=action, reason=reason, filter=filter, matched=matched, is_dry_run=is_dry_run
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ops:
    """The reads and actions of an operator on one database.

    The methods are functions, defined in the module of their topic; their first parameter is the `Ops`.

    Rows are frozen values, durations are `timedelta`; failures raise `HorsiesError`. Actions select tasks by ids or by
    a filter. Only tasks still in the state they were planned in are changed; the report counts them and lists the
    skipped ones with the reason. Every action has one audit entry, even a dry run; only a sweep that is a dry run or
    finds nothing to do has none, nor has a dry run of a role that may not write one. On a read-only connection every
    action raises `Refused`, except dry runs.
    """

    reader: Database
    """Pool for reads, which opens every transaction READ ONLY."""
    session: OperatorSession
    """Pool for writes, and the operator who acts."""
    direct_spec: ConnectionSpec
    """Connects to the server and not to a pooler, for LISTEN."""
    settings: AppConfig
    """The settings of this process; those of live workers take precedence for recovery."""

    # The server
    database_status = server_reads.database_status
    require_current_schema = server_reads.require_current_schema
    database_time = server_reads.database_time
    storage = server_reads.storage

    # The system as a whole
    overview = overview_reads.overview
    throughput = overview_reads.throughput
    queue_throughput = overview_reads.queue_throughput
    error_summary = overview_reads.error_summary
    events = event_reads.events
    tail_events = event_reads.tail_events
    audit = event_reads.audit
    listen = event_reads.listen

    # Tasks
    list_tasks = task_reads.list_tasks
    task = task_reads.task
    tasks_by_id = task_reads.tasks_by_id
    payload_previews = task_reads.payload_previews
    count_tasks = search_reads.count_tasks
    facets = search_reads.facets
    tasks_by_short_id = search_reads.tasks_by_short_id
    plan = plans.plan
    apply = task_actions.apply
    record_dry_run = task_actions.record_dry_run
    requeue = task_actions.requeue
    fail = task_actions.fail
    cancel = task_actions.cancel
    expire = task_actions.expire
    retry = task_actions.retry
    undo_retry = task_actions.undo_retry
    send = queue_actions.send

    # Recovery and retention
    stale_candidates = sweep_actions.stale_candidates
    silent_tasks = stale_reads.silent_tasks
    sweep = sweep_actions.sweep
    release = sweep_actions.release
    cleanup_candidates = sweep_actions.cleanup_candidates
    cleanup = sweep_actions.cleanup

    # Queues and schedules
    list_queues = overview_reads.list_queues
    has_work = overview_reads.has_work
    pause_queue = queue_actions.pause_queue
    resume_queue = queue_actions.resume_queue
    list_schedules = schedule_reads.list_schedules
    schedule = schedule_reads.schedule
    schedule_history = schedule_reads.schedule_history
    schedule_participants = schedule_reads.schedule_participants
    pause_schedule = schedule_actions.pause_schedule
    resume_schedule = schedule_actions.resume_schedule
    run_schedule = schedule_actions.run_schedule
    plan_backfill = schedule_actions.plan_backfill
    backfill_schedule = schedule_actions.backfill_schedule
    forget_schedule = schedule_actions.forget_schedule
    sync_schedules = schedule_actions.sync_schedules

    # Workers
    list_active_workers = worker_reads.list_active_workers
    worker_history = worker_reads.worker_history
    ping_workers = worker_reads.ping_workers
    maintenance_status = worker_reads.maintenance_status

    # Workflows
    list_workflows = workflow_reads.list_workflows
    workflow = workflow_reads.workflow
    runs_by_short_id = search_reads.runs_by_short_id
    pause_workflow = workflow_actions.pause_workflow
    resume_workflow = workflow_actions.resume_workflow
    cancel_workflow = workflow_actions.cancel_workflow
    retry_workflow = workflow_actions.retry_workflow


@asynccontextmanager
async def connect(
    database_url: str | None = None, *, read_only: bool = False, actor: str | None = None
) -> AsyncGenerator[Ops]:
    """Yield the toolkit for `database_url` [default: from the config file or the environment].

    With `read_only` the database itself rejects every write.
    """
    options = {} if database_url is None else {"broker.database_url": database_url}
    async with open_ops(load_settings(options=options).app, read_only=read_only, actor=actor) as ops:
        yield ops


@asynccontextmanager
async def open_ops(
    settings: AppConfig | PostgresConfig,
    *,
    read_only: bool = False,
    actor: str | None = None,
    via: Literal["cli", "tui", "library"] = "library",
    read_timeout_s: float | None = None,
    connections: int | None = None,
    **spec_overrides: Any,
) -> AsyncGenerator[Ops]:
    """Like `connect`, for a caller that has loaded its settings already.

    `read_timeout_s` limits reads only: a screen gives up on a read sooner than on a change. `connections` limits the
    read pool and the write pool, each. `spec_overrides` are fields of `ConnectionSpec`, such as `application_name`.
    """
    app = settings if isinstance(settings, AppConfig) else AppConfig(broker=settings)
    async with resolved_database(app.broker, read_only=read_only) as resolved:
        spec = replace(resolved, **spec_overrides)
        read_spec = replace(
            spec,
            read_only=True,
            statement_timeout_s=spec.statement_timeout_s if read_timeout_s is None else read_timeout_s,
        )
        pool_settings = PoolSettings() if connections is None else PoolSettings(max_size=connections)
        async with Database(spec, pool_settings) as database, Database(read_spec, pool_settings) as reader:
            # With `read_only`, even a write that no check refuses goes to the pool with READ ONLY transactions.
            writer = reader if read_only else database
            yield Ops(
                reader=reader,
                session=OperatorSession.for_actor(actor, via=via, database=writer),
                direct_spec=spec.direct,
                settings=app,
            )
