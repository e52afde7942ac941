"""From settings to a database: the address that was configured, or the embedded server where none was."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

# Not where it is used: its farewell at exit must come after those of the program, whose handlers may still send.
from horsies.embedded import EmbeddedServer, Lease
from horsies.store.db import Database, PoolSize
from horsies.store.link import Keepalive, Link

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from horsies.model.settings import PostgresConfig

MIGRATION_TIMEOUT_S = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """The two ways to one database: for statements, and, past a pooler, for LISTEN, migrations and held locks."""

    pooled: Link
    direct: Link
    embedded_folder: Path | None = None


@dataclass(frozen=True, slots=True)
class Reached:
    """A database within reach: an embedded server runs at least until `release`."""

    links: Links
    lease: Lease | None

    def release(self) -> None:
        if self.lease is not None:
            self.lease.release()


def reach(settings: PostgresConfig, *, read_only: bool = False) -> Reached:
    """Find out how to reach the configured database; where it is the embedded one, start or join it. Blocks."""
    url = settings.database_url
    lease = EmbeddedServer(url.embedded_folder).use() if url.is_embedded else None
    return Reached(_links(settings, lease, read_only=read_only), lease)


@asynccontextmanager
async def reaching(settings: PostgresConfig, *, read_only: bool = False) -> AsyncGenerator[Links]:
    """Yield how to reach the configured database; an embedded server runs until the block is left."""
    reached = await asyncio.to_thread(reach, settings, read_only=read_only)
    try:
        yield reached.links
    finally:
        await asyncio.to_thread(reached.release)


@asynccontextmanager
async def open_database(
    settings: PostgresConfig, *, read_only: bool = False, direct: bool = False, size: PoolSize | None = None
) -> AsyncGenerator[Database]:
    """Yield the configured database; `direct` goes past a pooler."""
    async with (
        reaching(settings, read_only=read_only) as links,
        Database(links.direct if direct else links.pooled, size) as database,
    ):
        yield database


@asynccontextmanager
async def open_for_migration(settings: PostgresConfig) -> AsyncGenerator[Database]:
    """Yield the database as migrations need it: past a pooler, one connection, and no limit on a statement's time."""
    async with reaching(settings) as links:
        link = replace(links.direct, statement_timeout_s=MIGRATION_TIMEOUT_S)
        async with Database(link, PoolSize(largest=1)) as database:
            yield database


def _links(settings: PostgresConfig, lease: Lease | None, *, read_only: bool) -> Links:
    base = Link(
        url=lease.url if lease else settings.database_url.reveal(),
        masked_url=lease.url if lease else settings.database_url.masked,
        schema=settings.schema,
        pooled=settings.pgbouncer_transaction_mode,
        read_only=read_only,
        keepalive=_keepalive(settings),
        echo=settings.echo,
    )
    direct = replace(base, pooled=False)
    if settings.session_database_url is not None:
        session = settings.session_database_url
        direct = replace(direct, url=session.reveal(), masked_url=session.masked)
    usual = replace(base, direct=direct) if base.pooled else base
    return Links(pooled=usual, direct=direct, embedded_folder=lease.folder if lease else None)


def _keepalive(settings: PostgresConfig) -> Keepalive | None:
    if not settings.tcp_keepalives:
        return None
    return Keepalive(
        idle_s=settings.tcp_keepalives_idle,
        interval_s=settings.tcp_keepalives_interval,
        count=settings.tcp_keepalives_count,
        user_timeout_ms=settings.tcp_user_timeout_ms,
    )
