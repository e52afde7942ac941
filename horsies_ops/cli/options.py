"""The options that every command takes, before or after the command's name, and what a command makes of them."""

from __future__ import annotations

import functools
import inspect
import os
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer

from horsies.errors import ErrorCode, HorsiesError
from horsies.version import __version__
from horsies_ops.cli.output import print_message

if TYPE_CHECKING:
    from horsies.app import Horsies
    from horsies.config import LoadedSettings


# Every command of `horsies` and its one line of help, in the order in which `horsies --help` shows them.

SERVICES: Final = frozenset({"worker", "metrics"})
"""Commands that run until they are stopped and tell what they do in their log."""

COMMANDS: Final = {
    "worker": "Run tasks until SIGTERM or SIGINT; a second signal ends the grace.",
    "tui": "Look at queues, tasks, workers and workflows as they change, and act on them.",
    "init": "Write a commented horsies.toml to start from.",
    "check": "Check an app and its tasks; all errors of the first phase that fails.",
    "config": "Show the settings and where each comes from, or check them.",
    "db": "Migrate and inspect the database; start and stop the embedded one.",
    "task": "List tasks, look at one, send one, or act on some: requeue, fail, cancel, expire, retry.",
    "queue": "List queues, pause them and resume them.",
    "workflow": "List runs of workflows, draw one, pause, resume, cancel or retry it.",
    "workers": "List workers, or see which of them answer.",
    "schedule": "List what starts by the clock.",
    "events": "Show what happened that an operator should know, and follow it.",
    "audit": "Show what operators did: who, why, what to, and how many it moved.",
    "sweep": "Settle work whose owner fell silent, or list it with --dry-run.",
    "cleanup": "Delete what is past its window, or count it with --dry-run.",
    "doctor": "Look at everything and say what to do; exit 1 when a check fails.",
    "demo": "Show the sample app at work on a database of its own, and a killed worker whose tasks are recovered.",
    "metrics": "Answer Prometheus until SIGTERM or SIGINT.",
}


MIGRATE: Final = "horsies db migrate"
START: Final = "horsies db start"
"""As hints have them."""

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document instead of text.")]


def show_version(asked: bool) -> None:  # noqa: FBT001  # the framework calls it with the value alone
    if asked:
        typer.echo(f"horsies {__version__}")
        raise typer.Exit


def group(name: str) -> typer.Typer:
    """An empty group of commands, described as the table of commands describes it."""
    return typer.Typer(name=name, help=COMMANDS[name], rich_markup_mode=None, add_completion=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalOptions:
    """Where the settings come from and how much is said."""

    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The horsies.toml to use.")] = None
    database_url: Annotated[
        str | None,
        typer.Option("--database-url", metavar="URL", help="The database, whatever the settings say."),
    ] = None
    no_color: Annotated[bool, typer.Option("--no-color", help="Never use colour.")] = False
    loglevel: Annotated[
        str | None, typer.Option("--loglevel", metavar="LEVEL", help="DEBUG, INFO, WARNING or ERROR, for the log.")
    ] = None
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but data and errors.")] = False

    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and leave.")
    ] = False

    command: str = ""
    """The command that they were given to; no option, but what some of them mean depends on it."""

    def merged_over(self, outer: GlobalOptions | None) -> GlobalOptions:
        """These options, and where one was not given, the one that stood before the command's name."""
        if outer is None:
            return self
        return replace(outer, **{f.name: value for f in fields(self) if (value := getattr(self, f.name))})

    def add_connection_options(self, hint: str) -> str:
        """The hint, with a command of `horsies db` made one for the same database: by the options given, as given.

        A password is masked; whoever typed it knows it.
        """
        for command in (MIGRATE, START):
            hint = hint.replace(command, " ".join([command, *self._connection_options()]))
        return hint

    def _connection_options(self) -> Iterator[str]:
        from horsies.model.settings.broker import DatabaseUrl

        if self.database_url is not None:
            yield f"--database-url {shlex.quote(DatabaseUrl.parse(self.database_url).masked)}"
        if self.config is not None:
            yield f"--config {shlex.quote(str(self.config))}"

    def print_message(self, line: str) -> None:
        if not self.quiet:
            print_message(line)

    def load_settings(self, **options: object) -> LoadedSettings:
        """The settings in force; `options` are what the command line sets, by dotted key."""
        from horsies.config import load_settings
        from horsies.log import configure_logging

        given = {"broker.database_url": self.database_url, "log.level": self.loglevel, **options}
        loaded = load_settings(self.config, options=given)
        configure_logging(self._log_level(loaded), loaded.log.format, statements=loaded.log.statements)
        return loaded

    def _log_level(self, loaded: LoadedSettings) -> str:
        """What this process was told itself; a level in a file is for services, other commands only warn."""
        from horsies.config import Precedence

        is_told = loaded.origin_of(("log", "level")).precedence >= Precedence.ENVIRONMENT
        if self.quiet and self.loglevel is None:
            return "ERROR"
        return loaded.log.level if is_told or self.command in SERVICES else "WARNING"


def complete_hint(error: HorsiesError, options: GlobalOptions) -> None:
    """Have the hint of a schema that is missing or old lead to the database that was meant."""
    if error.code is ErrorCode.SCHEMA_NOT_MIGRATED and error.help_text:
        error.help_text = options.add_connection_options(error.help_text)


_OPTIONS = [each for each in fields(GlobalOptions) if each.name != "command"]


def with_global_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the global options: it takes them as one `GlobalOptions`, its first parameter."""
    signature = inspect.signature(command, eval_str=True)
    own = list(signature.parameters.values())[1:]
    hints = get_type_hints(GlobalOptions, include_extras=True)
    shared = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in _OPTIONS
    ]
    context = inspect.Parameter("_context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)

    @functools.wraps(command)
    def wrapped(*, _context: typer.Context, **values: Any) -> Any:
        given = {field.name: values.pop(field.name) for field in _OPTIONS}
        inner = GlobalOptions(**given, command=_context.info_name or "")
        options = _context.obj = inner.merged_over(_context.obj)
        try:
            return command(options, **values)
        except HorsiesError as error:
            complete_hint(error, options)
            raise

    every = [*own, *shared, context]
    wrapped.__signature__ = signature.replace(parameters=every)  # pyright: ignore[reportAttributeAccessIssue]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
    return wrapped


# The user's app, as the commands that need it load it.

AppArgument = Annotated[
    str | None,
    typer.Argument(metavar="APP", help="package.module:app or path/file.py:app; app.locator where it is left out."),
]


def load_and_export_settings(options: GlobalOptions, **given: object) -> LoadedSettings:
    """The settings in force, which the app will also find when it is imported.

    An app reads its settings while its module is imported, and so do the children of a worker: the environment is the
    one way by which what was said on the command line reaches them all.
    """
    if options.config is not None:
        os.environ["HORSIES_CONFIG"] = str(options.config.absolute())
    if options.database_url is not None:
        os.environ["HORSIES_BROKER__DATABASE_URL"] = options.database_url
    return options.load_settings(**given)


def load_app(options: GlobalOptions, locator: str | None) -> Horsies:
    """The app at `locator` with all of its tasks."""
    from horsies.discover import import_app_with_tasks

    return import_app_with_tasks(locator, load_and_export_settings(options))


# Settings for the processes that a command starts: by the environment, where no list of processes shows a password.


def export_settings(options: GlobalOptions, **flags: bool) -> None:
    """Have our children read the same settings; `flags` are settings that are switched on, as `tui__ascii`."""
    given = {
        "HORSIES_CONFIG": None if options.config is None else str(options.config.absolute()),
        "HORSIES_BROKER__DATABASE_URL": options.database_url,
        "HORSIES_LOG__LEVEL": options.loglevel,
        **{f"HORSIES_{name.upper()}": "true" if is_on else None for name, is_on in flags.items()},
    }
    os.environ.update({name: value for name, value in given.items() if value is not None})
