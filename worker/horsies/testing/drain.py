"""Run due tasks of a database in this process, for tests that use a real database.

Each task is claimed, executed and finished by the same code as in a worker, only one at a time and without children.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Collection, Sequence
from uuid import UUID

from uuid_utils.compat import uuid7

from horsies.app import Horsies
from horsies.engine.child.runner import Attempt, TaskExecutor
from horsies.engine.completer import finished_attempt, is_row_error, rejected_attempt
from horsies.engine.in_flight import InFlightTask
from horsies.engine.pool.protocol import Assignment, EncodedOutcome
from horsies.model.capacity import QueueCapacity
from horsies.model.settings.worker import check_queues
from horsies.model.task import TaskAttemptOutcome
from horsies.recovery.decide import expiry_document
from horsies.store.claims import ClaimRequest, ClaimStore, FinishedAttempt
from horsies.store.connection import StatementFailed
from horsies.store.database import Database
from horsies.store.recovery import EXPIRY_BATCH, OverdueRow, RecoveryStore
from horsies.sync import BRIDGE
from horsies.workflows.outbox import OutboxProcessor

logger = logging.getLogger("horsies.testing")


def drain(app: Horsies, *, queues: Sequence[str] | None = None, limit: int | None = None) -> int:
    """Run due tasks of `queues` (None: all) until none is due, at most `limit` attempts; returns their number."""
    return BRIDGE.run(drain_async(app, queues=queues, limit=limit))


async def drain_async(app: Horsies, *, queues: Sequence[str] | None = None, limit: int | None = None) -> int:
    """Like `drain`, on the running event loop. When no task is due, expires tasks past their `good_until`.

    Tasks sent meanwhile are run too, and workflow runs are advanced to their end. Tasks due later, such as retries with
    a delay, are left. Task timeouts are not enforced.
    """
    served = app.get_valid_queue_names() if queues is None else list(queues)
    check_queues("queues", served, app.get_valid_queue_names())
    app.import_task_modules()
    session = await app.get_broker().session()
    drainer = Drainer(app, session.database, served)
    outbox = OutboxProcessor(session.database, app.definitions)
    count = 0
    while limit is None or count < limit:
        # Before each claim: advancing a run may enqueue the task to run next.
        await outbox.process()
        if await drainer.run_next():
            count += 1
        elif not await expire_overdue(session.database, served):
            break
    await outbox.process()
    return count


class Drainer:
    """Claims tasks and runs them one after the other in this process."""

    def __init__(self, app: Horsies, database: Database, queues: Sequence[str]) -> None:
        caps = {queue.name: queue.max_concurrency for queue in app.config.custom_queues or ()}
        self._queues = [QueueCapacity(name=name, capacity=1, cap=caps.get(name)) for name in queues]
        self._cluster_cap = app.config.cluster_wide_cap
        self._worker_id = uuid7()
        self._hostname = socket.gethostname()
        self._claims = ClaimStore(database)
        self._executor = TaskExecutor(app)

    async def run_next(self) -> bool:
        """Run one task and store its outcome; False if none was due."""
        task = await self._start_next()
        if task is None:
            return False
        finish = finished_attempt(task, await self._execute(task))
        try:
            stored = await self._store(finish)
        except StatementFailed as error:
            if not is_row_error(error):
                raise
            stored = await self._store(rejected_attempt(task.claim, error, pid=None))
        if not stored:
            logger.warning(
                "claim lost while the task was running, outcome discarded", extra={"task_id": task.key.task_id}
            )
        return True

    async def _start_next(self) -> InFlightTask | None:
        request = ClaimRequest(
            worker_id=self._worker_id,
            hostname=self._hostname,
            queues=self._queues,
            limit=1,
            pids=[os.getpid()],
            cluster_cap=self._cluster_cap,
        )
        for row in await self._claims.claim(request):
            task = InFlightTask(row, self._worker_id)
            # Not started yet if its workflow node was locked, or if it was taken over after its lease had expired.
            if row.worker_pid is not None or await self._start(task):
                return task
        return None

    async def _start(self, task: InFlightTask) -> bool:
        if await self._claims.start({task.claim: os.getpid()}, hostname=self._hostname):
            return True
        await self._claims.release([task.claim])
        return False

    async def _execute(self, task: InFlightTask) -> EncodedOutcome:
        row = task.row
        assignment = Assignment(
            str(row.id),
            row.claim_token,
            row.task_name,
            row.queue_name,
            row.args,
            row.kwargs,
            row.sent_at,
            row.details,
        )
        attempt = Attempt(assignment, str(task.worker_id))
        if self._executor.is_async(attempt):
            return await self._executor.run_async(attempt)
        # In a thread, where it may block and send.
        return await asyncio.to_thread(self._executor.run, attempt)

    async def _store(self, finish: FinishedAttempt) -> bool:
        if finish.outcome is not TaskAttemptOutcome.COMPLETED:
            return bool(await self._claims.finish([finish]))
        claim = finish.claim
        return bool(
            await self._claims.complete(
                [claim.task_id], [claim.claim_token], [finish.document], worker_ids=[claim.worker_id]
            )
        )


async def expire_overdue(database: Database, queues: Collection[str]) -> bool:
    """Expire PENDING tasks of these queues past their good_until; returns whether there were any."""
    store, last = RecoveryStore(database), None
    expired: list[UUID] = []
    while True:
        rows: list[OverdueRow] = await store.overdue(after=last)
        documents = {row.id: expiry_document(row.id, row.good_until) for row in rows if row.queue_name in queues}
        expired += await store.expire(documents) if documents else []
        if len(rows) < EXPIRY_BATCH:
            return bool(expired)
        last = rows[-1]
