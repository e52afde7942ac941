"""`Ops`: every read and action an operator has on one database. `connect()` opens it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from horsies.config import load_settings
from horsies.model.retention import RetentionWindows
from horsies.model.settings import AppConfig
from horsies.model.task import parse_id
from horsies.store.database import Database, PoolSettings
from horsies.store.endpoint import resolved_database
from horsies_ops.actions.facade import OpsActions
from horsies_ops.lazy_imports import LazyModule
from horsies_ops.reads.facade import DEFAULT_SWEEP_OPTIONS, OpsReads

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
    from datetime import timedelta

    from horsies.app import Horsies
    from horsies.model.recovery.fleet import SweepOptions
    from horsies.model.retention import CleanupSummary
    from horsies.model.settings import PostgresConfig
    from horsies.recovery import retention
    from horsies.recovery.report import SweepReport
    from horsies_ops import cleanup, sweep
    from horsies_ops.actions import apply, send
    from horsies_ops.actions.apply import OperatorSession
    from horsies_ops.actions.report import ActionProgress, ActionReport
    from horsies_ops.cleanup import CleanupReport
    from horsies_ops.reads import server
    from horsies_ops.reads.server import Storage
    from horsies_ops.sweep import Sweeper
else:
    retention = LazyModule("horsies.recovery.retention")
    cleanup = LazyModule("horsies_ops.cleanup")
    sweep = LazyModule("horsies_ops.sweep")
    apply = LazyModule("horsies_ops.actions.apply")
    send = LazyModule("horsies_ops.actions.send")
    server = LazyModule("horsies_ops.reads.server")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ops(OpsReads, OpsActions):
    """All reads (`OpsReads`) and actions (`OpsActions`) on one database."""

    database: Database
    """Pool for writes; the same pool as `reader` if the connection is read-only."""
    actor: str | None = None
    """Name for the audit log [default: HORSIES_ACTOR, else user@host]."""
    via: Literal["cli", "tui", "library"] = "library"
    """Tool that acts, for the audit log."""

    @property
    def session(self) -> OperatorSession:
        return apply.OperatorSession.for_actor(self.actor, via=self.via, database=self.database)

    async def send(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        queue: str | None = None,
        delay: timedelta | float | None = None,
        **options: Any,
    ) -> ActionReport:
        """Send a task by name, without its code: a worker validates the arguments. Options: `priority`, `reason`."""
        return await send.send(self.session, self.settings, name, args, kwargs, queue=queue, delay=delay, **options)

    async def storage(self) -> Storage:
        """Return table sizes, dead rows, NOTIFY queue usage and the longest open transaction."""
        return await server.storage(self.reader)

    def sweeper(self, app: Horsies | None = None) -> Sweeper:
        """Return a sweeper with the settings of this process; an app adds its recovery hooks."""
        return sweep.Sweeper(session=self.session, reader=self.reader, local_config=self.settings.recovery, app=app)

    async def sweep(
        self,
        options: SweepOptions = DEFAULT_SWEEP_OPTIONS,
        *,
        app: Horsies | None = None,
        reason: str | None = None,
        stop: asyncio.Event | None = None,
    ) -> SweepReport:
        """Recover stale tasks, expire overdue ones and heal workflows; a dry run only lists them.

        `stop` ends the sweep early: tasks recovered until then stay recovered, and the report says it was stopped.
        """
        return await self.sweeper(app).sweep(options, reason=reason, stop=stop)

    async def stale_candidates(
        self, options: SweepOptions = DEFAULT_SWEEP_OPTIONS, *, app: Horsies | None = None
    ) -> SweepReport:
        """Return what a sweep would do now; takes no lock and writes nothing."""
        return await self.sweeper(app).sweep(replace(options, dry_run=True))

    async def release(
        self, worker_id: str | UUID, *, app: Horsies | None = None, reason: str | None = None
    ) -> ActionReport:
        """Recover the stale tasks of one worker."""
        return await self.sweeper(app).release(UUID(parse_id(str(worker_id))), reason=reason)

    async def cleanup(
        self,
        windows: RetentionWindows | None = None,
        *,
        dry_run: bool = False,
        reason: str | None = None,
        progress: Callable[[ActionProgress], None] | None = None,
        stop: asyncio.Event | None = None,
    ) -> CleanupReport:
        """Delete rows older than `windows` [default: from the settings]; `stop` ends it after the current batch."""
        return await cleanup.cleanup(
            self.session,
            windows or self.retention_windows,
            dry_run=dry_run,
            reason=reason,
            progress=progress,
            stop=stop,
        )

    async def cleanup_candidates(self) -> CleanupSummary:
        """Count what a cleanup would delete now; takes no lock and writes nothing, not even an audit entry."""
        return await retention.preview_cleanup(self.reader, self.retention_windows)

    @property
    def retention_windows(self) -> RetentionWindows:
        """How long each kind of row is kept, from the settings of this process."""
        return RetentionWindows.of(self.settings.recovery, self.settings.retention)


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
    async with resolved_database(app.broker, read_only=read_only) as specs:
        spec = replace(specs.main, **spec_overrides)
        read_spec = replace(
            spec,
            read_only=True,
            statement_timeout_s=spec.statement_timeout_s if read_timeout_s is None else read_timeout_s,
        )
        pool_settings = PoolSettings() if connections is None else PoolSettings(max_size=connections)
        async with Database(spec, pool_settings) as database, Database(read_spec, pool_settings) as reader:
            yield Ops(
                reader=reader,
                # With `read_only` even a write by mistake goes to the pool whose transactions are READ ONLY.
                database=reader if read_only else database,
                direct_spec=replace(specs.direct, **spec_overrides),
                is_embedded=app.broker.database_url.is_embedded,
                actor=actor,
                via=via,
                settings=app,
            )
