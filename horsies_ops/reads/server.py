"""The database server: version, schema, connections, clock, storage, other roles, and facts for the doctor."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from horsies.store.database import LockHolder, all_lock_holders
from horsies.store.migrate import schema_state
from horsies.store.queries import Query, load_queries

if TYPE_CHECKING:
    from horsies.store.database import Executor
    from horsies_ops.ops import Ops


class ServerInfo(NamedTuple):
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
class MigrationStatus:
    """Migrations of the database, compared with those of this horsies."""

    current: int
    latest: int
    pending: tuple[str, ...]
    checksums_ok: bool

    @property
    def fault(self) -> tuple[str, str] | None:
        """Why this horsies cannot use the schema, and how to fix it; None if it can."""
        if self.current > self.latest:
            return "newer than this horsies", "upgrade horsies on this machine"
        if not self.checksums_ok:
            return "a migration was changed after it was applied", "install the horsies that applied it"
        return (f"{len(self.pending)} pending", "run: horsies db migrate") if self.pending else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionUsage:
    used: int
    max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseStatus:
    """State of the database; if it is unreachable, only what is known without it."""

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
        """Whether this version of horsies can use the schema."""
        return self.migrations is not None and self.migrations.fault is None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStorage:
    """Size of one of our tables; row counts come from the server's statistics."""

    name: str
    bytes: int
    """With indexes and TOAST."""
    rows: int
    dead_rows: int
    """Row versions that no transaction can see and that the next VACUUM removes."""
    last_vacuum_at: datetime | None
    """The later of the last VACUUM and the last autovacuum."""

    @property
    def dead_share(self) -> float:
        """Between 0 and 1."""
        return self.dead_rows / max(self.rows + self.dead_rows, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """An open transaction: VACUUM cannot remove rows that became dead after it started."""

    pid: int
    application_name: str
    state: str | None
    age: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    tables: tuple[TableStorage, ...]
    """Largest first."""
    notify_queue_usage: float
    """Share of the NOTIFY queue in use, between 0 and 1; at 1 every transaction that notifies fails to commit."""
    longest_transaction: OpenTransaction | None
    """Of other sessions, in this database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxStatus:
    """Finished nodes whose run has not been advanced yet."""

    waiting: int
    quarantined: int
    """Entries that failed repeatedly and are retried only once an hour."""
    oldest: timedelta | None


class OldestRow(NamedTuple):
    category: str
    age: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerQueries:
    server_info: Query[ServerInfo]
    table_sizes: Query[TableInfo]
    table_storage: Query[TableStorage]
    oldest_transaction: Query[OpenTransaction]
    notify_queue: Query[float]
    orphans: Query[int]
    outbox: Query[OutboxStatus]
    oldest_by_category: Query[OldestRow]
    search_path: Query[str | None]
    now: Query[datetime]


SERVER_READS = load_queries(ServerQueries, "horsies_ops.reads", "server")


async def database_status(ops: Ops) -> DatabaseStatus:
    """Return version, schema, connections and tables; creates nothing and needs none of our tables."""
    server = await ops.reader.fetch_single(SERVER_READS.server_info)
    state = await schema_state(ops.reader)
    return DatabaseStatus(
        url=ops.reader.connection_spec.masked_url,
        embedded=ops.settings.broker.database_url.is_embedded,
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
        tables=tuple(await ops.reader.fetch(SERVER_READS.table_sizes)),
        oldest_transaction_s=server.oldest_transaction_s,
        in_recovery=server.in_recovery,
    )


async def require_current_schema(ops: Ops) -> None:
    """Raise if the schema is missing, older or newer than this horsies; the hint says what to run."""
    (await schema_state(ops.reader)).check_current()


async def storage(ops: Ops) -> Storage:
    """Return table sizes, NOTIFY queue usage and the longest transaction; needs none of our tables."""
    return Storage(
        tables=tuple(await ops.reader.fetch(SERVER_READS.table_storage)),
        notify_queue_usage=await ops.reader.fetch_single(SERVER_READS.notify_queue),
        longest_transaction=await ops.reader.fetch_one(SERVER_READS.oldest_transaction),
    )


async def database_time(ops: Ops) -> datetime:
    """Return the time of the database clock, which all ages refer to."""
    return await ops.reader.fetch_single(SERVER_READS.now)


# What other roles of the database may do to us


MAX_MALFORMED: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Privileges of roles that own neither our schema nor our tables."""

    schema: str
    creators: list[str]
    """Roles that may create functions in our schema."""
    is_open_to_strangers: bool
    """Whether roles without any privilege on our tables may connect."""
    database: str

    @property
    def creation_fault(self) -> tuple[str, str] | None:
        """Who may create functions in our schema, and how to revoke it; None if no other role may."""
        if not self.creators:
            return None
        roles = ", ".join(self.creators)
        fault = f"{roles} may create functions in the schema {self.schema}, which run as sender and worker"
        return fault, f"REVOKE CREATE ON SCHEMA {self.schema} FROM {roles}; a schema of its own is safest"


@dataclass(frozen=True, slots=True, kw_only=True)
class MalformedTask:
    """A task that breaks a rule of its table."""

    id: UUID
    columns: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityQueries:
    access: Query[Access]
    malformed_tasks: Query[MalformedTask]


SECURITY_READS = load_queries(SecurityQueries, "horsies_ops.reads", "security")


async def read_access(executor: Executor) -> Access | None:
    """Return the privileges of other roles; None if our schema does not exist."""
    return await executor.fetch_one(SECURITY_READS.access)


async def malformed_tasks(ops: Ops) -> list[MalformedTask]:
    """Return tasks that break a rule of their table, newest first, at most MAX_MALFORMED."""
    return await ops.reader.fetch(SECURITY_READS.malformed_tasks, MAX_MALFORMED)


async def held_locks(ops: Ops) -> list[LockHolder]:
    """Return the sessions that hold a lock on which claims, sweeps or cleanup depend."""
    return await all_lock_holders(ops.reader)
