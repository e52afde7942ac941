"""How the database is: server, schema, migrations, connections, tables."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timedelta

from horsies.store.database import Database
from horsies.store.migrate import schema_state
from horsies.store.queries import Query, load_queries


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    server_version: str
    schema: str | None
    in_recovery: bool
    connections_used: int
    connections_max: int
    oldest_transaction_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo:
    name: str
    rows_estimate: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusQueries:
    server: Query[ServerInfo]
    tables: Query[TableInfo]


STATUS = load_queries(StatusQueries, "horsies_ops.reads", "status")


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationStatus:
    current: int
    latest: int
    pending: tuple[str, ...]
    checksums_ok: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionUsage:
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
    migrations: MigrationStatus | None = None
    connections: ConnectionUsage | None = None
    tables: tuple[TableInfo, ...] = ()
    oldest_transaction_s: float | None = None
    in_recovery: bool | None = None

    @property
    def is_current(self) -> bool:
        """Whether this horsies can work on it."""
        found = self.migrations
        return found is not None and not found.pending and found.checksums_ok and found.current <= found.latest


async def require_current_schema(database: Database) -> None:
    """Raise where the schema is missing, older or newer than this horsies; what to run is in the hint."""
    (await schema_state(database)).check_current()


async def database_status(database: Database, *, embedded: bool) -> DatabaseStatus:
    """Ask the database how it is; creates nothing and needs none of our tables."""
    (server,) = await database.fetch(STATUS.server)
    state = await schema_state(database)
    return DatabaseStatus(
        url=database.connection_spec.masked_url,
        embedded=embedded,
        reachable=True,
        server_version=server.server_version,
        schema=server.schema,
        migrations=MigrationStatus(
            current=state.current,
            latest=state.latest,
            pending=tuple(str(migration) for migration in state.pending),
            checksums_ok=not state.changed,
        ),
        connections=ConnectionUsage(used=server.connections_used, max=server.connections_max),
        tables=tuple(await database.fetch(STATUS.tables)),
        oldest_transaction_s=server.oldest_transaction_s,
        in_recovery=server.in_recovery,
    )


# What our tables take up, and what keeps the server from tidying them.


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStorage:
    """One of our tables; rows are as the server's statistics have them."""

    name: str
    bytes: int
    """With its indexes and what was moved out of line."""
    rows: int
    dead_rows: int
    """Versions of rows that nobody can see any more and that await the next vacuum."""
    last_vacuum_at: datetime | None
    """By hand or by itself, whichever was later."""

    @property
    def dead_share(self) -> float:
        """Between 0 and 1."""
        return self.dead_rows / max(self.rows + self.dead_rows, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction that is under way: until it ends, nothing that became dead after its beginning can be removed."""

    pid: int
    application_name: str
    state: str | None
    age: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyQueueUsage:
    usage: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageQueries:
    tables: Query[TableStorage]
    oldest_transaction: Query[OpenTransaction]
    notify_queue: Query[NotifyQueueUsage]


STORAGE = load_queries(StorageQueries, "horsies_ops.reads", "storage")


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    tables: tuple[TableStorage, ...]
    """The largest first."""
    notify_queue_usage: float
    """How full the queue of notifications is, between 0 and 1; at 1 nothing that notifies can commit."""
    longest_transaction: OpenTransaction | None
    """Of others, on this database."""


async def storage(database: Database) -> Storage:
    """How our tables fare; needs none of them."""
    (queue,) = await database.fetch(STORAGE.notify_queue)
    return Storage(
        tables=tuple(await database.fetch(STORAGE.tables)),
        notify_queue_usage=queue.usage,
        longest_transaction=await database.fetch_one(STORAGE.oldest_transaction),
    )


# What the doctor asks the database.


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanCount:
    tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxStatus:
    """Nodes whose outcome is stored and whose run has not been advanced yet."""

    waiting: int
    quarantined: int
    """Those that failed so often that they are tried only now and then."""
    oldest: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OldestRow:
    category: str
    age: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPath:
    search_path: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisQueries:
    orphans: Query[OrphanCount]
    outbox: Query[OutboxStatus]
    oldest_by_category: Query[OldestRow]
    search_path: Query[SearchPath]


DIAGNOSIS = load_queries(DiagnosisQueries, "horsies_ops.reads", "diagnosis")


async def count_orphans(database: Database) -> int:
    """How many claimed and running tasks have an owner that is gone."""
    (found,) = await database.fetch(DIAGNOSIS.orphans)
    return found.tasks


async def outbox_status(database: Database) -> OutboxStatus:
    (found,) = await database.fetch(DIAGNOSIS.outbox)
    return found


async def oldest_by_category(database: Database) -> dict[str, timedelta]:
    """How long ago the oldest row that retention may take came to its end, by category."""
    return {row.category: row.age for row in await database.fetch(DIAGNOSIS.oldest_by_category)}


async def default_search_path(database: Database) -> str:
    """The search path of a session in which nobody has set one."""
    (found,) = await database.fetch(DIAGNOSIS.search_path)
    return found.search_path or ""


# The database's clock, and how long it takes to ask for it.


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseTime:
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockQueries:
    now: Query[DatabaseTime]


CLOCK = load_queries(ClockQueries, "horsies_ops.reads", "clock")


async def database_time(database: Database) -> datetime:
    """What time it is for the database."""
    (instant,) = await database.fetch(CLOCK.now)
    return instant.at


async def measure_latency(database: Database) -> timedelta:
    """How long an answer takes."""
    asked = time.perf_counter()
    await database.fetch(CLOCK.now)
    return timedelta(seconds=time.perf_counter() - asked)
