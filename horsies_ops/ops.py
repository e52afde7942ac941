"""One connection for operators, and all that can be done with it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from horsies.config import load
from horsies.model.retention import Windows
from horsies.model.settings import AppConfig
from horsies.store.db import Database
from horsies.store.open import reaching
from horsies_ops.actions.acting import Acting
from horsies_ops.actions.hand import Hand
from horsies_ops.cleanup import CleanupReport, cleanup
from horsies_ops.reads.reading import Reads
from horsies_ops.reads.storage import Storage, storage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from horsies.model.settings import PostgresConfig
    from horsies_ops.actions.report import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Ops(Reads, Acting):
    """What operators read, which is in `Reads`, and what they do."""

    database: Database
    """For what changes rows; the same as `reading` where nothing may."""
    actor: str | None = None
    """Who acts, for the audit."""
    via: Literal["cli", "tui", "library"] = "library"
    """By which way they act, for the audit."""
    settings: AppConfig = field(default_factory=AppConfig)
    """What this side was configured with; the fleet may know better."""

    @property
    def hand(self) -> Hand:
        return Hand.of(self.actor, via=self.via, on=self.database)

    async def storage(self) -> Storage:
        """What our tables take up, and what keeps the server from tidying them."""
        return await storage(self.reading)

    async def cleanup(
        self,
        windows: Windows | None = None,
        *,
        dry_run: bool = False,
        progress: Callable[[Progress], None] | None = None,
    ) -> CleanupReport:
        """Delete what is past its window: the one given, else that of the settings."""
        kept = windows or Windows.of(self.settings.recovery, self.settings.retention)
        return await cleanup(self.hand, kept, dry_run=dry_run, progress=progress)


@asynccontextmanager
async def connect(
    database_url: str | None = None, *, read_only: bool = False, actor: str | None = None
) -> AsyncGenerator[Ops]:
    """Yield the tools for one database: the one given, else the one that files and environment name.

    With `read_only` the database itself refuses every write.
    """
    options = {} if database_url is None else {"broker.database_url": database_url}
    async with open_ops(load(options=options).app, read_only=read_only, actor=actor) as ops:
        yield ops


@asynccontextmanager
async def open_ops(
    settings: AppConfig | PostgresConfig,
    *,
    read_only: bool = False,
    actor: str | None = None,
    via: Literal["cli", "tui", "library"] = "library",
    **link: Any,
) -> AsyncGenerator[Ops]:
    """The same for a caller who has settings already; `link` are fields of `Link`, as `statement_timeout_s`."""
    app = settings if isinstance(settings, AppConfig) else AppConfig(broker=settings)
    async with reaching(app.broker, read_only=read_only) as links:
        usual = replace(links.pooled, **link)
        async with Database(usual) as database, Database(replace(usual, read_only=True)) as reading:
            yield Ops(
                reading=database if read_only else reading,
                database=database,
                direct=replace(links.direct, **link),
                is_embedded=app.broker.database_url.is_embedded,
                actor=actor,
                via=via,
                settings=app,
            )
