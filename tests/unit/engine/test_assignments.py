"""Assigning claimed tasks to a child: when their timeouts start, and whether they are recalled."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast
from uuid import uuid4

import pytest

from horsies.engine.in_flight import Assignments, Chunk, InFlight, InFlightTask
from horsies.engine.pool.child import Child
from horsies.engine.pool.protocol import TaskDetails, encode_details
from horsies.model.capacity import ClaimLimits, DurationEstimates
from horsies.model.retry import KillReason
from horsies.store.claims import ClaimedRow

DETAILS = encode_details(TaskDetails(task_options={"timeout_ms": 60_000}))


@dataclass(eq=False)
class IdleChild:
    """Accepts chunks without running them."""

    pid: int = 1
    chunks: tuple[Chunk, ...] = ()
    tasks_in_child: int = 0
    is_idle: bool = True
    ran: list[Chunk] = field(default_factory=list[Chunk])

    def run(self, chunk: Chunk) -> None:
        self.ran.append(chunk)

    def recall(self) -> None: ...

    def cancel(self, chunk: Chunk, position: int) -> None: ...

    def kill(self, why: str) -> None: ...


def row_with_timeout(task_name: str) -> ClaimedRow:
    columns: dict[str, Any] = dict.fromkeys(ClaimedRow._fields, 0)
    columns |= {"id": uuid4(), "task_name": task_name, "sent_at": datetime.now(UTC), "details": DETAILS}
    return ClaimedRow(**columns)


def short_coroutines() -> Assignments:
    durations = DurationEstimates()
    durations.observe(task_name="nap", queue_name="default", run_ms=1.0)
    return Assignments(InFlight(), durations, async_tasks={"nap"}, limits=ClaimLimits(async_concurrency=2))


async def test_timeout_of_a_coroutine_that_waits_in_the_child_starts_when_it_begins() -> None:
    assignments, child = short_coroutines(), IdleChild()
    assert not assignments.assign(cast("Child", child), [row_with_timeout("nap") for _ in range(4)], uuid4())
    (chunk,) = child.ran
    assert sorted(chunk.timers) == [0, 1]
    chunk.begin(2)
    assignments.on_began([(chunk, 2)])
    assert sorted(chunk.timers) == [0, 1, 2]
    chunk.lose()


async def test_task_that_ended_with_the_report_of_its_start_gets_no_timeout() -> None:
    assignments, child = short_coroutines(), IdleChild()
    assignments.assign(cast("Child", child), [row_with_timeout("nap") for _ in range(4)], uuid4())
    (chunk,) = child.ran
    chunk.begin(2)
    chunk.end(2)
    assignments.on_began([(chunk, 2)])
    assert sorted(chunk.timers) == [0, 1]
    chunk.lose()


async def test_coroutine_that_waits_for_others_is_recalled() -> None:
    assignments, child = short_coroutines(), IdleChild()
    assignments.assign(cast("Child", child), [row_with_timeout("nap") for _ in range(2)], uuid4())
    busy = IdleChild(chunks=tuple(child.ran), tasks_in_child=2, is_idle=False)
    assert not assignments.assign(cast("Child", busy), [row_with_timeout("nap")], uuid4())
    (waiting,) = busy.ran
    assert waiting.recall_timer is not None
    assert not waiting.timers
    for chunk in (*child.ran, waiting):
        chunk.lose()


@pytest.mark.parametrize("task_name", ["nap", "work"])
async def test_stopped_task_is_stopping_until_it_leaves_its_child(task_name: str) -> None:
    """A coroutine is cancelled, the child of a function is killed; neither ends at once."""
    assignments, child = short_coroutines(), IdleChild()
    assignments.assign(cast("Child", child), [row_with_timeout(task_name)], uuid4())
    (chunk,) = child.ran
    chunk.begin(0)
    task = InFlightTask(chunk.rows[0], chunk.worker_id, chunk)
    assert not assignments.is_stopping(task)
    assignments.stop_task(task, KillReason.ROW_LOST)
    assert assignments.is_stopping(task)
    chunk.lose()
