"""One connection for operators, and all that can be done with it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from horsies.config import load
from horsies.model.settings import AppConfig
from horsies.store.open import open_database
from horsies_ops.reads.lookup import Found, tasks_ending
from horsies_ops.reads.status import DatabaseStatus, database_status
from horsies_ops.reads.tasks import EVERY_TASK, Order, TaskDetail, TaskPage, list_tasks, task_detail
from horsies_ops.reads.workers import live_workers

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from datetime import timedelta
    from uuid import UUID

    from horsies.model.settings import PostgresConfig
    from horsies.store.db import Database
    from horsies_ops.reads.filter import TaskFilter


@dataclass(frozen=True, slots=True, kw_only=True)
class Ops:
    """What operators read. Rows are frozen values, durations are `timedelta`; a failure raises `HorsiesError`."""

    database: Database
    is_embedded: bool
    actor: str | None = None
    """Who acts, for the audit."""
    via: Literal["cli", "tui", "library"] = "library"
    """By which way they act, for the audit."""
    settings: AppConfig = field(default_factory=AppConfig)
    """What this side was configured with; the fleet may know better."""

    async def database_status(self) -> DatabaseStatus:
        """How the database is; needs none of our tables."""
        return await database_status(self.database, embedded=self.is_embedded)

    async def list_tasks(
        self,
        filter: TaskFilter = EVERY_TASK,  # noqa: A002  # the documented name
        *,
        order: Order = Order.NEWEST_FIRST,
        after: UUID | None = None,
        limit: int = 50,
    ) -> TaskPage:
        """A page of tasks; give its `next` as `after` for the one that follows."""
        return await list_tasks(self.database, filter, order=order, after=after, limit=limit)

    async def task(self, task_id: str | UUID) -> TaskDetail | None:
        """Everything about one task; None where there is none."""
        return await task_detail(self.database, task_id)

    async def tasks_ending(self, short_form: str) -> tuple[Found, ...]:
        """The tasks whose id ends in these eight digits, among those not yet ended and the newest 10,000."""
        return await tasks_ending(self.database, short_form)

    async def live_workers(self, *, threshold: timedelta) -> int:
        """How many workers have given a sign of life within `threshold`."""
        return await live_workers(self.database, threshold=threshold)


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
) -> AsyncGenerator[Ops]:
    """The same for a caller who has settings already."""
    app = settings if isinstance(settings, AppConfig) else AppConfig(broker=settings)
    async with open_database(app.broker, read_only=read_only) as database:
        is_embedded = app.broker.database_url.is_embedded
        yield Ops(database=database, is_embedded=is_embedded, actor=actor, via=via, settings=app)
