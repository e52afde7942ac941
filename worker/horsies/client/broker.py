"""The broker: this process's way to the database, opened when first used."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from horsies.client.announcing import Announcements
from horsies.client.loops import PerLoop
from horsies.client.waiting import Waiters
from horsies.embedded import other_clusters
from horsies.store.db import Database, PoolSize
from horsies.store.migrate import migrate
from horsies.store.open import Reached, reach
from horsies.store.tasks import TaskStore
from horsies.sync import BRIDGE

if TYPE_CHECKING:
    from horsies.model.settings import PostgresConfig
    from horsies.store.link import Link

Role = Literal["producer", "worker", "scheduler"]

logger = logging.getLogger("horsies.broker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What one event loop uses: its pool, the way past a pooler, and everyone who waits in it."""

    database: Database
    direct: Link
    tasks: TaskStore
    waiters: Waiters
    announcements: Announcements

    async def close(self) -> None:
        await self.waiters.close()
        await self.announcements.close()
        await self.database.close()


class PostgresBroker:
    """One a process. Making it opens nothing; a forked child opens connections of its own."""

    def __init__(self, settings: PostgresConfig, *, role: Role = "producer") -> None:
        self.settings = settings
        self.role: Role = role
        self._sessions = PerLoop(self._open_session, Session.close)
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    async def session(self) -> Session:
        """The session of the running loop."""
        if self._reached is None:
            await asyncio.to_thread(self._reach)
        session = await self._sessions.here()
        if not self._is_prepared:
            await self._prepare(session)
        return session

    async def close(self) -> None:
        """Close what the running loop has open, and let go of the embedded server; safe twice."""
        await self._sessions.close()
        reached, self._reached, self._is_prepared = self._reached, None, False
        if reached is not None:
            await asyncio.to_thread(reached.release)

    def close_blocking(self) -> None:
        """The same for callers without an event loop."""
        if self._reached is not None:
            BRIDGE.run(self.close())

    def _reach(self) -> None:
        with self._reaching:
            if self._reached is not None:
                return
            self._reached = reach(self.settings)
            if self._reached.lease is not None:
                atexit.register(self._reached.release)
                _say_where(self._reached)

    async def _prepare(self, session: Session) -> None:
        # The embedded database is this user's own, so it is brought up to date; any other is left to its operators.
        if self.settings.database_url.is_embedded:
            await migrate(session.database)
        self._is_prepared = True

    def _open_session(self) -> Session:
        assert self._reached is not None  # noqa: S101  # session() sees to it
        links = self._reached.links
        database = Database(links.pooled, self._pool_size())
        tasks = TaskStore(database)
        waiters = Waiters(links.direct, tasks.outcomes)
        return Session(
            database=database,
            direct=links.direct,
            tasks=tasks,
            waiters=waiters,
            announcements=Announcements(tasks.announce),
        )

    def _pool_size(self) -> PoolSize:
        settings = self.settings
        if "HORSIES_CHILD_PROCESS" in os.environ:
            smallest, largest = settings.worker_child_pool_min_size, settings.worker_child_pool_max_size
        elif self.role == "worker":
            smallest, largest = 0, settings.worker_pool_size + settings.worker_max_overflow
        else:
            smallest, largest = 0, settings.pool_size + settings.max_overflow
        return PoolSize(
            smallest=smallest,
            largest=largest,
            wait_s=settings.pool_timeout,
            idle_s=settings.pool_recycle,
            check_idle=settings.pool_pre_ping,
        )

    def _forget(self) -> None:
        self._reaching = threading.Lock()
        self._reached: Reached | None = None
        self._is_prepared = False


def _say_where(reached: Reached) -> None:
    folder = reached.links.embedded_folder
    assert folder is not None  # noqa: S101  # a lease is of an embedded server
    logger.info("using the embedded PostgreSQL in %s", folder)
    for other in other_clusters(folder):
        logger.warning("another embedded cluster is at %s; set broker.database_url where both sides must meet", other)
