"""Outcomes on their way into the database: one lane, and what becomes of those that are refused."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from horsies.codec.canonical_json import canonical
from horsies.codec.results import stored_error
from horsies.engine.in_flight import Phase
from horsies.errors import BrokerError, HorsiesError, on_one_line
from horsies.model import events
from horsies.model.crash import (
    Crash,
    Drop,
    HandBack,
    HeldTask,
    Kill,
    KillReason,
    Requeue,
    Settle,
    fate_of,
    retry_delay_s,
)
from horsies.model.task import TaskAttemptOutcome, TaskStatus
from horsies.model.task_result import OperationalErrorCode, TaskError
from horsies.store.claims import Finish
from horsies.store.connection import StatementFailed
from horsies.store.operators import Target, put_back

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container, Iterable, Sequence

    from horsies.engine.heartbeat import Gate
    from horsies.engine.in_flight import Desk, Held
    from horsies.engine.pool.child import Child, ChildDied
    from horsies.engine.pool.protocol import Ending, Key, Stream
    from horsies.engine.reporter import Reporter
    from horsies.engine.service import Backoff
    from horsies.engine.worker import Parts
    from horsies.model.crash import Death, Fate
    from horsies.store.claims import FinishStore, MovedRow
    from horsies.store.database import Database
    from horsies.store.tasks import TaskStore


# Lanes: many rows, few statements, no timers.
#
# While one statement is on its way, whatever arrives waits and leaves together in the next one. An idle lane sends at
# once, a busy one hundreds of rows at a time.

T = TypeVar("T")
R = TypeVar("R")

LARGEST_ROWS: Final = 500
LARGEST_BYTES: Final = 4_000_000

_FAULTS_OF_A_ROW: Final = ("0A", "21", "22", "23", "54", "XX")
"""Classes of SQLSTATE with which a server refuses what a row holds. Others speak of the statement or the session."""


def is_refusal(error: Exception) -> bool:
    """Whether the server refused some row for good, so that the others may pass without it."""
    if not isinstance(error, StatementFailed) or error.retryable:
        return False
    return (error.sqlstate or "").startswith(_FAULTS_OF_A_ROW)


class Lane(Generic[T, R]):
    """Rows of one kind on their way to the database: none lost, none twice in our hands, in the order they were put.

    `answered` gets each batch that passed with what the statement returned, `refused` each row that the server will
    never take. A batch that found no database is sent again as it was, by `backoff`; only the sender knows
    whether the first time was stored after all. Any other error ends the lane, its rows still in `waiting`.
    """

    def __init__(
        self,
        name: str,
        send: Callable[[list[T]], Awaitable[list[R]]],
        *,
        answered: Callable[[list[T], list[R]], None],
        refused: Callable[[T, StatementFailed], None],
        backoff: Backoff,
        size_of: Callable[[T], int] | None = None,
        largest_rows: int = LARGEST_ROWS,
        largest_bytes: int = LARGEST_BYTES,
    ) -> None:
        self.name = name
        self._send = send
        self._answered = answered
        self._refused = refused
        self._backoff = backoff
        self._size_of = size_of
        self._largest_rows = largest_rows
        self._largest_bytes = largest_bytes
        self._waiting: deque[T] = deque()
        self._woken = asyncio.Event()

    @property
    def waiting(self) -> tuple[T, ...]:
        """What is not known to be stored, on its way or not; what is left after `run` was given up."""
        return tuple(self._waiting)

    def put(self, rows: Iterable[T]) -> None:
        """Let rows leave with the next statement; never waits."""
        self._waiting.extend(rows)
        self._woken.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Send until stop is set and nothing waits any more."""
        stopping = asyncio.create_task(stop.wait())
        stopping.add_done_callback(lambda _: self._woken.set())
        try:
            while await self._has_rows(stop):
                await self._pass_on(self._next_batch())
        finally:
            stopping.cancel()

    async def _has_rows(self, stop: asyncio.Event) -> bool:
        while not self._waiting and not stop.is_set():
            self._woken.clear()
            await self._woken.wait()
        return bool(self._waiting)

    def _next_batch(self) -> list[T]:
        """The rows that waited longest, within the limits; one row always fits."""
        batch: list[T] = []
        room_bytes = self._largest_bytes
        for row in self._waiting:
            room_bytes -= self._size_of(row) if self._size_of else 0
            if batch and (room_bytes < 0 or len(batch) == self._largest_rows):
                break
            batch.append(row)
        return batch

    async def _pass_on(self, batch: list[T]) -> None:
        """Send rows from the head of the line, halved and halved again where one of them is refused."""
        try:
            answer = await self._send_until_answered(batch)
        except StatementFailed as error:
            if not is_refusal(error):
                raise
            await self._pass_on_without_the_refused(batch, error)
        else:
            self._leave_the_line(batch)
            self._answered(batch, answer)

    async def _pass_on_without_the_refused(self, batch: list[T], error: StatementFailed) -> None:
        if len(batch) == 1:
            self._leave_the_line(batch)
            self._refused(batch[0], error)
            return
        middle = len(batch) // 2
        await self._pass_on(batch[:middle])
        await self._pass_on(batch[middle:])

    async def _send_until_answered(self, batch: list[T]) -> list[R]:
        while True:
            try:
                answer = await self._send(batch)
            except BrokerError as error:
                await self._backoff.wait(error)
            else:
                self._backoff.reset()
                return answer

    def _leave_the_line(self, batch: list[T]) -> None:
        for _ in batch:
            self._waiting.popleft()


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


# What is written for the tasks of a child that has ended.


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


# Tasks that an operator had stopped here, on their way back into the queue.

logger = logging.getLogger("horsies.worker")


class Requeues:
    """Puts back what was stopped, once its process is gone: with its attempt, and without spending a retry."""

    def __init__(self, database: Database, desk: Desk, backoff: Backoff) -> None:
        self._database = database
        self._desk = desk
        self._backoff = backoff

    async def put_back(self, held: Held) -> None:
        """Tried until the database has answered; whoever asked may have moved the row meanwhile."""
        held.child = None  # gone; until its row is moved, the worker speaks for the task
        target = Target(id=held.row.id, status=TaskStatus.RUNNING, claim_token=held.row.claim_token)
        try:
            while not await self._is_stored(target):
                pass
        except HorsiesError as error:
            # No longer on our desk and still in our name, it is given back with the next reconciliation.
            logger.warning("task %s was stopped and could not be put back: %s", held.key.task_id, on_one_line(error))
        finally:
            self._desk.drop(held)

    async def _is_stored(self, target: Target) -> bool:
        try:
            await self._database.run(lambda transaction: put_back(transaction, [target]))
        except HorsiesError as error:
            await self._backoff.wait(error)
            return False
        self._backoff.reset()
        return True


# What children report, and what follows from it for their tasks.

output = logging.getLogger("horsies.task")


class Reports:
    """Hears the pool. Every task that was handed over ends as an outcome, is settled, or is given back."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._settling: set[asyncio.Task[None]] = set()

    def ready(self, child: Child) -> None:
        self._parts.hands.of(child)
        self._parts.wake()

    def began(self, child: Child, key: Key) -> None:
        self._parts.hands.began(child, key)

    def ended(self, child: Child, key: Key, ending: Ending) -> None:
        held = self._parts.hands.take_back(child, key)
        if held is not None and held.stopping is not None:
            self._settle_soon(held, Kill(reason=held.stopping, pid=child.pid, task_id=key.task_id), None)
        elif held is not None:
            self._parts.hands.learn(held, ending.run_ms)
            self._parts.outcomes.ended(held, ending)
        self._parts.wake()

    def recalled(self, child: Child, keys: Sequence[Key]) -> None:
        """Nothing of these has run: what was to be stopped goes back, the rest starts anew where a child is idle."""
        hands = self._parts.hands
        taken = [held for key in keys if (held := hands.take_back(child, key)) is not None]
        # A row that is no longer ours is refused there; one that an operator wants again is not to begin here first.
        self._parts.returns.add(held for held in taken if not _may_begin(held))
        others = [other for other in self._parts.room.children() if other is not child]
        self._hand_on([held for held in taken if _may_begin(held)], others)
        if taken:
            worker_id = str(self._parts.identity.worker_id)
            self._parts.reporter.emit(events.ChunkRecalled(worker_id=worker_id, pid=child.pid, unbegun=len(taken)))
        self._parts.wake()

    def _hand_on(self, helds: Sequence[Held], children: Sequence[Child]) -> None:
        """One to each child that is idle, the others back into the queue."""
        hands, returns = self._parts.hands, self._parts.returns
        idle = [] if self._parts.room.is_closed else [child for child in children if not hands.of(child).held]
        for held, child in zip(helds, idle, strict=False):
            held.stopping = None  # it was late through no fault of its own, and its time counts anew
            returns.add(hands.hand_over(child, [held]))
        returns.add(helds[len(idle) :])

    def beat(self, child: Child, keys: Sequence[Key]) -> None:
        """The child's own clock of silence counts it; nothing is written for a single beat."""

    def said(self, child: Child, key: Key | None, stream: Stream, line: str) -> None:
        level = logging.WARNING if stream == "stderr" else logging.INFO
        output.log(level, "%s", line, extra={"task_id": key.task_id if key else None, "pid": child.pid})

    def died(self, child: Child, death: ChildDied) -> None:
        occupancy = self._parts.hands.forget(child)
        for key in death.unbegun:
            if (held := occupancy.held.get(key)) is not None:
                held.silence()
                self._parts.returns.add([held])
        begun = [held for key in death.begun if (held := occupancy.held.get(key)) is not None]
        verdict = death_of(death, occupancy.kill)
        for held in begun:
            held.silence()
            self._settle_soon(held, verdict, death)
        self._parts.wake()

    def _settle_soon(self, held: Held, verdict: Death, death: ChildDied | None) -> None:
        task = asyncio.create_task(self._settle(held, verdict, death))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _settle(self, held: Held, verdict: Death, death: ChildDied | None) -> None:
        settling = self._parts.settling
        earlier = await self._earlier_crashes(held)
        if death is not None:
            settling.tell_death(held, verdict, death)
        match settling.settle(held, verdict, earlier=earlier):
            case HandBack():
                self._parts.returns.add([held])
            case Drop():
                self._parts.desk.drop(held)
            case Requeue():
                await self._parts.requeues.put_back(held)
            case Settle():
                pass  # its outcome is on the way
        self._parts.wake()

    async def _earlier_crashes(self, held: Held) -> tuple[str, ...]:
        try:
            return await self._parts.settling.earlier_crashes(held)
        except HorsiesError:
            return ()  # the causes are for people; the verdict does not wait for them


def _may_begin(held: Held) -> bool:
    return held.stopping is None or held.stopping is KillReason.TIMEOUT
