"""How the database is: server, schema, migrations, connections, tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from horsies.store.migrate import schema_state
from horsies.store.queries import Query, load

if TYPE_CHECKING:
    from horsies.store.db import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    server_version: str
    schema: str | None
    in_recovery: bool
    connections_used: int
    connections_max: int
    oldest_transaction_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    name: str
    rows_estimate: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusQueries:
    server: Query[ServerFacts]
    tables: Query[TableFacts]


STATUS = load(StatusQueries, "horsies_ops.reads", "status")


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationFacts:
    current: int
    latest: int
    pending: tuple[str, ...]
    checksums_ok: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionFacts:
    used: int
    max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseStatus:
    """One look at the database; where it could not be reached, what is known without it."""

    url: str
    embedded: bool
    reachable: bool
    server_version: str | None = None
    schema: str | None = None
    migrations: MigrationFacts | None = None
    connections: ConnectionFacts | None = None
    tables: tuple[TableFacts, ...] = ()
    oldest_transaction_s: float | None = None
    in_recovery: bool | None = None

    @property
    def is_current(self) -> bool:
        """Whether this horsies can work on it."""
        found = self.migrations
        return found is not None and not found.pending and found.checksums_ok and found.current <= found.latest


async def refuse_unless_current(database: Database) -> None:
    """Raise where the schema is missing, older or newer than this horsies; what to run is in the hint."""
    (await schema_state(database)).refuse_unless_current()


async def database_status(database: Database, *, embedded: bool) -> DatabaseStatus:
    """Ask the database how it is; creates nothing and needs none of our tables."""
    (server,) = await database.fetch(STATUS.server)
    state = await schema_state(database)
    return DatabaseStatus(
        url=database.link.masked_url,
        embedded=embedded,
        reachable=True,
        server_version=server.server_version,
        schema=server.schema,
        migrations=MigrationFacts(
            current=state.current,
            latest=state.latest,
            pending=tuple(str(migration) for migration in state.pending),
            checksums_ok=not state.changed,
        ),
        connections=ConnectionFacts(used=server.connections_used, max=server.connections_max),
        tables=tuple(await database.fetch(STATUS.tables)),
        oldest_transaction_s=server.oldest_transaction_s,
        in_recovery=server.in_recovery,
    )
