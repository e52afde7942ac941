"""A child pool with the tasks of `pool_app`, whose events are recorded and can be awaited."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from horsies.engine.in_flight import Chunk, ChunkTask, CompletedTask
from horsies.engine.pool.child import Child, ChildExit
from horsies.engine.pool.pool import ChildPool
from horsies.engine.pool.protocol import (
    OUTPUT_LEVELS,
    Assignment,
    AttemptKey,
    ChildSpec,
    EncodedOutcome,
    LogLine,
    TaskDetails,
    encode_details,
)
from horsies.model.task import TaskAttemptOutcome

# ruff: noqa: ARG002  # listeners ignore some arguments


APP = f"{Path(__file__).with_name('pool_app.py')}:app"


def assignment(task_name: str, *args: object, **details: Any) -> Assignment:
    """An assignment of a task; `details` are fields of `TaskDetails`."""
    stored = encode_details(TaskDetails(**details)) if details else None
    sent_at = datetime.now(UTC)
    return Assignment(str(uuid4()), 1, task_name, "default", json.dumps(args), "{}", sent_at, stored)


class KeyedChunk(Chunk):
    """A chunk that remembers the keys of its tasks."""

    numbers = count()

    def __init__(self, assignments: Sequence[Assignment], child: Child) -> None:
        super().__init__(next(self.numbers), cast("Any", assignments), uuid4(), child)
        self.keys = [key_of(given) for given in assignments]


def key_of(given: Assignment) -> AttemptKey:
    return AttemptKey(given.task_id, given.claim_token)


def keys_of(tasks: Iterable[ChunkTask]) -> tuple[AttemptKey, ...]:
    return tuple(cast("KeyedChunk", chunk).keys[position] for chunk, position in tasks)


class PoolEvents:
    """Records the events of a pool and lets tests wait for them."""

    def __init__(self) -> None:
        self.begun: list[AttemptKey] = []
        self.outcomes: dict[AttemptKey, EncodedOutcome] = {}
        self.run_times_ms: list[float] = []
        self.exits: dict[int, ChildExit] = {}
        self.recalled: list[AttemptKey] = []
        self.lines: list[tuple[str | None, str, str]] = []
        self.ready_pids: list[int] = []
        self.fork_server_events: list[str | tuple[int, str]] = []
        """Pid and reason of each loss, "restored" for each replacement."""
        self._changed = asyncio.Event()

    async def until(self, holds: Callable[[], bool], *, within_s: float = 20.0) -> None:
        async with asyncio.timeout(within_s):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    def on_ready(self, child: Child) -> None:
        self.ready_pids.append(child.pid)
        self._changed.set()

    def on_degraded_changed(self) -> None:
        self._changed.set()

    def on_fork_server_lost(self, pid: int, why: str) -> None:
        self.fork_server_events.append((pid, why))
        self._changed.set()

    def on_fork_server_restored(self) -> None:
        self.fork_server_events.append("restored")
        self._changed.set()

    def on_began(self, began: Sequence[tuple[Chunk, int]]) -> None:
        self.begun += keys_of(ChunkTask(*task) for task in began)
        self._changed.set()

    def on_completed(self, completed: Sequence[CompletedTask]) -> None:
        for chunk, position, document, run_ms in completed:
            outcome = EncodedOutcome(outcome=TaskAttemptOutcome.COMPLETED, document=document)
            self.on_failed(chunk, position, outcome, run_ms)

    def on_failed(self, chunk: Chunk, position: int, outcome: EncodedOutcome, run_ms: float) -> None:
        (key,) = keys_of([ChunkTask(chunk, position)])
        assert key not in self.outcomes
        self.outcomes[key] = outcome
        self.run_times_ms.append(run_ms)
        self._changed.set()

    def on_recalled(self, child: Child, tasks: Sequence[ChunkTask]) -> None:
        self.recalled += keys_of(tasks)
        self._changed.set()

    def on_output(self, child: Child, line: LogLine) -> None:
        stream = "stdout" if line.level == OUTPUT_LEVELS["stdout"] else "stderr"
        self.lines.append((line.task and line.task.task_id, stream, line.message))
        self._changed.set()

    def on_exit(self, child: Child, child_exit: ChildExit) -> None:
        self.exits[child.pid] = child_exit
        self._changed.set()


class PoolHarness:
    """A pool with its recorded events and common test steps."""

    def __init__(self, pool: ChildPool, events: PoolEvents) -> None:
        self.pool = pool
        self.events = events

    @property
    def child(self) -> Child:
        """The first child that accepts work."""
        return self.free[0]

    @property
    def free(self) -> list[Child]:
        return sorted((child for child in self.pool.children if child.accepts_work), key=lambda child: child.pid)

    def give(self, task_name: str, *args: object, to: Child | None = None) -> AttemptKey:
        given = assignment(task_name, *args)
        self.send([given], to=to)
        return key_of(given)

    def send(self, assignments: Sequence[Assignment], *, to: Child | None = None) -> KeyedChunk:
        """Send tasks to a child as one chunk."""
        child = to or self.child
        chunk = KeyedChunk(assignments, child)
        child.run(chunk)
        return chunk

    async def wait_for_outcome(self, key: AttemptKey) -> EncodedOutcome:
        await self.events.until(lambda: key in self.events.outcomes)
        return self.events.outcomes[key]

    async def value(self, key: AttemptKey) -> Any:
        return json.loads((await self.wait_for_outcome(key)).document)["ok"]

    async def wait_for_exit(self, pid: int) -> ChildExit:
        await self.events.until(lambda: pid in self.events.exits)
        return self.events.exits[pid]

    async def begun(self, *keys: AttemptKey) -> None:
        await self.events.until(lambda: set(keys) <= set(self.events.begun))

    async def run(self, task_name: str, *args: object) -> EncodedOutcome:
        return await self.wait_for_outcome(self.give(task_name, *args))


@asynccontextmanager
async def running_pool(size: int = 1, **spec: Any) -> AsyncGenerator[PoolHarness]:
    """A pool with the tasks of `pool_app`; killed at the end."""
    events = PoolEvents()
    usual: dict[str, Any] = {"app_locator": APP}
    pool = ChildPool(ChildSpec(**usual | spec), size, events)
    try:
        await pool.start()
        yield PoolHarness(pool, events)
    finally:
        await pool.kill_all("the test is over")


# A process that tests kill: it prints the pids of two busy children and of the programs their tasks started.


async def main() -> None:
    async with running_pool(2) as pool:
        for child in pool.free:
            pool.give("spawn_and_wait", to=child)
        await pool.events.until(lambda: len(pool.events.lines) == 2)
        for pid in [child.pid for child in pool.free] + [int(line) for _, _, line in pool.events.lines]:
            print(pid, flush=True)  # noqa: T201
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
