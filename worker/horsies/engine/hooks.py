"""Telling an app's hooks of tasks that were cut off on this very worker, once that is stored."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from horsies.engine.service import Backoff
from horsies.errors import HorsiesError
from horsies.model import events
from horsies.model.crash import FailAttempt
from horsies.model.recovery.decision import RecoveryContext, RecoveryReason
from horsies.model.task_result import OperationalErrorCode
from horsies.recovery.hooks import HookCaller
from horsies.store.tasks import TaskStore, task_info

if TYPE_CHECKING:
    from horsies.engine.in_flight import InFlightTask

_REASONS: dict[object, RecoveryReason] = {
    OperationalErrorCode.WORKER_CRASHED: RecoveryReason.CHILD_DIED,
    OperationalErrorCode.SHUTDOWN: RecoveryReason.SHUTDOWN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """An attempt that its process did not live to finish."""

    task_id: str
    worker_id: str
    reason: RecoveryReason


class InterruptionNotifier:
    """Hears of attempts that were cut off when they are settled, and tells hooks when their outcomes are stored.

    A time-out is an outcome like any other and is not told; nor is an outcome that was refused, for then another
    process has settled the task and tells of it.
    """

    name = "interruptions"

    def __init__(self, asking: HookCaller, tasks: TaskStore, backoff: Backoff) -> None:
        self._asking = asking
        self._tasks = tasks
        self._backoff = backoff
        self._unstored: dict[tuple[str, int], Interruption] = {}
        self._to_notify: list[Interruption] = []
        self._woken = asyncio.Event()

    def on_attempt_failed(self, held: InFlightTask, fate: FailAttempt) -> None:
        """What becomes of this attempt is on its way into the database."""
        reason = _REASONS.get(fate.error.error_code)
        if reason is not None and self._asking.has_interrupted_hooks:
            key = held.key
            self._unstored[key.task_id, key.claim_token] = Interruption(
                task_id=key.task_id, worker_id=str(held.claim.worker_id), reason=reason
            )

    def on_event(self, event: events.Event) -> None:
        """A listener of the worker's events."""
        if self._unstored and isinstance(event, events.TaskFinished | events.LateResultRefused):
            cut = self._unstored.pop((event.task_id, event.claim_token), None)
            if cut is not None and isinstance(event, events.TaskFinished):
                self._to_notify.append(cut)
                self._woken.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Tell until stop is set and nothing is left to tell."""
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
        """All that wait together, so that a slow hook is slow once."""
        cuts, self._to_notify = self._to_notify, []
        contexts = [context for cut in cuts if (context := await self._context_of(cut)) is not None]
        await self._asking.notify_interrupted(contexts)

    async def _context_of(self, cut: Interruption) -> RecoveryContext | None:
        """The task as it stands now; None where it is gone already."""
        while True:
            try:
                row = await self._tasks.info(UUID(cut.task_id), with_document=False)
            except HorsiesError as error:
                await self._backoff.wait(error)
                continue
            self._backoff.reset()
            return row and RecoveryContext(
                task=task_info(row, include_failed_reason=True),
                recovering_worker_id=cut.worker_id,
                previous_worker_id=cut.worker_id,
                reason=cut.reason,
                dry_run=False,
            )
