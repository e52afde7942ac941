"""What is written for the tasks of a child that has ended."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from horsies.model import events
from horsies.model.codes import OperationalErrorCode
from horsies.model.crashes import Crash, HeldTask, Kill, KillReason, Settle, fate_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from horsies.engine.deaths import ChildDied
    from horsies.engine.held import Held
    from horsies.engine.outcomes import Outcomes
    from horsies.engine.reporting import Reporter
    from horsies.model.crashes import Death, Fate
    from horsies.store.tasks import TaskStore


class Settling:
    """Turns deaths of children into outcomes of their tasks."""

    def __init__(
        self,
        outcomes: Outcomes,
        tasks: TaskStore,
        reporter: Reporter,
        *,
        max_crashes: int,
        settled: Callable[[Held, Settle], None],
    ) -> None:
        self._outcomes = outcomes
        self._settled = settled
        self._tasks = tasks
        self._reporter = reporter
        self._max_crashes = max_crashes

    def settle(self, held: Held, death: Death, *, earlier: tuple[str, ...] = ()) -> Fate:
        """Store what becomes of a task that had begun; the fate says whether there was anything to store."""
        task = HeldTask(
            task_id=held.key.task_id,
            has_begun=True,
            policy=held.policy,
            retry_count=held.row.retry_count,
            crash_count=held.row.crash_count,
            timeout_ms=held.timeout_ms,
            earlier_crashes=earlier,
        )
        # Jitter spreads retries; it guards nothing.
        fate = fate_of(task, death, jitter=random.random())  # noqa: S311
        if isinstance(fate, Settle):
            self._settled(held, fate)
            is_poison = fate.poison is not None and held.row.crash_count + 1 >= self._max_crashes
            poisoned = _poisoned(held, (*earlier, fate.error.message or "")) if is_poison else None
            self._outcomes.settle(held, fate, then_tell=poisoned)
        return fate

    async def earlier_crashes(self, held: Held) -> tuple[str, ...]:
        """What earlier attempts died of, oldest first; asked only where this crash may be the last one allowed."""
        if held.row.crash_count == 0 or held.row.crash_count + 1 < self._max_crashes:
            return ()
        crashed = OperationalErrorCode.WORKER_CRASHED
        attempts = await self._tasks.attempts(held.row.id)
        return tuple(row.error_message or "" for row in reversed(attempts) if row.error_code == crashed)

    def tell_death(self, held: Held, death: Death, died: ChildDied) -> None:
        if not isinstance(death, Crash):
            return
        self._reporter.emit(
            events.ChildDied(
                worker_id=str(held.hold.worker_id),
                task_id=held.key.task_id,
                claim_token=held.key.claim_token,
                queue_name=held.row.queue_name,
                pid=died.pid,
                cause=death.cause,
                signal=died.signal,
                exit_status=died.exit_status,
            )
        )


def _poisoned(held: Held, causes: tuple[str, ...]) -> events.TaskPoisoned:
    return events.TaskPoisoned(
        worker_id=str(held.hold.worker_id),
        task_id=held.key.task_id,
        claim_token=held.key.claim_token,
        queue_name=held.row.queue_name,
        crash_count=held.row.crash_count + 1,
        causes=causes,
    )


def death_of(died: ChildDied, kill: Kill | None) -> Death:
    """The death as the rules know it; `kill` is what this worker had decided about the child, if anything."""
    if not died.cause.is_crash:
        return kill or Kill(reason=KillReason.SHUTDOWN, pid=died.pid)
    return Crash(cause=died.cause, pid=died.pid, why=died.why, signal=died.signal, exit_status=died.exit_status)
