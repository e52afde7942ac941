"""Calls the app's `on_interrupted` hooks for tasks whose attempt was interrupted on this worker."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from horsies.engine import events
from horsies.engine.service import Backoff
from horsies.errors import HorsiesError
from horsies.model.recovery.decision import RecoveryContext, RecoveryReason
from horsies.model.retry import CRASH, SHUTDOWN, Cause
from horsies.recovery.hooks import HookCaller
from horsies.store.tasks import TaskStore

if TYPE_CHECKING:
    from horsies.engine.in_flight import InFlightTask

INTERRUPTION_REASONS = {CRASH: RecoveryReason.CHILD_DIED, SHUTDOWN: RecoveryReason.SHUTDOWN}
"""Causes that count as interruptions; a timeout is a normal outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """An attempt whose process ended before the task did."""

    task_id: str
    worker_id: str
    reason: RecoveryReason


class InterruptionNotifier:
    """Calls the hooks once the outcome of an interrupted attempt is stored.

    Not for timeouts, which are normal outcomes, and not for refused outcomes: then another process has recovered the
    task and calls the hooks.
    """

    name = "interruption hooks"

    def __init__(self, hooks: HookCaller, tasks: TaskStore, backoff: Backoff) -> None:
        self._hooks = hooks
        self._tasks = tasks
        self._backoff = backoff
        self._unstored: dict[tuple[str, int], Interruption] = {}
        self._to_notify: list[Interruption] = []
        self._woken = asyncio.Event()

    def on_attempt_failed(self, task: InFlightTask, cause: Cause) -> None:
        """Remember an interrupted attempt until its outcome is stored."""
        reason = INTERRUPTION_REASONS.get(cause)
        if reason is not None and self._hooks.has_interrupted_hooks:
            key = task.key
            self._unstored[key.task_id, key.claim_token] = Interruption(
                task_id=key.task_id, worker_id=str(task.claim.worker_id), reason=reason
            )

    def on_event(self, event: events.Event) -> None:
        """Listen to the worker's events for stored and refused outcomes."""
        if self._unstored and isinstance(event, events.TaskFinished | events.LateResultRefused):
            interruption = self._unstored.pop((event.task_id, event.claim_token), None)
            if interruption is not None and isinstance(event, events.TaskFinished):
                self._to_notify.append(interruption)
                self._woken.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Call hooks until `stop` is set and none is pending."""
        stopping = asyncio.create_task(stop.wait())
        stopping.add_done_callback(lambda _: self._woken.set())
        try:
            while self._to_notify or not stop.is_set():
                self._woken.clear()
                await self._notify_hooks()
                if not (self._to_notify or stop.is_set()):
                    await self._woken.wait()
        finally:
            stopping.cancel()

    async def _notify_hooks(self) -> None:
        """Notify about all pending interruptions at once, so that a slow hook delays them only once."""
        interruptions, self._to_notify = self._to_notify, []
        contexts = [context for each in interruptions if (context := await self._context_for(each)) is not None]
        await self._hooks.notify_interrupted(contexts)

    async def _context_for(self, interruption: Interruption) -> RecoveryContext | None:
        """The hook argument with the current state of the task; None if the task was deleted."""
        while True:
            try:
                task = await self._tasks.info(UUID(interruption.task_id), include_failed_reason=True)
            except HorsiesError as error:
                await self._backoff.wait(error)
                continue
            self._backoff.reset()
            return task and RecoveryContext(
                task=task,
                recovering_worker_id=interruption.worker_id,
                previous_worker_id=interruption.worker_id,
                reason=interruption.reason,
                dry_run=False,
            )
