"""`horsies db`: look after the database."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import humanize
import typer

from horsies.embedded import EmbeddedServer, other_clusters
from horsies.errors import Busy, ConfigurationError, DatabaseUnreachable, ErrorCode, ExitCode
from horsies.store.endpoint import open_database, open_for_migration
from horsies.store.migrate import Migration, known_migrations, schema_state
from horsies.store.migrate import migrate as apply_migrations
from horsies_ops.cli.options import GlobalOptions, JsonOption, group, with_global_options
from horsies_ops.cli.output import (
    error_document,
    print_error,
    print_facts,
    print_json,
    print_line,
    print_table,
    print_warning,
    to_json,
)
from horsies_ops.reads.server import DatabaseStatus, MigrationStatus, database_status

if TYPE_CHECKING:
    from horsies.model.settings import PostgresConfig

app = group("db")


class EmbeddedServerStopped(DatabaseUnreachable):
    """The embedded server is not running, which is how it should be while nobody uses it."""


@app.command()
@with_global_options
def migrate(
    options: GlobalOptions,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be applied, and change nothing.")] = False,
    json: JsonOption = False,
) -> None:
    """Bring the schema up to date."""
    broker = options.load_settings().app.broker
    found = asyncio.run(_pending(broker) if dry_run else _migrate(broker))
    if json:
        print_json({"dry_run": dry_run, "migrations": [str(each) for each in found]})
    else:
        _say_migrations(found, verb="would apply" if dry_run else "applied")


@app.command()
@with_global_options
def status(options: GlobalOptions, *, json: JsonOption = False) -> int:
    """Show how the database is. Exit 1 when migrations are pending, 7 when it cannot be reached."""
    found, unreachable = _look(options.load_settings().app.broker)
    if json:
        print_json({**to_json(found), "error": error_document(unreachable) if unreachable else None})
    else:
        _print_status(found, options, is_stopped=isinstance(unreachable, EmbeddedServerStopped))
    if unreachable is None:
        return ExitCode.DONE if found.is_current else ExitCode.FAILED
    if not isinstance(unreachable, EmbeddedServerStopped):
        print_error(unreachable)
    return unreachable.exit_code


@app.command()
@with_global_options
def url(
    options: GlobalOptions,
    *,
    reveal: Annotated[bool, typer.Option("--reveal", help="With the password, as psql needs it.")] = False,
    json: JsonOption = False,
) -> None:
    """Print the address of the database, its password masked unless it is asked for."""
    broker = options.load_settings().app.broker
    server = _embedded(broker)
    address = broker.database_url
    shown = server.url if server else address.reveal() if reveal else address.masked
    if json:
        print_json({"url": shown, "embedded": server is not None})
    else:
        print_line(shown)


@app.command()
@with_global_options
def start(options: GlobalOptions) -> None:
    """Start the embedded server and keep it running until `horsies db stop`."""
    broker = options.load_settings().app.broker
    server = _require_embedded(broker)
    options.print_message(f"embedded PostgreSQL in {server.folder} …")
    if broker.database_url.embedded_folder is None and not options.quiet:
        _warn_of_others(server)
    started = server.keep()
    options.print_message(
        "started; it runs until `horsies db stop`" if started else "already running; it stays until `horsies db stop`"
    )


@app.command()
@with_global_options
def stop(
    options: GlobalOptions,
    *,
    force: Annotated[bool, typer.Option("--force", help="Stop it even while other processes use it.")] = False,
) -> None:
    """Stop the embedded server."""
    broker = options.load_settings().app.broker
    server = _require_embedded(broker)
    if not force and server.status().running:
        asyncio.run(_refuse_while_used(broker, server))
    done = server.stop(force=force)
    options.print_message("stopped" if done.was_running else "it was not running")


def _warn_of_others(server: EmbeddedServer) -> None:
    for other in other_clusters(server.folder):
        print_warning(
            f"another embedded cluster is at {other}; programs that use it see other tasks",
            hint="to share one, set broker.database_url to the same server for all",
        )


async def _refuse_while_used(broker: PostgresConfig, server: EmbeddedServer) -> None:
    """Other programs than ours, psql for one, hold no lock: the server knows them by their sessions."""
    async with open_database(broker, read_only=True) as database:
        found = await database_status(database, embedded=True)
    others = found.connections.used - 1 if found.connections else 0
    if others:
        raise Busy(
            f"the embedded server in {server.folder} has {others} other session{'s' if others > 1 else ''}",
            hint="--force stops it anyway",
        )


async def _migrate(broker: PostgresConfig) -> Sequence[Migration]:
    async with open_for_migration(broker) as database:
        return await apply_migrations(database)


async def _pending(broker: PostgresConfig) -> Sequence[Migration]:
    server = _embedded(broker)
    if server and not server.status().data_exists:
        return known_migrations()  # looking must not make a cluster
    async with open_database(broker, read_only=True, direct=True) as database:
        state = await schema_state(database)
        state.check_compatible()
        return state.pending


def _say_migrations(migrations: Sequence[Migration], *, verb: str) -> None:
    for migration in migrations:
        print_line(f"{verb} {migration}")
    if not migrations:
        print_line("up to date")


def _look(broker: PostgresConfig) -> tuple[DatabaseStatus, DatabaseUnreachable | None]:
    server = _embedded(broker)
    shown = server.url if server else broker.database_url.masked
    if server and not server.status().running:
        stopped = EmbeddedServerStopped(
            f"the embedded server in {server.folder} is not running",
            hint="it starts on first use, or with: horsies db start",
        )
        return DatabaseStatus(url=shown, embedded=True, reachable=False), stopped
    try:
        return asyncio.run(_ask(broker)), None
    except DatabaseUnreachable as error:
        return DatabaseStatus(url=shown, embedded=server is not None, reachable=False), error


async def _ask(broker: PostgresConfig) -> DatabaseStatus:
    async with open_database(broker, read_only=True) as database:
        return await database_status(database, embedded=broker.database_url.is_embedded)


def _print_status(status: DatabaseStatus, options: GlobalOptions, *, is_stopped: bool) -> None:
    facts = {"url": status.url, "reachable": "yes" if status.reachable else "no"}
    if is_stopped:
        facts["server"] = "stopped; starts on first use"
    if status.migrations and status.connections:
        facts |= {
            "server": f"PostgreSQL {status.server_version}" + (" (in recovery)" if status.in_recovery else ""),
            "schema": status.schema or "(none)",
            "migrations": options.add_connection_options(_migrations(status.migrations)),
            "connections": f"{status.connections.used} of {status.connections.max}",
            "oldest transaction": _age(status.oldest_transaction_s),
        }
    print_facts(facts)
    if status.tables:
        print_line("")
        print_table(
            ("table", "rows (estimate)", "size"),
            [
                (t.name, humanize.intcomma(t.rows_estimate), humanize.naturalsize(t.bytes, binary=True))
                for t in status.tables
            ],
            right=("rows (estimate)", "size"),
        )


def _migrations(found: MigrationStatus) -> str:
    counted = f"{found.current} of {found.latest}"
    if found.current > found.latest:
        return f"{counted}: newer than this horsies; upgrade it"
    if not found.checksums_ok:
        return f"{counted}: one was changed after it had been applied"
    return (
        f"{counted}, {len(found.pending)} pending: run horsies db migrate"
        if found.pending
        else f"{counted}, up to date"
    )


def _age(seconds: float | None) -> str:
    return "none" if seconds is None else humanize.precisedelta(seconds, minimum_unit="seconds", format="%0.1f")


def _embedded(broker: PostgresConfig) -> EmbeddedServer | None:
    return EmbeddedServer(broker.database_url.embedded_folder) if broker.database_url.is_embedded else None


def _require_embedded(broker: PostgresConfig) -> EmbeddedServer:
    server = _embedded(broker)
    if server is None:
        raise ConfigurationError(
            f"the database is {broker.database_url.masked}, not the embedded server",
            code=ErrorCode.CLI_INVALID_ARGS,
            hint="start and stop that server with its own tools; leave broker.database_url empty for the embedded one",
        )
    return server
