"""The first lines of a worker: what an operator wants to know before anything goes wrong."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from horsies.embedded import EmbeddedServer
from horsies.model.bounds import caps_in_words, connection_budget, queue_in_words, recovery_bounds
from horsies.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from horsies.app import Horsies
    from horsies.config import LoadedSettings
    from horsies.model.settings import WorkerConfig

logger = logging.getLogger("horsies.worker")


def introduce(app: Horsies, worker: WorkerConfig, settings: LoadedSettings, *, say: Callable[[str], None]) -> None:
    """Say who starts here: to a person line by line, to a machine as one object like the others in the log."""
    title, facts = f"horsies {__version__}", _facts(app, worker, settings)
    if settings.log.format == "json":
        logger.info(title, extra=facts)
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
        "caps": caps_in_words(app.config),
        "processes": str(worker.processes),
        "connections": connection_budget(worker).in_words(),
        "recovery": recovery_bounds(app.config.recovery).in_words(),
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
        yield queue_in_words(configured[name]) if name in configured else name
