"""`horsies db`: migrate and inspect the database, start and stop the embedded server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from horsies.embedded import EmbeddedServer
from horsies.errors import Busy, ConfigurationError, DatabaseUnreachable, ErrorCode, ExitCode, UsageError
from horsies.model.text import format_age
from horsies.store.endpoint import open_database, open_for_migration
from horsies.store.migrate import Migration, known_migrations, schema_state
from horsies.store.migrate import migrate as apply_migrations
from horsies_ops.cli.option_types import DryRunOption
from horsies_ops.cli.options import GlobalOptions, JsonOption, group, run_on_database, with_global_options
from horsies_ops.cli.output import (
    TableColumn,
    error_document,
    format_size,
    print_error,
    print_facts,
    print_json,
    print_line,
    print_rows,
    print_warning,
    to_json,
)
from horsies_ops.reads.server import DatabaseStatus, MigrationStatus, TableInfo, read_access
from horsies_ops.roles import RoleScript

if TYPE_CHECKING:
    from horsies.model.settings import AppConfig, DatabaseUrl, PostgresConfig

db_app = group("db")

TABLE_COLUMNS: tuple[TableColumn[TableInfo], ...] = (
    TableColumn("table", lambda table: table.name),
    TableColumn("rows (estimate)", lambda table: f"{table.rows_estimate:,}", right=True),
    TableColumn("size", lambda table: format_size(table.bytes), right=True),
)


class EmbeddedServerStopped(DatabaseUnreachable):
    """The embedded server is stopped, which is normal while no process uses it."""


@db_app.command()
@with_global_options
def migrate(
    options: GlobalOptions,
    *,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Apply pending migrations.

    Example: horsies db migrate --dry-run
    """
    broker = options.load_settings().app.broker
    migrations = asyncio.run(_pending(broker) if dry_run else _migrate(broker))
    if json:
        print_json({"dry_run": dry_run, "migrations": [str(migration) for migration in migrations]})
        return
    for migration in migrations:
        print_line(f"would apply {migration}" if dry_run else f"applied {migration}")
    if not migrations:
        print_line("up to date")


@db_app.command()
@with_global_options
def roles(
    options: GlobalOptions,
    *,
    print_: Annotated[
        bool, typer.Option("--print", help="Print the SQL; horsies does not create roles itself.")
    ] = False,
    prefix: Annotated[str, typer.Option(metavar="NAME", help="How the names of the roles begin.")] = "horsies",
) -> None:
    """Print SQL for one database role per kind of process.

    Example: horsies db roles --print | less
    """
    if not print_:
        raise UsageError("horsies does not create roles", hint="use --print, read the SQL, and run it with psql")
    print_line(str(RoleScript(schema=options.load_settings().app.broker.schema, prefix=prefix)).rstrip())


@db_app.command()
@with_global_options
def status(options: GlobalOptions, *, json: JsonOption = False) -> int:
    """Show connection, schema version and table sizes.

    Exit 1 if migrations are pending, 7 if the database is unreachable.

    Example: horsies db status --json
    """
    settings = options.load_settings().app
    found, unreachable = _read_status(settings)
    if json:
        print_json({**to_json(found), "error": error_document(unreachable) if unreachable else None})
    else:
        is_stopped = isinstance(unreachable, EmbeddedServerStopped)
        _print_status(found, settings.broker.database_url, options, is_stopped=is_stopped)
    if unreachable is None:
        return ExitCode.DONE if found.is_current else ExitCode.FAILED
    # A stopped embedded server is normal, and the facts above say so.
    if not isinstance(unreachable, EmbeddedServerStopped):
        print_error(unreachable)
    return unreachable.exit_code


@db_app.command()
@with_global_options
def url(
    options: GlobalOptions,
    *,
    reveal: Annotated[bool, typer.Option("--reveal", help="Include the password.")] = False,
    json: JsonOption = False,
) -> None:
    """Print the database URL with the password masked.

    Example: psql $(horsies db url --reveal)
    """
    broker = options.load_settings().app.broker
    server = _embedded_server(broker)
    configured = broker.database_url
    shown_url = server.url if server else configured.reveal() if reveal else configured.masked
    if json:
        print_json({"url": shown_url, "embedded": server is not None})
    else:
        print_line(shown_url)


@db_app.command()
@with_global_options
def start(options: GlobalOptions) -> None:
    """Start the embedded server and keep it running.

    Example: horsies db start
    """
    server = _require_embedded(options.load_settings().app.broker)
    started = server.keep()
    options.print_message(
        f"{'started' if started else 'already running'} in {server.folder}; runs until `horsies db stop`"
    )


@db_app.command()
@with_global_options
def stop(
    options: GlobalOptions,
    *,
    force: Annotated[bool, typer.Option("--force", help="Stop the server even while other processes use it.")] = False,
) -> None:
    """Stop the embedded server.

    Example: horsies db stop --force
    """
    settings = options.load_settings().app
    server = _require_embedded(settings.broker)
    if not force and server.status().running:
        _require_unused(settings, server)
    stopped = server.stop(force=force)
    options.print_message("stopped" if stopped.was_running else "it was not running")


def _require_unused(settings: AppConfig, server: EmbeddedServer) -> None:
    """Raise Busy if the server has other sessions. Programs such as psql do not hold our file lock."""
    found = run_on_database(settings, lambda ops: ops.database_status(), read_only=True)
    others = found.connections.used - 1 if found.connections else 0  # without the session that counts
    if others:
        raise Busy(
            f"the embedded server in {server.folder} has {others} other session{'s' if others > 1 else ''}",
            hint="use --force to stop it anyway",
        )


async def _migrate(broker: PostgresConfig) -> Sequence[Migration]:
    async with open_for_migration(broker) as database:
        applied = await apply_migrations(database)
        access = await read_access(database)
        if access is not None and access.creation_fault is not None:
            fault, hint = access.creation_fault
            print_warning(fault, hint=hint)
        return applied


async def _pending(broker: PostgresConfig) -> Sequence[Migration]:
    server = _embedded_server(broker)
    if server and not server.status().data_exists:
        return known_migrations()  # a dry run must not create a cluster
    # Past any pooler, like the migration itself.
    async with open_database(broker, read_only=True, direct=True) as database:
        state = await schema_state(database)
        state.check_compatible()
        return state.pending


def _read_status(settings: AppConfig) -> tuple[DatabaseStatus, DatabaseUnreachable | None]:
    """Return the status, and the error if the database is unreachable. Never starts the embedded server."""
    broker = settings.broker
    server = _embedded_server(broker)
    shown_url = server.url if server else broker.database_url.masked
    if server and not server.status().running:
        stopped = EmbeddedServerStopped(
            f"the embedded server in {server.folder} is not running",
            hint="it starts on first use, or with: horsies db start",
        )
        return DatabaseStatus(url=shown_url, embedded=True, reachable=False), stopped
    try:
        return run_on_database(settings, lambda ops: ops.database_status(), read_only=True), None
    except DatabaseUnreachable as error:
        return DatabaseStatus(url=shown_url, embedded=server is not None, reachable=False), error


def _embedded_facts(url: DatabaseUrl) -> dict[str, str]:
    """The folder of an embedded database, and the project that it belongs to."""
    facts = {"folder": url.embedded_folder, "project": url.project}
    return {name: str(path) for name, path in facts.items() if path is not None}


def _print_status(status: DatabaseStatus, url: DatabaseUrl, options: GlobalOptions, *, is_stopped: bool) -> None:
    facts = {"url": status.url, **_embedded_facts(url), "reachable": "yes" if status.reachable else "no"}
    if is_stopped:
        facts["server"] = "stopped; starts on first use"
    if status.migrations and status.connections:
        age_s = status.oldest_transaction_s
        facts |= {
            "server": f"PostgreSQL {status.server_version}" + (" (in recovery)" if status.in_recovery else ""),
            "schema": status.schema or "(none)",
            "migrations": options.add_connection_options(_migrations_text(status.migrations)),
            "connections": f"{status.connections.used} of {status.connections.max}",
            "oldest transaction": "none" if age_s is None else format_age(timedelta(seconds=age_s)),
        }
    print_facts(facts)
    if status.tables:
        print_line("")
        print_rows(status.tables, TABLE_COLUMNS)


def _migrations_text(migrations: MigrationStatus) -> str:
    fault = "up to date" if migrations.fault is None else "; ".join(migrations.fault)
    return f"{migrations.current} of {migrations.latest}, {fault}"


def _embedded_server(broker: PostgresConfig) -> EmbeddedServer | None:
    return EmbeddedServer.at(broker.database_url) if broker.database_url.is_embedded else None


def _require_embedded(broker: PostgresConfig) -> EmbeddedServer:
    server = _embedded_server(broker)
    if server is None:
        raise ConfigurationError(
            f"the configured database is {broker.database_url.masked}, not the embedded server",
            code=ErrorCode.CLI_INVALID_ARGS,
            hint="start and stop that server with its own tools; the embedded one is used without broker.database_url",
        )
    return server
