"""A database in which time passes at a word: every instant in its rows is moved back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import Any, Final, TypeVar
from uuid import UUID, uuid4

import asyncpg
from hypothesis import strategies as st

from horsies.model.capacity import QueueCapacity
from horsies.model.recovery.fleet import WorkerObserver
from horsies.model.settings import RecoveryConfig
from horsies.model.task import TaskAttemptOutcome
from horsies.store.claims import (
    ClaimedRow,
    ClaimRef,
    ClaimRequest,
    ClaimStatusRow,
    ClaimStore,
    FinishedAttempt,
    FinishStore,
    TaskExpiry,
    TaskStart,
)
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database
from horsies.store.workers import (
    HeartbeatStore,
    LeaseRenewal,
    TaskHeartbeat,
    WorkerRegistration,
    WorkerState,
    WorkerStore,
)
from tests.support.store import Connection
from tests.support.task_model import (
    CLAIMED,
    CRASHED,
    FAILED,
    LEASE,
    MAX_CRASHES,
    OK,
    QUEUES,
    TASK_SPECS,
    THRESHOLD,
    StoredAttempt,
    StoredTables,
    StoredTask,
    TaskSpec,
    delay_after,
)

R = TypeVar("R")

TICK_S: Final = 600.0
"""So long that no stall of the machine is taken for time that has passed."""

TASKS = """
SELECT id, status, claim_token, claimed_by_worker_id, overlap_possible, retry_count, crash_count,
       (result->>'ok')::integer
  FROM horsies_tasks
"""
ATTEMPTS = "SELECT task_id, claim_token, outcome, will_retry FROM horsies_task_attempts"
WORKERS = "SELECT id FROM horsies_workers"

TABLES = ("horsies_tasks", "horsies_task_attempts", "horsies_heartbeats", "horsies_workers", "horsies_queues")
INSTANTS = """
SELECT table_name::text, string_agg(format('%1$I = %1$I - $1::interval', column_name), ', ') AS moves
  FROM information_schema.columns
 WHERE table_name = ANY($1::text[]) AND data_type = 'timestamp with time zone'
 GROUP BY table_name
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgingDatabase:
    """One database and one event loop for many short lives."""

    database: Database
    _runner: asyncio.Runner
    _connection: Connection
    _ageing: tuple[str, ...]

    @classmethod
    @contextmanager
    def open(cls, url: str, database_of: Callable[[ConnectionSpec], Database] = Database) -> Generator[AgingDatabase]:
        with asyncio.Runner() as runner:
            connection = runner.run(asyncpg.connect(url))
            database = database_of(ConnectionSpec(url=url, masked_url=url))
            moved = runner.run(connection.fetch(INSTANTS, TABLES))
            ageing = tuple(f"UPDATE {row['table_name']} SET {row['moves']}" for row in moved)
            try:
                yield cls(database=database, _runner=runner, _connection=connection, _ageing=ageing)
            finally:
                runner.run(database.close())
                runner.run(connection.close())

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        return self._runner.run(work)

    async def clear(self) -> None:
        """Begin anew; cheaper than another database."""
        await self._connection.execute(f"TRUNCATE {', '.join(TABLES)}, horsies_events")

    async def advance_clock(self) -> None:
        """Let one tick pass."""
        for statement in self._ageing:
            await self._connection.execute(statement, timedelta(seconds=TICK_S))

    async def tables(self) -> StoredTables:
        fetch = self._connection.fetch
        return StoredTables(
            tasks=[StoredTask(*row) for row in await fetch(TASKS)],
            attempts=[StoredAttempt(*row) for row in await fetch(ATTEMPTS)],
            worker_ids=[row["id"] for row in await fetch(WORKERS)],
        )


# Workers reduced to what they hold and what they send; they can be stopped, continued and killed at any moment.

HOST: Final = "here"
PID: Final = 7
ERR: Final = '{"err": {}}'

_THRESHOLD_MS: Final = int(THRESHOLD * TICK_S * 1000)
RECOVERY: Final = RecoveryConfig(
    claimed_stale_threshold_ms=_THRESHOLD_MS,
    running_stale_threshold_ms=_THRESHOLD_MS,
    worker_stale_threshold_ms=_THRESHOLD_MS,
    max_crashes=MAX_CRASHES,
)


class TaskPhase(Enum):
    """How far a task has come in the hands of a worker."""

    CLAIMED = auto()
    HANDED = auto()
    """RUNNING in the table; its code has not begun."""
    BEGUN = auto()


class WorkerCondition(Enum):
    AWAKE = auto()
    STANDING_STILL = auto()
    DEAD = auto()


class SimulatedWorker:
    """A worker. It remembers what it was told until it is told otherwise, however long it stood still."""

    def __init__(self, database: Database, *, number: int) -> None:
        self.condition = WorkerCondition.AWAKE
        self.in_flight: dict[ClaimRef, TaskPhase] = {}
        self.listening_since = 0.0
        self.ids: list[UUID] = []
        """The newest last: one that was declared lost goes on under another."""
        self._number = number
        self._claims, self._finishes = ClaimStore(database), FinishStore(database)
        self._fleet, self._beats = WorkerStore(database), HeartbeatStore(database=database, hostname=HOST)

    def __repr__(self) -> str:
        return f"worker {self._number}"

    def observer(self, now: float) -> WorkerObserver:
        heard_for = timedelta(seconds=(now - self.listening_since) * TICK_S)
        since = datetime.now(UTC) - heard_for
        return WorkerObserver(worker_id=self.ids[-1], config=RECOVERY, listening_since=since)

    async def join(self, now: float) -> None:
        """Begin to listen, under an id of its own."""
        self.ids.append(uuid4())
        self.listening_since = now
        run = WorkerRegistration(
            worker_id=self.ids[-1],
            hostname=HOST,
            pid=PID,
            version="1",
            queues=QUEUES,
            processes=1,
            recovery_config=RECOVERY.model_dump(mode="json"),
        )
        await self._fleet.register(run)
        await self._fleet.set_state(self.ids[-1], WorkerState.RUNNING)

    async def send_worker_heartbeat(self, now: float) -> None:
        beat = await self._fleet.heartbeat(self.ids[-1], {})
        if beat is None or beat.is_lost:
            await self.join(now)

    async def send_task_heartbeats(self) -> dict[ClaimRef, bool]:
        """Beat for everything in hand; returns of each whether it is still held."""
        waiting = [hold for hold, phase in self.in_flight.items() if phase is TaskPhase.CLAIMED]
        running = [hold for hold, phase in self.in_flight.items() if phase is not TaskPhase.CLAIMED]
        lease = LeaseRenewal(length_s=LEASE * TICK_S, max_claim_age_s=1000 * TICK_S)
        answers = [
            *(await self._beats.send_claimer_heartbeats(_beats(waiting), lease=lease) if waiting else ()),
            *(await self._beats.send_runner_heartbeats(_beats(running)) if running else ()),
        ]
        is_held = {(each.id, each.claim_token): each.is_held for each in answers}
        return {hold: is_held[hold.task_id, hold.claim_token] for hold in (*waiting, *running)}

    async def claim(self, count: int, *, starts: bool, has_lease: bool) -> list[ClaimedRow]:
        return await self._claims.claim(
            ClaimRequest(
                worker_id=self.ids[-1],
                hostname=HOST,
                queues=[QueueCapacity(name=name, capacity=count) for name in QUEUES],
                limit=count,
                pids=[PID] * count if starts else [],
                lease_s=LEASE * TICK_S if has_lease else None,
            )
        )

    async def start(self, hold: ClaimRef) -> bool:
        return bool(await self._claims.start([TaskStart(claim=hold, pid=PID)], hostname=HOST))

    async def expire(self, hold: ClaimRef) -> bool:
        return bool(await self._claims.expire([TaskExpiry(claim=hold, document=ERR)]))

    async def finish(self, hold: ClaimRef, code: str, *, asks_again: bool) -> bool:
        """Store the end of an execution; whether it was taken."""
        is_ok = code == OK
        finish = FinishedAttempt(
            claim=hold,
            outcome=TaskAttemptOutcome.COMPLETED if is_ok else TaskAttemptOutcome.FAILED,
            document=f'{{"ok": {hold.claim_token}}}' if is_ok else ERR,
            error_code=None if is_ok else code,
            retry_delay_s=delay_after(code) * TICK_S if asks_again else None,
            poison_document=ERR if code == CRASHED else None,
        )
        return bool(await self._finishes.finish([finish], max_crashes=MAX_CRASHES))

    async def release(self, hold: ClaimRef, phase: TaskPhase) -> bool:
        """Give up what has not begun; whether it was taken back."""
        release = self._claims.release if phase is TaskPhase.CLAIMED else self._claims.release_running
        return bool(await release([hold]))

    async def reconcile(self) -> list[ClaimRef]:
        """Give back what names us and what we never heard of; returns what that was."""
        owned = [(await self._claims.owned(worker_id), worker_id) for worker_id in self.ids]
        unheard = [
            (row.status, hold)
            for rows, owner in owned
            for row in rows
            if (hold := _claim_ref(row, owner)) not in self.in_flight
        ]
        for status, hold in unheard:
            await self.release(hold, TaskPhase.CLAIMED if status == CLAIMED else TaskPhase.HANDED)
        return [hold for _, hold in unheard]

    async def report_stopped(self) -> None:
        for worker_id in self.ids:
            await self._fleet.set_state(worker_id, WorkerState.STOPPED)


def _beats(holds: Iterable[ClaimRef]) -> Sequence[TaskHeartbeat]:
    return [TaskHeartbeat(claim=hold, pid=PID) for hold in holds]


def _claim_ref(row: ClaimStatusRow, worker_id: UUID) -> ClaimRef:
    return ClaimRef(task_id=row.id, claim_token=row.claim_token, worker_id=worker_id)


# What is drawn by lot in the lives of workers, and in those of their operators.

MOST_UNFINISHED: Final = 3
"""Few, so that much happens to each."""


class WorkerFault(Enum):
    """What may happen to a worker."""

    STAND_STILL = auto()
    KILL = auto()
    STOP = auto()


class OperatorAction(Enum):
    """What an operator may say."""

    CANCEL = auto()
    REQUEUE = auto()
    PAUSE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChoices:
    """How a worker goes on, whatever is next."""

    task_spec: TaskSpec = field(default_factory=TaskSpec)
    """What is sent before a claim, so that there is something to claim."""
    count: int = MOST_UNFINISHED
    phase: TaskPhase = TaskPhase.BEGUN
    has_lease: bool = False
    answer_arrives: bool = True
    """Whether the answer to a claim arrives."""
    releases: bool = False
    code: str = OK
    times: int = 1
    """The end of a task is told again where nobody heard the answer."""


STEP_CHOICES = st.builds(
    StepChoices,
    spec=TASK_SPECS,
    count=st.integers(1, 3),
    phase=st.sampled_from([TaskPhase.BEGUN, TaskPhase.BEGUN, TaskPhase.HANDED, TaskPhase.CLAIMED]),
    has_lease=st.booleans(),
    is_heard=st.sampled_from([True, True, True, False]),
    gives_up=st.sampled_from([False, False, True]),
    code=st.sampled_from([OK, FAILED, CRASHED]),
    times=st.sampled_from([1, 1, 2]),
)
