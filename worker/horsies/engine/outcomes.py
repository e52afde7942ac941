"""Outcomes on their way into the database: one lane, and what becomes of those that are refused."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from horsies.codec.failure import stored_error
from horsies.codec.wire import canonical
from horsies.engine.held import Phase
from horsies.engine.lane import Lane
from horsies.model import events
from horsies.model.codes import OperationalErrorCode
from horsies.model.crashes import retry_delay_s
from horsies.model.task import TaskAttemptOutcome, TaskStatus
from horsies.model.task_error import TaskError
from horsies.store.finishes import Finish

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Container

    from horsies.engine.backoff import Backoff
    from horsies.engine.held import Desk, Held
    from horsies.engine.identity import Gate
    from horsies.engine.messages import Ending
    from horsies.engine.reporting import Reporter
    from horsies.model.crashes import Settle
    from horsies.store.failures import StatementFailed
    from horsies.store.finishes import FinishStore
    from horsies.store.work import MovedRow

_MOVES = {
    TaskStatus.COMPLETED: "complete",
    TaskStatus.FAILED: "fail",
    TaskStatus.PENDING: "retry",
    TaskStatus.CANCELLED: "cancel a run",
}


class Ended:
    """A held task with the row that stores its end, and what is to be told once it is stored; `is_again` once that may
    have happened unheard."""

    __slots__ = ("finish", "held", "is_again", "then_tell")

    def __init__(self, held: Held, finish: Finish, then_tell: events.Event | None = None) -> None:
        self.held = held
        self.finish = finish
        self.then_tell = then_tell
        self.is_again = False

    @property
    def size_bytes(self) -> int:
        return len(self.finish.document)


class Outcomes:
    """Stores outcomes for as long as the worker lives; beats for their rows go on meanwhile."""

    name = "outcomes"

    def __init__(
        self,
        store: FinishStore,
        desk: Desk,
        reporter: Reporter,
        *,
        gate: Gate,
        backoff: Backoff,
        max_crashes: int,
        stored: Callable[[], None],
        retried: Callable[[float], None],
        nodes_ended: Callable[[], None],
        unknown: Callable[[str], None],
    ) -> None:
        self._store = store
        self._desk = desk
        self._reporter = reporter
        self._gate = gate
        self._max_crashes = max_crashes
        self._stored = stored
        self._retried = retried
        self._nodes_ended = nodes_ended
        self._unknown = unknown
        self._lane: Lane[Ended, MovedRow] = Lane(
            self.name,
            self._send,
            answered=self._answered,
            refused=self._refused,
            backoff=backoff,
            size_of=lambda ended: ended.size_bytes,
        )
        self._late: list[Ended] = []

    @property
    def unstored(self) -> int:
        return len(self._lane.waiting)

    def ended(self, held: Held, ending: Ending) -> None:
        """A child has reported how a task ended."""
        delay_s = None
        if ending.outcome is not TaskAttemptOutcome.COMPLETED:
            delay_s = retry_delay_s(held.policy, held.row.retry_count, ending.error_code, jitter=random.random())  # noqa: S311  # spreads retries, guards nothing
            if ending.error_code == OperationalErrorCode.WORKER_RESOLUTION_ERROR:
                self._unknown(held.row.task_name)
        finish = Finish(
            hold=held.hold,
            outcome=ending.outcome,
            document=ending.document.decode(),
            error_code=ending.error_code,
            error_message=ending.error_message,
            retry_delay_s=delay_s,
            pid=_pid_of(held),
        )
        self._put(held, finish)

    def settle(self, held: Held, settle: Settle, *, then_tell: events.Event | None = None) -> None:
        """A task was interrupted; where it was a crash, the statement knows whether it was one too many.

        `then_tell` is told when that is stored, and never where it is refused.
        """
        finish = Finish(
            hold=held.hold,
            outcome=TaskAttemptOutcome.FAILED,
            document=_document(settle.error),
            error_code=settle.error.error_code,
            error_message=settle.error.message,
            failed_reason=settle.failed_reason,
            retry_delay_s=settle.retry_delay_s,
            poison_document=None if settle.poison is None else _document(settle.poison),
            pid=_pid_of(held),
        )
        self._put(held, finish, then_tell)

    async def run(self, stop: asyncio.Event) -> None:
        await self._lane.run(stop)

    def _put(self, held: Held, finish: Finish, then_tell: events.Event | None = None) -> None:
        held.silence()
        held.phase = Phase.STORING
        self._lane.put([Ended(held, finish, then_tell)])

    async def _send(self, batch: list[Ended]) -> list[MovedRow]:
        sent_at = time.monotonic()
        messages = self._reporter.summary.take(sent_at)
        is_again = [ended.is_again for ended in batch]
        for ended in batch:
            ended.is_again = True
        rows = await self._store.finish(
            [ended.finish for ended in batch], max_crashes=self._max_crashes, events=messages
        )
        self._gate.passed(sent_at)
        await self._look_into(batch, rows, is_again)
        return rows

    async def _look_into(self, batch: list[Ended], rows: list[MovedRow], is_again: list[bool]) -> None:
        """Find out what became of rows that did not come back: stored unheard the first time, or moved by another."""
        returned = {(row.id, row.claim_token) for row in rows}
        missing = [
            (ended, again)
            for ended, again in zip(batch, is_again, strict=True)
            if (ended.held.row.id, ended.held.row.claim_token) not in returned
        ]
        repeated = [ended for ended, again in missing if again]
        known = await self._store.outcome_of([ended.finish.hold for ended in repeated]) if repeated else []
        stored = {(row.id, row.claim_token, row.outcome, row.error_code) for row in known}
        self._late = [ended for ended, _ in missing if _attempt_of(ended) not in stored]
        if self._late:
            await self._tell_late()

    async def _tell_late(self) -> None:
        standing = {row.id: row for row in await self._store.standing([ended.held.row.id for ended in self._late])}
        for ended in self._late:
            held, now = ended.held, standing.get(ended.held.row.id)
            self._reporter.emit(
                events.LateResultRefused(
                    worker_id=str(held.hold.worker_id),
                    task_id=held.key.task_id,
                    claim_token=held.key.claim_token,
                    queue_name=held.row.queue_name,
                    status=now.status if now else None,
                    token_now=now.claim_token if now else None,
                    owner_now=str(now.worker_id) if now and now.worker_id else None,
                    outcome=ended.finish.outcome,
                    error_code=ended.finish.error_code,
                    started_at=now.started_at if now else None,
                    moved_at=(now.terminal_at or now.claimed_at) if now else None,
                )
            )

    def _answered(self, batch: list[Ended], rows: list[MovedRow]) -> None:
        moved = {(row.id, row.claim_token): row.status for row in rows}
        is_told = self._reporter.is_heard(events.TaskFinished)
        ids: dict[tuple[str, str], list[str]] = {}
        for ended in batch:
            held = ended.held
            self._desk.drop(held)
            if ended.then_tell is not None and ended not in self._late:
                self._reporter.emit(ended.then_tell)
            status = moved.get((held.row.id, held.row.claim_token))
            if status is not None:
                ids.setdefault((status, held.row.queue_name), []).append(held.key.task_id)
                if ended.finish.retry_delay_s is not None and status == TaskStatus.PENDING:
                    self._retried(ended.finish.retry_delay_s)
                if is_told:
                    self._tell_finished(ended, TaskStatus(status))
        for (name, queue), theirs in ids.items():
            status = TaskStatus(name)
            self._reporter.moved(_MOVES[status], queue, TaskStatus.RUNNING, status, theirs)
            self._reporter.account.ended(status, len(theirs))
            if status is TaskStatus.FAILED:
                self._tell_failed(batch, frozenset(theirs))
        if any(ended.held.row.is_workflow_task for ended in batch):
            self._nodes_ended()
        self._stored()

    def _tell_failed(self, batch: list[Ended], failed: Container[str]) -> None:
        for ended in batch:
            held = ended.held
            if held.key.task_id in failed:
                self._reporter.account.failed(
                    held.row.task_name,
                    error_code=ended.finish.error_code,
                    task_id=held.key.task_id,
                    message=ended.finish.error_message,
                )
        self._reporter.tell_failing(str(batch[0].held.hold.worker_id))

    def _tell_finished(self, ended: Ended, status: TaskStatus) -> None:
        held = ended.held
        self._reporter.emit(
            events.TaskFinished(
                worker_id=str(held.hold.worker_id),
                task_id=held.key.task_id,
                claim_token=held.key.claim_token,
                queue_name=held.row.queue_name,
                task_name=held.row.task_name,
                status=status,
                error_code=ended.finish.error_code,
                run_ms=None,
            )
        )

    def _refused(self, ended: Ended, error: StatementFailed) -> None:
        """The server will never take this row: its task has failed for that, and the others pass."""
        code = OperationalErrorCode.WORKER_SERIALIZATION_ERROR
        failure = TaskError(error_code=code, message=f"the server refused the result: {error.message}")
        finish = Finish(
            hold=ended.held.hold,
            outcome=TaskAttemptOutcome.WORKER_FAILURE,
            document=_document(failure),
            error_code=code,
            error_message=failure.message,
            pid=ended.finish.pid,
        )
        self._lane.put([Ended(ended.held, finish)])


def _attempt_of(ended: Ended) -> tuple[object, ...]:
    hold, finish = ended.finish.hold, ended.finish
    return hold.task_id, hold.claim_token, finish.outcome, finish.error_code


def _pid_of(held: Held) -> int | None:
    return None if held.child is None else held.child.pid


def _document(error: TaskError) -> str:
    return canonical({"err": stored_error(error)})
