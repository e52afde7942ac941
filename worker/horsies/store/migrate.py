"""Numbered migrations with checksums, applied in one transaction that locks the table of migrations.

The files are in `migrations/`. Never edit an applied file; add a new one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib import resources

from horsies.errors import BrokerError, BrokerErrorCode, ConfigurationError, ErrorCode
from horsies.store.connection import StatementFailed, quote_identifier
from horsies.store.database import Database, Transaction
from horsies.store.queries import Query, load_queries

MIN_SERVER_VERSION = 14
_CREATED_TWICE = {"23505", "42P06", "42P07"}
"""SQLSTATEs of a process that creates what another one has just created: duplicate key, schema, table."""
_FILE_NAME = re.compile(r"(\d{4})_(\w+)\.sql")


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedMigration:
    version: int
    name: str
    checksum: str
    applied_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaQueries:
    applied_migrations: Query[AppliedMigration]
    schema_exists: Query[bool]
    server_version: Query[int]
    lock_migrations: Query[None]
    create_migrations_table: Query[None]
    record_migration: Query[None]


SCHEMA = load_queries(SchemaQueries, "horsies.store", "schema")


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.version:04d}_{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaState:
    """Applied migrations of a database, compared with those of this version of horsies."""

    applied: tuple[AppliedMigration, ...]
    known: tuple[Migration, ...]

    @property
    def current(self) -> int:
        return max((row.version for row in self.applied), default=0)

    @property
    def latest(self) -> int:
        return self.known[-1].version

    @property
    def pending(self) -> tuple[Migration, ...]:
        done = {row.version for row in self.applied}
        return tuple(migration for migration in self.known if migration.version not in done)

    @property
    def changed(self) -> tuple[Migration, ...]:
        """Migrations whose file is not the one that was applied."""
        checksums = {row.version: row.checksum for row in self.applied}
        return tuple(m for m in self.known if checksums.get(m.version, m.checksum) != m.checksum)

    def check_compatible(self) -> None:
        """Raise if the database is newer than this code, or an applied migration was edited."""
        if self.current > self.latest:
            raise ConfigurationError(
                f"the database is at migration {self.current}, but this version of horsies only knows {self.latest}",
                code=ErrorCode.SCHEMA_NOT_MIGRATED,
                hint="upgrade horsies on this machine; an older version must not use a newer schema",
            )
        if self.changed:
            raise BrokerError(
                f"migration {self.changed[0]} was changed after it was applied",
                code=BrokerErrorCode.SCHEMA_INIT_FAILED,
                hint="install the version of horsies that applied it; schema changes need a new migration",
            )

    def check_current(self) -> None:
        """Raise unless the schema is the one this code needs."""
        self.check_compatible()
        if self.pending:
            raise ConfigurationError(
                f"the database is at migration {self.current}, but this version of horsies needs {self.latest}"
                if self.applied
                else "the database has no horsies tables",
                code=ErrorCode.SCHEMA_NOT_MIGRATED,
                hint="run: horsies db migrate",
            )


@cache
def known_migrations() -> tuple[Migration, ...]:
    found = (
        Migration(version=int(match[1]), name=match[2], sql=file.read_text(encoding="utf-8"))
        for file in (resources.files("horsies.store") / "migrations").iterdir()
        if (match := _FILE_NAME.fullmatch(file.name))
    )
    return tuple(sorted(found, key=lambda migration: migration.version))


async def schema_state(database: Database) -> SchemaState:
    """Read the applied migrations; none if the database has no horsies tables."""
    try:
        applied = await database.fetch(SCHEMA.applied_migrations)
    except ConfigurationError:  # SCHEMA_NOT_MIGRATED: the table of migrations does not exist
        applied = []
    return SchemaState(applied=tuple(applied), known=known_migrations())


async def migrate(database: Database) -> tuple[Migration, ...]:
    """Apply pending migrations and return them; costs one query if there are none.

    Safe to call from many processes at once: one applies, the others wait and find nothing left to do.
    """
    state = await schema_state(database)
    state.check_compatible()
    if not state.pending:
        return ()

    def apply() -> Awaitable[tuple[Migration, ...]]:
        return database.run(lambda transaction: _apply_pending(transaction, database.connection_spec.schema))

    try:
        try:
            return await apply()
        except StatementFailed as error:
            # Until the first migration there is no table to lock: of several processes that create it at the same time,
            # the server lets one succeed, and the others fail when that one commits.
            if state.applied or error.sqlstate not in _CREATED_TWICE:
                raise
            return await apply()
    except StatementFailed as error:
        raise BrokerError(
            f"migration failed, nothing was changed: {error.message}",
            code=BrokerErrorCode.SCHEMA_INIT_FAILED,
            retryable=error.retryable,
            hint=error.help_text or "the role needs permission to create tables, and none of ours may exist already",
        ) from error


async def _apply_pending(transaction: Transaction, schema: str) -> tuple[Migration, ...]:
    await _check_server_version(transaction)
    # CREATE SCHEMA IF NOT EXISTS needs a privilege on the database even if the schema exists, so check first.
    if not await transaction.fetch_single(SCHEMA.schema_exists, quote_identifier(schema)):
        await transaction.run_script(f"CREATE SCHEMA IF NOT EXISTS {quote_identifier(schema)}")
    await transaction.execute(SCHEMA.create_migrations_table)
    await transaction.execute(SCHEMA.lock_migrations)
    # Read again under the lock: another process may have migrated while we waited for it.
    applied = await transaction.fetch(SCHEMA.applied_migrations)
    state = SchemaState(applied=tuple(applied), known=known_migrations())
    state.check_compatible()
    for migration in state.pending:
        await transaction.run_script(migration.sql)
        await transaction.execute(SCHEMA.record_migration, migration.version, migration.name, migration.checksum)
    return state.pending


async def _check_server_version(transaction: Transaction) -> None:
    version = await transaction.fetch_single(SCHEMA.server_version)
    if version < MIN_SERVER_VERSION * 10_000:
        raise BrokerError(
            f"PostgreSQL {version // 10_000} is too old",
            code=BrokerErrorCode.SCHEMA_INIT_FAILED,
            hint=f"horsies needs PostgreSQL {MIN_SERVER_VERSION} or newer",
        )
