"""The task catalog: which tasks workers have registered, and what happens to tasks that none has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from horsies.codec.results import error_document
from horsies.model.bounds import format_ms
from horsies.model.task_result import OperationalErrorCode, TaskError
from horsies.store.database import Executor
from horsies.store.queries import Query, load_queries

BATCH_ROWS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisteredTask:
    """A task name that no worker of this queue has registered."""

    queue_name: str
    task_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingTasks:
    """Due tasks of one name in one queue."""

    queue_name: str
    task_name: str
    tasks: int
    oldest_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogQueries:
    publish: Query[None]
    expire: Query[None]
    unregistered: Query[UnregisteredTask]
    fail_unregistered: Query[UUID]
    waiting: Query[WaitingTasks]


CATALOG = load_queries(CatalogQueries, "horsies.store", "catalog")


@dataclass(frozen=True, slots=True)
class CatalogStore:
    """The catalog of one database."""

    database: Executor

    async def publish(self, catalog_hash: str, entries_json: str) -> None:
        """Store the tasks of a worker; entries are a JSON array of objects with the columns of the table."""
        await self.database.execute(CATALOG.publish, catalog_hash, entries_json)

    async def expire(self) -> None:
        """Delete catalogs that no worker has used for 7 days."""
        await self.database.execute(CATALOG.expire)

    async def unregistered(self, *, for_s: float = 0) -> list[UnregisteredTask]:
        """Names that a live worker does not know and that no worker of the same queue has known for `for_s` seconds."""
        return await self.database.fetch(CATALOG.unregistered, for_s)

    async def waiting(self, unregistered: Sequence[UnregisteredTask]) -> list[WaitingTasks]:
        """Due tasks of these names; names without any are left out."""
        queues, names = [each.queue_name for each in unregistered], [each.task_name for each in unregistered]
        return await self.database.fetch(CATALOG.waiting, queues, names)

    async def fail_unregistered(self, *, grace_s: float) -> int:
        """Fail tasks that have been due for `grace_s` seconds and that no worker has registered for as long."""
        failed, unregistered = 0, await self.unregistered(for_s=grace_s)
        documents = [_document(each, grace_s) for each in unregistered]
        queues, names = [each.queue_name for each in unregistered], [each.task_name for each in unregistered]
        while unregistered:
            ids = await self.database.fetch(CATALOG.fail_unregistered, queues, names, documents, grace_s, BATCH_ROWS)
            failed += len(ids)
            if len(ids) < BATCH_ROWS:
                break
        return failed


def _document(task: UnregisteredTask, grace_s: float) -> str:
    grace = format_ms(round(grace_s * 1000))
    message = f"no worker of the queue {task.queue_name!r} has registered the task {task.task_name!r} for {grace}"
    return error_document(TaskError(error_code=OperationalErrorCode.WORKER_RESOLUTION_ERROR, message=message))
