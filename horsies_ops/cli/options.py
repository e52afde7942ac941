"""The command table, the global options that every command accepts, and loading settings and the app from them."""

from __future__ import annotations

import functools
import inspect
import os
import shlex
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar, get_origin, get_type_hints

import typer

from horsies.errors import ErrorCode, HorsiesError
from horsies.version import __version__
from horsies_ops.cli.output import print_message

if TYPE_CHECKING:
    from horsies.app import Horsies
    from horsies.config import LoadedSettings
    from horsies.model.settings import AppConfig
    from horsies_ops.ops import Ops

T = TypeVar("T")

SERVICES: Final = frozenset({"worker", "scheduler", "metrics"})
"""Commands that run until they are stopped and report through the log."""


class CommandInfo(NamedTuple):
    """The module in `horsies_ops.cli.commands` that has a command, as `NAME_app`, and the command's summary."""

    module: str
    summary: str


# In the order of `horsies --help`.
COMMANDS: Final = {
    "worker": CommandInfo("worker", "Run a worker: claim tasks, run them and store their results."),
    "scheduler": CommandInfo("scheduler", "Run the scheduler alone, without a worker."),
    "tui": CommandInfo("tui", "Open the terminal UI."),
    "init": CommandInfo("setup", "Write a commented horsies.toml."),
    "check": CommandInfo("setup", "Validate an app; lists every error of the first failing phase."),
    "config": CommandInfo("setup", "Show settings and their origins, or validate them."),
    "db": CommandInfo("db", "Migrate and inspect the database; start and stop the embedded server."),
    "task": CommandInfo("task", "List, show, explain, follow, send, requeue, fail, cancel, expire or retry tasks."),
    "queue": CommandInfo("queues", "List, pause and resume queues."),
    "workflow": CommandInfo("workflow", "List, show, pause, resume, cancel or retry workflow runs."),
    "workers": CommandInfo("workers", "List or ping workers."),
    "schedule": CommandInfo("schedule", "List, inspect, pause, run and backfill schedules."),
    "events": CommandInfo("history", "Show recorded events."),
    "audit": CommandInfo("history", "Show operator actions: who, why, which tasks, how many changed."),
    "sweep": CommandInfo("recovery", "Recover stale tasks now: requeue, retry or fail them."),
    "cleanup": CommandInfo("recovery", "Delete rows older than the retention settings."),
    "doctor": CommandInfo("setup", "Check configuration, database and workers, with a hint for each problem."),
    "demo": CommandInfo("demo", "Run a sample app with a worker that is killed and recovered."),
    "metrics": CommandInfo("metrics", "Serve Prometheus metrics."),
}

# Commands that hints suggest, exactly as they appear there.
MIGRATE: Final = "horsies db migrate"
START: Final = "horsies db start"

RELOADER_VARIABLE: Final = "HORSIES_RELOADER"
"""Set for a worker that a reloader has started: the descriptor of its channel, and how many were started before."""

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]


def show_version(is_requested: bool) -> None:  # noqa: FBT001  # typer passes the option's value alone
    if is_requested:
        typer.echo(f"horsies {__version__}")
        raise typer.Exit


def group(name: str) -> typer.Typer:
    """Return an empty command group with the summary from COMMANDS."""
    return typer.Typer(name=name, help=COMMANDS[name].summary, rich_markup_mode=None, add_completion=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalOptions:
    """Options that every command accepts, before or after its name: settings sources and verbosity."""

    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", help="Read settings from this file [default: the nearest horsies.toml]"
        ),
    ] = None
    database_url: Annotated[
        str | None,
        typer.Option("--database-url", metavar="URL", help="Connect to this database [default: broker.database_url]"),
    ] = None
    no_color: Annotated[bool, typer.Option("--no-color", help="Do not use colours.")] = False
    loglevel: Annotated[
        str | None,
        typer.Option("--loglevel", metavar="LEVEL", help="Log level [default: INFO for services, else WARNING]"),
    ] = None
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only data and errors.")] = False

    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and exit.")
    ] = False

    command: str = ""
    """Name of the running command. Not an option; the default log level depends on it."""

    def merged_over(self, outer: GlobalOptions | None) -> GlobalOptions:
        """Return these options; `outer`, given before the command's name, provides those that are not set."""
        if outer is None:
            return self
        # The default of every option is falsy, so a truthy value was given.
        return replace(outer, **{f.name: value for f in fields(self) if (value := getattr(self, f.name))})

    def add_connection_options(self, hint: str) -> str:
        """Append --database-url and --config, as given, to `horsies db` commands in a hint.

        The suggested command then uses the same database. A password in the URL is masked.
        """
        from horsies.model.settings.broker import DatabaseUrl

        given: list[str] = []
        if self.database_url is not None:
            given.append(f"--database-url {shlex.quote(DatabaseUrl.parse(self.database_url).masked)}")
        if self.config is not None:
            given.append(f"--config {shlex.quote(str(self.config))}")
        for command in (MIGRATE, START):
            hint = hint.replace(command, " ".join([command, *given]))
        return hint

    def print_message(self, line: str) -> None:
        if not self.quiet:
            print_message(line)

    def load_settings(self, **options: object) -> LoadedSettings:
        """Load the settings and configure logging; `options` are command-line settings by dotted key."""
        from horsies.config import load_settings
        from horsies.log import configure_logging

        given = {"broker.database_url": self.database_url, "log.level": self.loglevel, **options}
        loaded = load_settings(self.config, options=given)
        configure_logging(self._log_level(loaded), loaded.log.format, statements=loaded.log.statements)
        return loaded

    def read(self, work: Callable[[Ops], Awaitable[T]]) -> T:
        """Run `work` on the configured database, read-only, and return its result."""
        return run_on_database(self.load_settings().app, work, read_only=True)

    def act(self, work: Callable[[Ops], Awaitable[T]], *, actor: str | None) -> T:
        """Run `work`, which changes the configured database, and return its result."""
        return run_on_database(self.load_settings().app, work, actor=actor)

    def _log_level(self, loaded: LoadedSettings) -> str:
        """Return the log level; one from a file applies to services only, other commands log warnings."""
        from horsies.config import Precedence

        if self.quiet and self.loglevel is None:
            return "ERROR"
        is_explicit = loaded.origin_of(("log", "level")).precedence >= Precedence.ENVIRONMENT
        return loaded.log.level if is_explicit or self.command in SERVICES else "WARNING"


def run_on_database(
    settings: AppConfig, work: Callable[[Ops], Awaitable[T]], *, read_only: bool = False, actor: str | None = None
) -> T:
    """Open the toolkit on a database, run `work` on it and return its result."""
    # Imported here: the driver and the toolkit load slowly, and --help needs neither.
    import asyncio

    from horsies_ops.ops import open_ops

    async def run() -> T:
        async with open_ops(settings, read_only=read_only, actor=actor, via="cli") as ops:
            return await work(ops)

    return asyncio.run(run())


def complete_hint(error: HorsiesError, options: GlobalOptions) -> None:
    """Add the connection options to the `horsies db migrate` hint of a missing or old schema."""
    if error.code is ErrorCode.SCHEMA_NOT_MIGRATED and error.help_text:
        error.help_text = options.add_connection_options(error.help_text)


def _option_parameters(options: type[Any]) -> dict[str, inspect.Parameter]:
    """Return the options among the fields of a dataclass as parameters of a command."""
    hints = get_type_hints(options, include_extras=True)
    return {
        field.name: inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in fields(options)
        if get_origin(hints[field.name]) is Annotated
    }


def hide_options(command: Callable[..., Any], names: Collection[str]) -> Callable[..., Any]:
    """Remove options that make no sense for a command; they keep their defaults."""
    signature = inspect.signature(command, eval_str=True)
    shown = [parameter for name, parameter in signature.parameters.items() if name not in names]
    command.__signature__ = signature.replace(parameters=shown)  # pyright: ignore[reportFunctionMemberAccess]
    return command


def with_global_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the global options to a command, which receives them as a `GlobalOptions` in its first parameter.

    Another parameter whose type is a dataclass becomes an option for each of its fields.
    """
    signature = inspect.signature(command, eval_str=True)
    _, *own = signature.parameters.values()
    shared = _option_parameters(GlobalOptions)
    groups: dict[str, Any] = {each.name: each.annotation for each in own if is_dataclass(each.annotation)}
    expanded = {name: _option_parameters(options) for name, options in groups.items()}
    context = inspect.Parameter("_context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)

    @functools.wraps(command)
    def wrapped(*, _context: typer.Context, **values: Any) -> Any:
        given = {name: values.pop(name) for name in shared}
        # Given before the command's name, the options are in the context; given after it, in `values`.
        inner = GlobalOptions(**given, command=_context.info_name or "")
        options = _context.obj = inner.merged_over(_context.obj)
        for group_name, group_options in groups.items():
            values[group_name] = group_options(**{name: values.pop(name) for name in expanded[group_name]})
        try:
            return command(options, **values)
        except HorsiesError as error:
            complete_hint(error, options)
            raise

    # Typer reads the parameters and their types from these two attributes.
    every: list[inspect.Parameter] = []
    for parameter in own:
        every += expanded[parameter.name].values() if parameter.name in groups else (parameter,)
    every += [*shared.values(), context]
    wrapped.__signature__ = signature.replace(parameters=every)  # pyright: ignore[reportAttributeAccessIssue]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
    return wrapped


AppArgument = Annotated[
    str | None,
    typer.Argument(metavar="APP", help="package.module:app or path/file.py:app [default: setting app.locator]"),
]


def load_and_export_settings(options: GlobalOptions, **given: object) -> LoadedSettings:
    """Load the settings and export --config and --database-url to the environment.

    The app reads its settings when its module is imported, in this process and in the children of a worker. Only the
    environment passes command-line options to all of them.
    """
    export_settings(options)
    return options.load_settings(**given)


def load_app(options: GlobalOptions, locator: str | None) -> Horsies:
    """Import the app at `locator` and all of its task modules."""
    from horsies.discover import import_app_with_tasks

    return import_app_with_tasks(locator, load_and_export_settings(options))


def export_settings(options: GlobalOptions, **flags: bool) -> None:
    """Export the settings to processes that this command starts; `flags` enable settings, such as `tui__ascii`.

    The environment is used because a process list would show a password in arguments.
    """
    given = {
        "HORSIES_CONFIG": None if options.config is None else str(options.config.absolute()),
        "HORSIES_BROKER__DATABASE_URL": options.database_url,
        "HORSIES_LOG__LEVEL": options.loglevel,
        **{f"HORSIES_{name.upper()}": "true" if is_on else None for name, is_on in flags.items()},
    }
    os.environ.update({name: value for name, value in given.items() if value is not None})
