"""A database in which time passes at a word: every instant in its rows is moved back."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import uuid4

import asyncpg
from hypothesis import strategies as st

from horsies.model.capacity import QueueRoom
from horsies.model.recovery.fleet import WorkerJudge
from horsies.model.settings import RecoveryConfig
from horsies.model.task import TaskAttemptOutcome
from horsies.store.claims import ClaimRequest, ClaimStore, Expiry, Finish, FinishStore, Hold, Start
from horsies.store.connection import Link
from horsies.store.database import Database
from horsies.store.workers import Beat, BeatStore, FleetStore, Lease, WorkerRun, WorkerState
from tests.support.task_model import (
    CLAIMED,
    CRASHED,
    FAILED,
    LEASE,
    MAX_CRASHES,
    OK,
    QUEUES,
    THRESHOLD,
    WISHES,
    StoredAttempt,
    StoredTask,
    Tables,
    Wish,
    delay_after,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
    from uuid import UUID

    from horsies.store.claims import ClaimedRow, MovedRow
    from tests.support.store import Connection


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
class Stage:
    """One database and one event loop for many short lives."""

    database: Database
    _runner: asyncio.Runner
    _connection: Connection
    _ageing: tuple[str, ...]

    @classmethod
    @contextmanager
    def open(cls, url: str, database_of: Callable[[Link], Database] = Database) -> Generator[Stage]:
        with asyncio.Runner() as runner:
            connection = runner.run(asyncpg.connect(url))
            database = database_of(Link(url=url, masked_url=url))
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

    async def age(self) -> None:
        """Let one tick pass."""
        for statement in self._ageing:
            await self._connection.execute(statement, timedelta(seconds=TICK_S))

    async def tables(self) -> Tables:
        fetch = self._connection.fetch
        return Tables(
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


class Phase(Enum):
    """How far a task has come in the hands of a worker."""

    CLAIMED = auto()
    HANDED = auto()
    """RUNNING in the table; its code has not begun."""
    BEGUN = auto()


class Condition(Enum):
    AWAKE = auto()
    STANDING_STILL = auto()
    DEAD = auto()


class Puppet:
    """A worker. It remembers what it was told until it is told otherwise, however long it stood still."""

    def __init__(self, database: Database, *, number: int) -> None:
        self.condition = Condition.AWAKE
        self.held: dict[Hold, Phase] = {}
        self.listens_since = 0.0
        self.ids: list[UUID] = []
        """The newest last: one that was declared lost goes on under another."""
        self._number = number
        self._claims, self._finishes = ClaimStore(database), FinishStore(database)
        self._fleet, self._beats = FleetStore(database), BeatStore(database=database, hostname=HOST)

    def __repr__(self) -> str:
        return f"worker {self._number}"

    def judge(self, now: float) -> WorkerJudge:
        heard_for = timedelta(seconds=(now - self.listens_since) * TICK_S)
        since = datetime.now(UTC) - heard_for
        return WorkerJudge(worker_id=self.ids[-1], config=RECOVERY, listening_since=since)

    async def join(self, now: float) -> None:
        """Begin to listen, under an id of its own."""
        self.ids.append(uuid4())
        self.listens_since = now
        run = WorkerRun(
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

    async def beat_for_itself(self, now: float) -> None:
        beat = await self._fleet.beat(self.ids[-1], {})
        if beat is None or beat.is_lost:
            await self.join(now)

    async def beat(self) -> dict[Hold, bool]:
        """Beat for everything in hand; returns of each whether it is still held."""
        waiting = [hold for hold, phase in self.held.items() if phase is Phase.CLAIMED]
        running = [hold for hold, phase in self.held.items() if phase is not Phase.CLAIMED]
        lease = Lease(length_s=LEASE * TICK_S, longest_age_s=1000 * TICK_S)
        answers = [
            *(await self._beats.claimer_beats(_beats(waiting), lease=lease) if waiting else ()),
            *(await self._beats.runner_beats(_beats(running)) if running else ()),
        ]
        is_held = {(each.id, each.claim_token): each.is_held for each in answers}
        return {hold: is_held[hold.task_id, hold.claim_token] for hold in (*waiting, *running)}

    async def claim(self, count: int, *, starts: bool, has_lease: bool) -> list[ClaimedRow]:
        return await self._claims.claim(
            ClaimRequest(
                worker_id=self.ids[-1],
                hostname=HOST,
                queues=[QueueRoom(name=name, room=count) for name in QUEUES],
                limit=count,
                pids=[PID] * count if starts else [],
                lease_s=LEASE * TICK_S if has_lease else None,
            )
        )

    async def start(self, hold: Hold) -> bool:
        return bool(await self._claims.start([Start(hold=hold, pid=PID)], hostname=HOST))

    async def expire(self, hold: Hold) -> bool:
        return bool(await self._claims.expire([Expiry(hold=hold, document=ERR)]))

    async def finish(self, hold: Hold, code: str, *, asks_again: bool) -> bool:
        """Store the end of an execution; whether it was taken."""
        is_ok = code == OK
        finish = Finish(
            hold=hold,
            outcome=TaskAttemptOutcome.COMPLETED if is_ok else TaskAttemptOutcome.FAILED,
            document=f'{{"ok": {hold.claim_token}}}' if is_ok else ERR,
            error_code=None if is_ok else code,
            retry_delay_s=delay_after(code) * TICK_S if asks_again else None,
            poison_document=ERR if code == CRASHED else None,
        )
        return bool(await self._finishes.finish([finish], max_crashes=MAX_CRASHES))

    async def put_back(self, hold: Hold, phase: Phase) -> bool:
        """Give up what has not begun; whether it was taken back."""
        release = self._claims.release if phase is Phase.CLAIMED else self._claims.give_back
        return bool(await release([hold]))

    async def reconcile(self) -> list[Hold]:
        """Give back what names us and what we never heard of; returns what that was."""
        owned = [(await self._claims.owned(worker_id), worker_id) for worker_id in self.ids]
        unheard = [
            (row.status, hold) for rows, owner in owned for row in rows if (hold := _hold(row, owner)) not in self.held
        ]
        for status, hold in unheard:
            await self.put_back(hold, Phase.CLAIMED if status == CLAIMED else Phase.HANDED)
        return [hold for _, hold in unheard]

    async def say_that_it_stopped(self) -> None:
        for worker_id in self.ids:
            await self._fleet.set_state(worker_id, WorkerState.STOPPED)


def _beats(holds: Iterable[Hold]) -> Sequence[Beat]:
    return [Beat(hold=hold, pid=PID) for hold in holds]


def _hold(row: MovedRow, worker_id: UUID) -> Hold:
    return Hold(task_id=row.id, claim_token=row.claim_token, worker_id=worker_id)


# What is drawn by lot in the lives of workers, and in those of their operators.

MOST_UNFINISHED: Final = 3
"""Few, so that much happens to each."""


class Blow(Enum):
    """What may happen to a worker."""

    STAND_STILL = auto()
    KILL = auto()
    STOP = auto()


class Word(Enum):
    """What an operator may say."""

    CANCEL = auto()
    REQUEUE = auto()
    PAUSE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a worker goes on, whatever is next."""

    wish: Wish = field(default_factory=Wish)
    """What is sent before a claim, so that there is something to claim."""
    count: int = MOST_UNFINISHED
    phase: Phase = Phase.BEGUN
    has_lease: bool = False
    is_heard: bool = True
    """Whether the answer to a claim arrives."""
    gives_up: bool = False
    code: str = OK
    times: int = 1
    """The end of a task is told again where nobody heard the answer."""


PLANS = st.builds(
    Plan,
    wish=WISHES,
    count=st.integers(1, 3),
    phase=st.sampled_from([Phase.BEGUN, Phase.BEGUN, Phase.HANDED, Phase.CLAIMED]),
    has_lease=st.booleans(),
    is_heard=st.sampled_from([True, True, True, False]),
    gives_up=st.sampled_from([False, False, True]),
    code=st.sampled_from([OK, FAILED, CRASHED]),
    times=st.sampled_from([1, 1, 2]),
)
