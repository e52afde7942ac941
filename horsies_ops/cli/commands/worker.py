"""`horsies worker`: run tasks until told to stop."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Iterator
from typing import Annotated

import typer

from horsies.app import Horsies
from horsies.check import first_failed_phase
from horsies.config import LoadedSettings
from horsies.discover import import_app_with_tasks
from horsies.embedded import EmbeddedServer
from horsies.engine.worker import Worker
from horsies.errors import ConfigurationError, ErrorCode, ExitCode, raise_together
from horsies.model.fence import connection_budget, describe_limits, describe_queue, recovery_bounds
from horsies.model.settings import WorkerConfig
from horsies.version import __version__
from horsies_ops.cli import json_log
from horsies_ops.cli.option_types import split_values
from horsies_ops.cli.options import AppArgument, GlobalOptions, group, load_and_export_settings, with_global_options

# The first lines of a worker: what an operator wants to know before anything goes wrong.

worker_logger = logging.getLogger("horsies.worker")


def introduce(app: Horsies, worker: WorkerConfig, settings: LoadedSettings, *, say: Callable[[str], None]) -> None:
    """Say who starts here: to a person line by line, to a machine as one object like the others in the log."""
    title, facts = f"horsies {__version__}", _facts(app, worker, settings)
    if settings.log.format == "json":
        worker_logger.info(title, extra=facts)
        return
    say(title)
    for name, value in facts.items():
        say(f"  {name:<11} {value}")


def _facts(app: Horsies, worker: WorkerConfig, settings: LoadedSettings) -> dict[str, str]:
    return {
        "app": worker.app_locator or "(from the settings)",
        "settings": _settings(settings),
        "database": _database(worker),
        "queues": ", ".join(_queues(app, worker)),
        "caps": describe_limits(app.config),
        "processes": str(worker.processes),
        "connections": connection_budget(worker).describe(),
        "recovery": recovery_bounds(app.config.recovery).describe(),
        "tasks": f"{len(app.tasks)}: {', '.join(app.list_tasks())}",
    }


def _settings(settings: LoadedSettings) -> str:
    where = str(settings.file) if settings.file else "no file"
    return f"{where}; replaced what code says: {', '.join(settings.replaced)}" if settings.replaced else where


def _database(worker: WorkerConfig) -> str:
    if worker.dsn.is_embedded:
        return f"embedded PostgreSQL in {EmbeddedServer(worker.dsn.embedded_folder).folder}"
    return worker.dsn.masked


def _queues(app: Horsies, worker: WorkerConfig) -> Iterator[str]:
    configured = {queue.name: queue for queue in app.config.custom_queues or ()}
    for name in worker.queues or ():
        yield describe_queue(configured[name]) if name in configured else name


app = group("worker")

WORKERS_COMMANDS = {"list": "list", "show": "list", "ping": "ping"}
"""What is easily asked of this command, and which of `horsies workers` answers it."""


@app.command()
@with_global_options
def worker(  # each is an option that the settings have too
    options: GlobalOptions,
    locator: AppArgument = None,
    *,
    processes: Annotated[int | None, typer.Option("--processes", help="Children; the number of CPUs.")] = None,
    queues: Annotated[str | None, typer.Option("--queues", metavar="A,B", help="Queues to serve; all.")] = None,
    log_format: Annotated[str | None, typer.Option("--log-format", metavar="text|json", help="Of the log.")] = None,
    max_claim_batch: Annotated[int | None, typer.Option("--max-claim-batch", help="Claims a queue and pass.")] = None,
    max_claim_per_worker: Annotated[
        int | None, typer.Option("--max-claim-per-worker", help="Claims held at a time.")
    ] = None,
    max_tasks_per_child: Annotated[
        int | None, typer.Option("--max-tasks-per-child", help="Replace a child after so many tasks.")
    ] = None,
    max_memory_per_child_mb: Annotated[
        int | None, typer.Option("--max-memory-per-child-mb", help="Replace a child that has grown above it.")
    ] = None,
    grace_s: Annotated[
        str | None, typer.Option("--grace-s", metavar="SECONDS", help="For running tasks at a stop; none waits.")
    ] = None,
) -> int:
    """Run tasks until SIGTERM or SIGINT; a second signal ends the grace."""
    given = {
        "worker.processes": processes,
        "worker.queues": None if queues is None else split_values(queues),
        "worker.max_claim_batch": max_claim_batch,
        "worker.max_claim_per_worker": max_claim_per_worker,
        "worker.max_tasks_per_child": max_tasks_per_child,
        "worker.max_memory_per_child_mb": max_memory_per_child_mb,
        "worker.grace_s": grace_s,
        "log.format": log_format,
    }
    settings = load_and_export_settings(options, **given)
    if settings.log.format == "json":
        json_log.redirect_streams()
    found = _found(locator, settings)
    if failed := first_failed_phase(found, live=False):
        raise_together(failed.phase, failed.errors)
    return _run(options, settings, found, locator)


def _found(locator: str | None, settings: LoadedSettings) -> Horsies:
    try:
        return import_app_with_tasks(locator, settings)
    except ConfigurationError as error:
        if error.code is ErrorCode.WORKER_INVALID_LOCATOR and locator in WORKERS_COMMANDS:
            error.help_text = f"did you mean horsies workers {WORKERS_COMMANDS[locator]}? {error.help_text}"
        raise


def _run(options: GlobalOptions, settings: LoadedSettings, found: Horsies, locator: str | None) -> int:
    if not found.tasks:
        raise ConfigurationError(
            "the app has no tasks", code=ErrorCode.CLI_INVALID_ARGS, hint="name their modules in app.modules"
        )
    found.set_role("worker")
    # Of the app as it is, which may say in code where its database is and which queues there are.
    config = WorkerConfig.of(found.config, settings.worker, settings.project)
    config = config.model_copy(update={"app_locator": locator or settings.locator})
    introduce(found, config, settings, say=options.print_message)
    _collect_seldom()
    asyncio.run(_work(found, config))
    return ExitCode.DONE


def _collect_seldom() -> None:
    """Look for garbage in cycles less often: a worker makes thousands of values a second, hardly one in a cycle, and
    what is loaded by now stays."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


async def _work(found: Horsies, config: WorkerConfig) -> None:
    coroutines = frozenset(name for name, task in found.tasks.items() if task.definition.is_async)
    is_async = coroutines.__contains__  # asked for each task several times
    worker = Worker(found.config, config, is_async=is_async, definitions=found.definitions, hooks=found.recovery_hooks)
    await worker.run()
