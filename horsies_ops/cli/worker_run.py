"""Runs `horsies worker`: loads the app, prints the banner, and runs a worker or the reloader until stopped."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from horsies.app import Horsies
from horsies.check import first_failed_phase
from horsies.client.schedules import encode_schedules
from horsies.config import LoadedSettings
from horsies.discover import app_folder, import_app_with_tasks
from horsies.embedded import EmbeddedServer
from horsies.engine.events import WorkerStarted
from horsies.engine.pool.fork_server import ForkServer
from horsies.engine.reporter import TaskLines
from horsies.engine.worker import Worker
from horsies.errors import ConfigurationError, ErrorCode, ExitCode, HorsiesError, raise_together
from horsies.log import enable_loggers
from horsies.model.bounds import connection_budget, describe_limits, describe_queue, recovery_bounds
from horsies.model.settings import AppConfig, WorkerConfig
from horsies.scheduler.service import ScheduleSet
from horsies.version import __version__
from horsies_ops.cli import json_log
from horsies_ops.cli.options import GlobalOptions, load_and_export_settings
from horsies_ops.cli.reload import CodeWatcher, Reloader, ReloaderLink
from horsies_ops.cli.worker_log import banner_lines, use_terminal_format

worker_logger = logging.getLogger("horsies.worker")

BURST_CHECK_INTERVAL_S = 0.5
WORKERS_COMMANDS = {"list": "list", "show": "list", "ping": "ping"}
"""Likely typing errors (`horsies worker list`) and the `horsies workers` command to suggest."""


def run_worker(
    options: GlobalOptions,
    locator: str | None,
    given: Mapping[str, object],
    *,
    burst: bool,
    reload: bool,
    fork_server: ForkServer | None,
) -> int:
    """Run a worker, or the process that restarts workers; `given` are settings of the command line."""
    settings = load_and_export_settings(options, **given)
    link = ReloaderLink.from_environment() if reload else None
    if reload and link is None:
        return _run_reloader(locator, settings)
    if settings.log.format == "json":
        json_log.redirect_streams()  # before the app is imported, because its modules may print
    user_app = _load_app(locator, settings)
    enable_loggers()
    if failed := first_failed_phase(user_app, live=False):
        raise_together(failed.phase, failed.errors)
    return _run_loaded_app(options, settings, user_app, locator, burst=burst, link=link, fork_server=fork_server)


def print_banner(options: GlobalOptions, app: Horsies, worker: WorkerConfig, settings: LoadedSettings) -> None:
    """Print what the worker runs and its limits: text lines, or one log record in JSON logs."""
    title, facts = f"horsies {__version__}", _banner_facts(app, worker, settings)
    if settings.log.format == "json":
        worker_logger.info(title, extra=facts)
    elif not options.quiet:
        sys.stderr.writelines(f"{line}\n" for line in banner_lines(title, facts))


def _banner_facts(app: Horsies, worker: WorkerConfig, settings: LoadedSettings) -> dict[str, str]:
    source = str(settings.file) if settings.file else "no file"
    configured = {queue.name: queue for queue in app.config.custom_queues or ()}
    queues = [describe_queue(configured[name]) if name in configured else name for name in worker.queues or ()]
    return {
        "app": worker.app_locator or "(from the settings)",
        "settings": f"{source}; overrides code: {', '.join(settings.overridden)}" if settings.overridden else source,
        "database": f"embedded PostgreSQL in {EmbeddedServer.at(worker.dsn).folder}"
        if worker.dsn.is_embedded
        else worker.dsn.masked,
        "queues": ", ".join(queues),
        "limits": describe_limits(app.config),
        "processes": str(worker.processes),
        "connections": connection_budget(worker).describe(),
        "recovery": recovery_bounds(app.config.recovery).describe(),
        "tasks": f"{len(app.tasks)}: {', '.join(app.list_tasks())}",
    }


def _load_app(locator: str | None, settings: LoadedSettings) -> Horsies:
    try:
        return import_app_with_tasks(locator, settings)
    except ConfigurationError as error:
        if error.code is ErrorCode.WORKER_INVALID_LOCATOR and locator in WORKERS_COMMANDS:
            error.help_text = f"did you mean horsies workers {WORKERS_COMMANDS[locator]}? {error.help_text}"
        raise


def _run_reloader(locator: str | None, settings: LoadedSettings) -> int:
    if _is_on_terminal(settings):
        use_terminal_format(())
    folder = app_folder(locator, settings)
    settings_file = settings.file or folder / "horsies.toml"
    return Reloader(CodeWatcher(folder, [settings_file]), settings_file).run()


def _is_on_terminal(settings: LoadedSettings) -> bool:
    return settings.log.format == "text" and sys.stderr.isatty()


def _run_loaded_app(
    options: GlobalOptions,
    settings: LoadedSettings,
    user_app: Horsies,
    locator: str | None,
    *,
    burst: bool,
    link: ReloaderLink | None,
    fork_server: ForkServer | None,
) -> int:
    if not user_app.tasks:
        raise ConfigurationError(
            "the app has no tasks", code=ErrorCode.CLI_INVALID_ARGS, hint="list the task modules in app.modules"
        )
    user_app.set_role("worker")
    # The app's own configuration counts: its code may set the database and the queues.
    config = WorkerConfig.of(user_app.config, settings.worker, settings.project)
    config = config.model_copy(update={"app_locator": locator or settings.locator})
    if link is None or link.is_first:
        print_banner(options, user_app, config, settings)
    task_lines = TaskLines() if _is_on_terminal(settings) else None
    if task_lines is not None:
        use_terminal_format(user_app.list_tasks())
    # Collect cyclic garbage rarely: a worker creates thousands of values per second and hardly any in cycles, and
    # everything loaded so far stays.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    asyncio.run(
        _run_until_stopped(user_app, config, burst=burst, task_lines=task_lines, link=link, fork_server=fork_server)
    )
    return ExitCode.DONE


async def _run_until_stopped(
    user_app: Horsies,
    config: WorkerConfig,
    *,
    burst: bool,
    task_lines: TaskLines | None,
    link: ReloaderLink | None,
    fork_server: ForkServer | None,
) -> None:
    worker = Worker(
        user_app.config,
        config,
        tasks=user_app.tasks,
        definitions=user_app.definitions,
        hooks=user_app.recovery_hooks,
        schedules=_schedules_to_fire(user_app, config),
        task_lines=task_lines,
        fork_server=fork_server,
    )
    if link is not None:
        link.attach(worker)
    if not burst:
        await worker.run()
        return
    started = asyncio.Event()
    worker.add_listener(lambda event: started.set() if isinstance(event, WorkerStarted) else None)
    watch = asyncio.create_task(_stop_without_work(worker, started, user_app.config, config.queues or ()))
    try:
        await worker.run()
    finally:
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch


async def _stop_without_work(worker: Worker, started: asyncio.Event, app: AppConfig, queues: Sequence[str]) -> None:
    """Stop the worker as soon as its queues have no work; database errors are left to the worker."""
    # Imported here: only this option needs the toolkit.
    from horsies_ops.ops import open_ops

    await started.wait()  # it creates the embedded database and the tables
    try:
        async with open_ops(app, read_only=True, via="cli", connections=1) as ops:
            has_work = True
            while has_work:
                await asyncio.sleep(BURST_CHECK_INTERVAL_S)
                with suppress(HorsiesError):
                    has_work = await ops.has_work(queues)
    finally:
        if not worker.is_stopping:
            worker.stop()


def _schedules_to_fire(user_app: Horsies, config: WorkerConfig) -> ScheduleSet | None:
    """The schedules of the app; None if this worker takes no part in firing them."""
    defined = user_app.get_schedules()
    takes_part = bool(defined) if config.with_scheduler is None else config.with_scheduler
    return encode_schedules(user_app, defined) if takes_part else None
