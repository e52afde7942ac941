"""One connection for operators, and all that can be done with it."""

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
    from horsies_ops import cleanup as cleaning
    from horsies_ops import sweep as sweeping
    from horsies_ops.actions import apply as hands
    from horsies_ops.actions import send as sending
    from horsies_ops.actions.report import ActionProgress, ActionReport
    from horsies_ops.reads import server as storing
else:
    retention = LazyModule("horsies.recovery.retention")
    sweeping = LazyModule("horsies_ops.sweep")
    cleaning = LazyModule("horsies_ops.cleanup")
    hands = LazyModule("horsies_ops.actions.apply")
    sending = LazyModule("horsies_ops.actions.send")
    storing = LazyModule("horsies_ops.reads.server")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ops(OpsReads, OpsActions):
    """What operators read, which is in `Reads`, and what they do."""

    database: Database
    """For what changes rows; the same as `reading` where nothing may."""
    actor: str | None = None
    """Who acts, for the audit."""
    via: Literal["cli", "tui", "library"] = "library"
    """By which way they act, for the audit."""

    @property
    def session(self) -> hands.OperatorSession:
        return hands.OperatorSession.for_actor(self.actor, via=self.via, database=self.database)

    async def send(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        queue: str | None = None,
        delay: timedelta | float | None = None,
        **others: Any,
    ) -> ActionReport:
        """Send a task by its name, with arguments that a worker will check; `priority` and `reason` may be given."""
        return await sending.send(self.session, self.settings, name, args, kwargs, queue=queue, delay=delay, **others)

    async def storage(self) -> storing.Storage:
        """What our tables take up, and what keeps the server from tidying them."""
        return await storing.storage(self.reader)

    def sweeper(self, app: Horsies | None = None) -> sweeping.Sweeper:
        """Sweeps as this side is configured; with an app, its hooks are asked and its workflows known."""
        return sweeping.Sweeper(session=self.session, reader=self.reader, local_config=self.settings.recovery, app=app)

    async def sweep(
        self,
        options: SweepOptions = DEFAULT_SWEEP_OPTIONS,
        *,
        app: Horsies | None = None,
        reason: str | None = None,
        stop: asyncio.Event | None = None,
    ) -> SweepReport:
        """Settle stale tasks, expire what waited too long and heal workflows; or list that as a dry run.

        `stop` ends it after a few tasks more; what is settled by then stays so, and the report says that it was.
        """
        return await self.sweeper(app).sweep(options, reason=reason, stop=stop)

    async def stale_candidates(
        self, options: SweepOptions = DEFAULT_SWEEP_OPTIONS, *, app: Horsies | None = None
    ) -> SweepReport:
        """What a sweep would do now; takes no lock and writes nothing."""
        return await self.sweeper(app).sweep(replace(options, dry_run=True))

    async def release(
        self, worker_id: str | UUID, *, app: Horsies | None = None, reason: str | None = None
    ) -> ActionReport:
        """Settle what is stale of one worker."""
        return await self.sweeper(app).release(UUID(parse_id(str(worker_id))), reason=reason)

    async def cleanup(
        self,
        windows: RetentionWindows | None = None,
        *,
        dry_run: bool = False,
        reason: str | None = None,
        progress: Callable[[ActionProgress], None] | None = None,
        stop: asyncio.Event | None = None,
    ) -> cleaning.CleanupReport:
        """Delete what is past its window: the one given, else that of the settings; `stop` ends it after a batch."""
        kept = windows or self.retention_windows
        return await cleaning.cleanup(self.session, kept, dry_run=dry_run, reason=reason, progress=progress, stop=stop)

    async def cleanup_candidates(self) -> CleanupSummary:
        """What a cleanup would delete now; takes no lock and writes nothing, no audit either."""
        return await retention.preview_cleanup(self.reader, self.retention_windows)

    @property
    def retention_windows(self) -> RetentionWindows:
        """How long each kind of row is kept, by the settings of this side."""
        return RetentionWindows.of(self.settings.recovery, self.settings.retention)


@asynccontextmanager
async def connect(
    database_url: str | None = None, *, read_only: bool = False, actor: str | None = None
) -> AsyncGenerator[Ops]:
    """Yield the tools for one database: the one given, else the one that files and environment name.

    With `read_only` the database itself refuses every write.
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
    """The same for a caller who has settings already; `link` are fields of `Link`, as `application_name`.

    `read_timeout_s` is for reads alone: whoever waits at a screen gives up on them sooner than on a change.
    `connections` is how many there are at most for reads, and as many for changes.
    """
    app = settings if isinstance(settings, AppConfig) else AppConfig(broker=settings)
    async with resolved_database(app.broker, read_only=read_only) as links:
        usual = replace(links.main, **spec_overrides)
        quick = usual if read_timeout_s is None else replace(usual, statement_timeout_s=read_timeout_s)
        size = PoolSettings() if connections is None else PoolSettings(max_size=connections)
        async with Database(usual, size) as database, Database(replace(quick, read_only=True), size) as reading:
            yield Ops(
                reader=reading,
                database=reading if read_only else database,
                direct_spec=replace(links.direct, **spec_overrides),
                is_embedded=app.broker.database_url.is_embedded,
                actor=actor,
                via=via,
                settings=app,
            )
