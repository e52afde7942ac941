"""A database with a simulated clock, and simulated workers, for the state machine tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import Any, Final, TypeVar
from uuid import UUID, uuid4

import asyncpg
from hypothesis import strategies as st

from horsies.model.capacity import QueueCapacity
from horsies.model.recovery.fleet import HeartbeatSeries, WorkerObserver
from horsies.model.retry import CRASH, SHUTDOWN, AttemptState, Cancel, Cause, Fail, Retry, decide_retry
from horsies.model.settings import RecoveryConfig
from horsies.model.task import TaskAttemptOutcome
from horsies.store.claims import (
    ClaimedRow,
    ClaimRef,
    ClaimRequest,
    ClaimStatusRow,
    ClaimStore,
    FinishedAttempt,
)
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database
from horsies.store.workers import (
    HeartbeatReply,
    HeartbeatRole,
    LeaseRenewal,
    WorkerRegistration,
    WorkerState,
    WorkerStore,
)
from tests.support.store import Connection, finish_attempts
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
    ExpectedTask,
    StoredAttempt,
    StoredTables,
    StoredTask,
    TaskSpec,
    retry_policy,
)

R = TypeVar("R")
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""Only the delay of a retry counts, not when it was decided."""

TICK_S: Final = 600.0
"""One unit of simulated time; so long that real time passing on a slow test machine does not matter."""

TASKS = """
SELECT id, status, claim_token, claimed_by_worker_id, overlap_possible, retry_count, crash_count,
       (result->>'ok')::integer
  FROM horsies_tasks
"""
ATTEMPTS = "SELECT task_id, claim_token, outcome, will_retry FROM horsies_task_attempts"
WORKERS = "SELECT id FROM horsies_workers"

TABLES = ("horsies_tasks", "horsies_task_attempts", "horsies_heartbeats", "horsies_workers", "horsies_queues")
TIMESTAMP_COLUMNS = """
SELECT table_name::text, string_agg(format('%1$I = %1$I - $1::interval', column_name), ', ') AS assignments
  FROM information_schema.columns
 WHERE table_name = ANY($1::text[]) AND data_type = 'timestamp with time zone'
 GROUP BY table_name
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgingDatabase:
    """A database whose clock is advanced by moving all stored times back; with its own event loop."""

    database: Database
    _runner: asyncio.Runner
    _connection: Connection
    _age_statements: tuple[str, ...]

    @classmethod
    @contextmanager
    def open(cls, url: str, make_database: Callable[[ConnectionSpec], Database] = Database) -> Generator[AgingDatabase]:
        with asyncio.Runner() as runner:
            connection = runner.run(asyncpg.connect(url))
            database = make_database(ConnectionSpec(url=url, masked_url=url))
            rows = runner.run(connection.fetch(TIMESTAMP_COLUMNS, TABLES))
            statements = tuple(f"UPDATE {row['table_name']} SET {row['assignments']}" for row in rows)
            try:
                yield cls(database=database, _runner=runner, _connection=connection, _age_statements=statements)
            finally:
                runner.run(database.close())
                runner.run(connection.close())

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        return self._runner.run(work)

    async def clear(self) -> None:
        """Delete all rows; cheaper than a new database."""
        await self._connection.execute(f"TRUNCATE {', '.join(TABLES)}, horsies_events")

    async def advance_clock(self) -> None:
        """Advance the clock by one tick."""
        for statement in self._age_statements:
            await self._connection.execute(statement, timedelta(seconds=TICK_S))

    async def tables(self) -> StoredTables:
        fetch = self._connection.fetch
        return StoredTables(
            tasks=[StoredTask(*row) for row in await fetch(TASKS)],
            attempts=[StoredAttempt(*row) for row in await fetch(ATTEMPTS)],
            worker_ids=[row["id"] for row in await fetch(WORKERS)],
        )


# Simulated workers: only their in-flight tasks and their statements. They can be frozen, woken and killed.

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
    """Progress of an in-flight task."""

    CLAIMED = auto()
    STARTED = auto()
    """RUNNING in the database; its code has not begun."""
    BEGUN = auto()


class WorkerCondition(Enum):
    AWAKE = auto()
    FROZEN = auto()
    DEAD = auto()


class SimulatedWorker:
    """A worker that keeps its in-flight tasks, even while frozen, until the database refuses one of its statements."""

    def __init__(self, database: Database, *, number: int) -> None:
        self.condition = WorkerCondition.AWAKE
        self.in_flight: dict[ClaimRef, TaskPhase] = {}
        self.listening_since = 0.0
        self.ids: list[UUID] = []
        """Worker ids, newest last: a worker that was declared lost continues under a new id."""
        self._number = number
        self._claims = ClaimStore(database)
        self._workers = WorkerStore(database)

    def __repr__(self) -> str:
        return f"worker {self._number}"

    def observer(self, now: float) -> WorkerObserver:
        heartbeat_at = datetime.now(UTC)
        since = heartbeat_at - timedelta(seconds=(now - self.listening_since) * TICK_S)
        series = HeartbeatSeries(since=since, last_heartbeat_at=heartbeat_at)
        return WorkerObserver(worker_id=self.ids[-1], config=RECOVERY, series=series)

    async def join(self, now: float) -> None:
        """Register under a new id and start listening."""
        self.ids.append(uuid4())
        self.listening_since = now
        registration = WorkerRegistration(
            worker_id=self.ids[-1],
            hostname=HOST,
            pid=PID,
            version="1",
            queues=QUEUES,
            processes=1,
            recovery_config=RECOVERY.model_dump(mode="json"),
        )
        await self._workers.register(registration)
        await self._workers.set_state(self.ids[-1], WorkerState.RUNNING)

    async def send_worker_heartbeat(self, now: float) -> None:
        stored = await self._workers.heartbeat(self.ids[-1], {})
        if stored is None or stored.is_lost:
            await self.join(now)

    async def send_task_heartbeats(self) -> dict[ClaimRef, bool]:
        """Send heartbeats for all in-flight tasks; returns for each whether its claim is still valid."""
        waiting = {claim_ref: PID for claim_ref, phase in self.in_flight.items() if phase is TaskPhase.CLAIMED}
        running = {claim_ref: PID for claim_ref, phase in self.in_flight.items() if phase is not TaskPhase.CLAIMED}
        lease = LeaseRenewal(length_s=LEASE * TICK_S, max_claim_age_s=1000 * TICK_S)
        send, answers = self._workers.task_heartbeats, list[HeartbeatReply]()
        if waiting:
            answers += await send(HeartbeatRole.CLAIMER, waiting, hostname=HOST, lease=lease)
        if running:
            answers += await send(HeartbeatRole.RUNNER, running, hostname=HOST)
        is_held = {(answer.id, answer.claim_token): answer.is_held for answer in answers}
        return {claim_ref: is_held[claim_ref.task_id, claim_ref.claim_token] for claim_ref in (*waiting, *running)}

    async def claim(self, count: int, *, starts: bool, has_lease: bool) -> list[ClaimedRow]:
        return await self._claims.claim(
            ClaimRequest(
                worker_id=self.ids[-1],
                hostname=HOST,
                queues=[QueueCapacity(name=name, capacity=count) for name in QUEUES],
                limit=count,
                pids=[PID] * count if starts else [],
                lease_s=LEASE * TICK_S if has_lease else None,
                takes_expired_leases=has_lease or not starts,
            )
        )

    async def start(self, claim_ref: ClaimRef) -> bool:
        return bool(await self._claims.start({claim_ref: PID}, hostname=HOST))

    async def expire(self, claim_ref: ClaimRef) -> bool:
        return bool(await self._claims.expire({claim_ref: ERR}))

    async def finish(self, claim_ref: ClaimRef, code: str, task: ExpectedTask | None) -> bool:
        """Store the outcome of an attempt of `task`, as it was when claimed; returns whether it was accepted."""
        is_ok = code == OK
        decision = None if is_ok or task is None else _decide_retry(task, code)
        finish = FinishedAttempt(
            claim=claim_ref,
            outcome=TaskAttemptOutcome.COMPLETED if is_ok else TaskAttemptOutcome.FAILED,
            document=f'{{"ok": {claim_ref.claim_token}}}' if is_ok else ERR,
            error_code=None if is_ok else code,
            retry_delay_s=(decision.at - EPOCH).total_seconds() if isinstance(decision, Retry) else None,
            is_crash=code == CRASHED,
        )
        return bool(await finish_attempts(self._claims, [finish]))

    async def release(self, claim_ref: ClaimRef, phase: TaskPhase) -> bool:
        """Release a task that has not begun; returns whether its claim was still valid."""
        release = self._claims.release if phase is TaskPhase.CLAIMED else self._claims.release_running
        return bool(await release([claim_ref]))

    async def reconcile(self) -> list[ClaimRef]:
        """Release tasks that the database assigns to us but whose claim answer we never received; returns them."""
        owned = [(await self._claims.owned(worker_id), worker_id) for worker_id in self.ids]
        unknown = [
            (row.status, claim_ref)
            for rows, owner in owned
            for row in rows
            if (claim_ref := _claim_ref(row, owner)) not in self.in_flight
        ]
        for status, claim_ref in unknown:
            await self.release(claim_ref, TaskPhase.CLAIMED if status == CLAIMED else TaskPhase.STARTED)
        return [claim_ref for _, claim_ref in unknown]

    async def report_stopped(self) -> None:
        for worker_id in self.ids:
            await self._workers.set_state(worker_id, WorkerState.STOPPED)


def _claim_ref(row: ClaimStatusRow, worker_id: UUID) -> ClaimRef:
    return ClaimRef(task_id=row.id, claim_token=row.claim_token, worker_id=worker_id)


def _decide_retry(task: ExpectedTask, code: str) -> Retry | Fail | Cancel:
    state = AttemptState(
        policy=retry_policy(task.spec, tick_s=TICK_S),
        retry_count=task.retries_used,
        crash_count=task.crashes,
        max_crashes=MAX_CRASHES,
    )
    cause = {CRASHED: CRASH, SHUTDOWN.code: SHUTDOWN}.get(code, Cause(code=code))
    return decide_retry(state, cause, now=EPOCH, jitter=0.0)


# Random choices of the state machine

MAX_UNFINISHED: Final = 3
"""Few tasks, so that many things happen to each."""


class WorkerFault(Enum):
    FREEZE = auto()
    KILL = auto()
    STOP = auto()


class OperatorAction(Enum):
    CANCEL = auto()
    REQUEUE = auto()
    PAUSE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChoices:
    """Choices for the next step of a worker."""

    task_spec: TaskSpec = field(default_factory=TaskSpec)
    """Task to send before a claim, so that there is something to claim."""
    count: int = MAX_UNFINISHED
    phase: TaskPhase = TaskPhase.BEGUN
    has_lease: bool = False
    answer_arrives: bool = True
    releases: bool = False
    code: str = OK
    times: int = 1
    """How often an outcome is sent; 2 simulates a lost answer."""


STEP_CHOICES = st.builds(
    StepChoices,
    task_spec=TASK_SPECS,
    count=st.integers(1, 3),
    phase=st.sampled_from([TaskPhase.BEGUN, TaskPhase.BEGUN, TaskPhase.STARTED, TaskPhase.CLAIMED]),
    has_lease=st.booleans(),
    answer_arrives=st.sampled_from([True, True, True, False]),
    releases=st.sampled_from([False, False, True]),
    code=st.sampled_from([OK, FAILED, CRASHED]),
    times=st.sampled_from([1, 1, 2]),
)
