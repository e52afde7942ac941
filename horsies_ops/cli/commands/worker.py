"""`horsies worker`: run tasks until told to stop."""

from __future__ import annotations

import asyncio
import gc
from typing import Annotated

import typer

from horsies.app import Horsies
from horsies.app.check import first_failed_phase
from horsies.config import LoadedSettings
from horsies.discover import find_app
from horsies.engine.worker import Worker
from horsies.errors import ConfigurationError, ErrorCode, ExitCode, raise_together
from horsies.model.settings import WorkerConfig
from horsies_ops.cli import json_log
from horsies_ops.cli.application import AppArgument, settings_for_app
from horsies_ops.cli.banner import introduce
from horsies_ops.cli.option_types import values
from horsies_ops.cli.session import GlobalOptions, group, with_global_options

app = group("worker")

OF_WORKERS = {"list": "list", "show": "list", "ping": "ping"}
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
        "worker.queues": None if queues is None else values(queues),
        "worker.max_claim_batch": max_claim_batch,
        "worker.max_claim_per_worker": max_claim_per_worker,
        "worker.max_tasks_per_child": max_tasks_per_child,
        "worker.max_memory_per_child_mb": max_memory_per_child_mb,
        "worker.grace_s": grace_s,
        "log.format": log_format,
    }
    settings = settings_for_app(options, **given)
    if settings.log.format == "json":
        json_log.begin()
    found = _found(locator, settings)
    if failed := first_failed_phase(found, live=False):
        raise_together(failed.phase, failed.errors)
    return _run(options, settings, found, locator)


def _found(locator: str | None, settings: LoadedSettings) -> Horsies:
    try:
        return find_app(locator, settings)
    except ConfigurationError as error:
        if error.code is ErrorCode.WORKER_INVALID_LOCATOR and locator in OF_WORKERS:
            error.help_text = f"did you mean horsies workers {OF_WORKERS[locator]}? {error.help_text}"
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
    introduce(found, config, settings, say=options.talk)
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
