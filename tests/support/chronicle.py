"""What was accepted, who holds what, and which executions began and ended; the queue's tables are judged by it."""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.support.lives import CLAIMED, MAX_CRASHES, PENDING, RUNNING, THRESHOLD, Life

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from uuid import UUID

    from horsies.store.claims import Hold
    from tests.support.wishes import Wish

WINDOW: Final = 4.5
"""How long what has ended is kept."""


class StoredTask(NamedTuple):
    """A task as the table has it; `result` is the claim token that its result tells of."""

    id: UUID
    status: str
    claim_token: int
    owner_id: UUID | None
    overlap_possible: bool
    retry_count: int
    crash_count: int
    result: int | None


class StoredAttempt(NamedTuple):
    task_id: UUID
    claim_token: int
    outcome: str
    will_retry: bool


class Tables(NamedTuple):
    """Everything that is judged after a step."""

    tasks: Sequence[StoredTask]
    attempts: Sequence[StoredAttempt]
    worker_ids: Collection[UUID]


class Chronicle:
    """The lives of all tasks, and the processes that work on them."""

    def __init__(self) -> None:
        self.now = 0
        self.lives: dict[UUID, Life] = {}
        self.paused: set[str] = set()
        self.stopped: set[UUID] = set()
        """Workers that said so."""
        self._accepted = 0
        self._begun: set[Hold] = set()
        self._at_work: set[Hold] = set()
        self._swept_at = -inf
        """When somebody last judged who had listened for long enough."""

    @property
    def unfinished(self) -> list[Life]:
        return [life for life in self.lives.values() if not life.status.is_terminal]

    def accept(self, task_id: UUID, wish: Wish) -> None:
        self._accepted += 1
        due_at, good_until = self.now + wish.delay, self.now + wish.good_for
        self.lives[task_id] = Life(number=self._accepted, id=task_id, wish=wish, due_at=due_at, good_until=good_until)

    def claimable(self) -> list[Life]:
        return [life for life in self.unfinished if life.wish.queue not in self.paused and life.is_claimable(self.now)]

    def held_by(self, worker_ids: Collection[UUID]) -> list[Life]:
        """What names one of these in the table."""
        return [life for life in self.unfinished if life.status is not PENDING and life.owner_id in worker_ids]

    def begin(self, hold: Hold) -> Iterator[str]:
        """A process starts on a task; yields what must not be so."""
        others = [each for each in self._at_work if each.task_id == hold.task_id]
        life = self.lives.get(hold.task_id)
        if others and life is not None and not life.may_overlap:
            yield f"C3 {life} began under claim {hold.claim_token} and was at work under {others[0].claim_token}"
        if hold in self._begun:
            yield f"C5 {life} began twice under claim {hold.claim_token}"
        self._begun.add(hold)
        self._at_work.add(hold)

    def leave_off(self, hold: Hold) -> None:
        """The process is done with it, or dead."""
        self._at_work.discard(hold)

    def sweep(self, listening_since: float) -> set[UUID]:
        """Settle what is stale for a judge who has listened since then; returns what is settled."""
        if self.now - listening_since >= THRESHOLD:
            self._swept_at = self.now
        stale = [
            life for life in self.unfinished if life.status is not PENDING and self._is_stale(life, listening_since)
        ]
        for life in stale:
            life.condemn(self.now, is_surely_gone=life.owner_id in self.stopped)
        late = [life for life in self.unfinished if life.status is PENDING and life.good_until <= self.now]
        for life in late:
            life.expire(self.now)
        return {life.id for life in (*stale, *late)}

    def forget_the_old(self) -> None:
        """What ended long ago is no longer kept."""
        self.lives = {key: life for key, life in self.lives.items() if self.now - life.ended_at < WINDOW}

    def faults(self, tables: Tables) -> list[str]:
        """Everything in the tables that breaks C1 to C6."""
        known = [(self.lives[row.id], row) for row in tables.tasks if row.id in self.lives]
        return [
            *self._lost_or_made_up(tables.tasks),
            *(fault for life, row in known for fault in _misplaced(life, row)),
            *self._outcomes_twice(tables.attempts),
            *(fault for life, row in known for fault in _beyond_policy(life, row)),
            *self._miscounted(tables.attempts),
            *(fault for life, row in known for fault in self._orphaned(life, row, tables.worker_ids)),
        ]

    def _is_stale(self, life: Life, listening_since: float) -> bool:
        return life.owner_id in self.stopped or self.now - max(life.heard_at, listening_since) >= THRESHOLD

    def _lost_or_made_up(self, tasks: Sequence[StoredTask]) -> Iterator[str]:
        stored = {row.id for row in tasks}
        yield from (f"C1 {life} is gone" for life in self.lives.values() if life.id not in stored)
        yield from (f"C1 {each} is there and should not be" for each in stored - self.lives.keys())

    def _outcomes_twice(self, attempts: Sequence[StoredAttempt]) -> Iterator[str]:
        last = Counter(each.task_id for each in attempts if not each.will_retry)
        yield from (f"C2 {self._name(key)} has {count} outcomes" for key, count in last.items() if count > 1)
        runs = Counter((each.task_id, each.claim_token) for each in attempts)
        twice = [(self._name(key), token, count) for (key, token), count in runs.items() if count > 1]
        yield from (f"C2 {name} ended {count} times under claim {token}" for name, token, count in twice)

    def _miscounted(self, attempts: Sequence[StoredAttempt]) -> Iterator[str]:
        stored = set(attempts)
        ended = {
            StoredAttempt(life.id, token, *end) for life in self.lives.values() for token, end in life.attempts.items()
        }
        yield from (f"C5 {self._name(each.task_id)} has no attempt {each[1:]}" for each in ended - stored)
        yield from (f"C5 {self._name(each.task_id)} has an attempt {each[1:]}" for each in stored - ended)

    def _orphaned(self, life: Life, row: StoredTask, worker_ids: Collection[UUID]) -> Iterator[str]:
        if row.status not in {CLAIMED, RUNNING}:
            return
        if self._swept_at - life.heard_at >= THRESHOLD:
            yield f"C6 {life} has a dead owner, and somebody has looked"
        if row.owner_id not in worker_ids:
            yield f"C6 nothing is known of the owner of {life}"

    def _name(self, task_id: UUID) -> str:
        return str(self.lives.get(task_id, task_id))


def _misplaced(life: Life, row: StoredTask) -> Iterator[str]:
    stands, should = (row.status, row.claim_token), (life.status.value, life.token)
    if stands != should:
        yield f"C1 {life} stands as {stands}, not as {should}"
    if row.result != life.result:
        yield f"C2 {life} has the result of claim {row.result}, not of {life.result}"
    if row.overlap_possible != life.may_overlap:
        yield f"C3 {life} says {row.overlap_possible} of an overlap, not {life.may_overlap}"


def _beyond_policy(life: Life, row: StoredTask) -> Iterator[str]:
    if row.retry_count > life.wish.retries:
        yield f"C4 {life} was retried {row.retry_count} times of {life.wish.retries}"
    if row.crash_count > MAX_CRASHES:
        yield f"C4 {life} crashed {row.crash_count} times of {MAX_CRASHES}"
    spent, should = (row.retry_count, row.crash_count), (life.spent, life.crashes)
    if spent != should:
        yield f"C4 {life} has {spent} retries and crashes, not {should}"
