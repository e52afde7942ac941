"""Tasks in flight: a state machine holds chunks to a simple model, task by task."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from enum import Enum
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from horsies.engine.in_flight import Chunk, ChunkTask, InFlight, InFlightTask, TaskState
from horsies.engine.pool.protocol import ProtocolError
from horsies.model.retry import Cause, RetryPolicy
from horsies.store.claims import ClaimedRow

CHILD: Any = object()


def claimed_row() -> ClaimedRow:
    columns: dict[str, Any] = dict.fromkeys(ClaimedRow._fields, 0)
    columns |= {"id": uuid4(), "claim_token": 1, "sent_at": datetime.now(UTC), "details": None}
    return ClaimedRow(**columns)


class Where(Enum):
    """Where a task is, in the model."""

    PREFETCHED = "prefetched"
    UNASSIGNED = "unassigned"
    WAITING = "waiting"
    RUNNING = "running"
    OUT = "out"
    STORING = "storing"


STATES = {
    TaskState.WAITING: Where.WAITING,
    TaskState.BEGUN: Where.RUNNING,
    TaskState.OUT: Where.OUT,
    TaskState.STORING: Where.STORING,
}


class InFlightMachine(RuleBasedStateMachine):
    """Claims, begins, ends, recalls, releases and crashes in any order."""

    tasks: Bundle[ChunkTask] = Bundle("tasks")
    prefetched: Bundle[InFlightTask] = Bundle("prefetched")

    def __init__(self) -> None:
        super().__init__()
        self.in_flight = InFlight()
        self.worker_id = uuid4()
        self.model: dict[UUID, Where] = {}

    def _id(self, task: ChunkTask) -> UUID:
        return task.chunk.rows[task.position].id

    def _where(self, task: ChunkTask) -> Where | None:
        return self.model.get(self._id(task))

    @rule(target=tasks, size=st.integers(1, 4))
    def assign(self, size: int) -> Any:
        rows = [claimed_row() for _ in range(size)]
        chunk = self.in_flight.add_chunk(CHILD, rows, self.worker_id, coroutines=0, expected_ms=1.0)
        self.model |= dict.fromkeys([row.id for row in rows], Where.WAITING)
        return multiple(*(ChunkTask(chunk, position) for position in range(size)))

    @rule(target=prefetched)
    def prefetch(self) -> InFlightTask:
        row = claimed_row()
        self.in_flight.add_prefetched(row, self.worker_id)
        self.model[row.id] = Where.PREFETCHED
        return InFlightTask(row, self.worker_id)

    @rule(target=prefetched)
    def find_no_child(self) -> InFlightTask:
        (task,) = self.in_flight.add_unassigned([claimed_row()], self.worker_id)
        self.model[task.row.id] = Where.UNASSIGNED
        return task

    @rule(task=consumes(prefetched))
    def release(self, task: InFlightTask) -> None:
        self.in_flight.settle(task)
        del self.model[task.row.id]

    @rule(task=tasks)
    def begin(self, task: ChunkTask) -> None:
        self._report(task, task.chunk.begin, Where.WAITING, Where.RUNNING)

    @rule(task=tasks)
    def end(self, task: ChunkTask) -> None:
        self._report(task, task.chunk.end, Where.RUNNING, Where.OUT)

    @rule(task=tasks)
    def recall(self, task: ChunkTask) -> None:
        self._report(task, task.chunk.recall, Where.WAITING, Where.OUT)

    @rule(task=tasks)
    def store(self, task: ChunkTask) -> None:
        if self._where(task) is Where.OUT:
            task.chunk.states[task.position] = TaskState.STORING
            self.model[self._id(task)] = Where.STORING

    @rule(task=tasks)
    def settle(self, task: ChunkTask) -> None:
        if self._where(task) in (Where.OUT, Where.STORING, None):  # settling again changes nothing
            self.in_flight.settle_in_chunk(task.chunk, task.position)
            self.model.pop(self._id(task), None)

    @rule(task=tasks)
    def lose_the_child(self, task: ChunkTask) -> None:
        task.chunk.lose()
        for row in task.chunk.rows:
            if self.model.get(row.id) in (Where.WAITING, Where.RUNNING):
                self.model[row.id] = Where.OUT

    def _report(self, task: ChunkTask, report: Any, source: Where, target: Where) -> None:
        if self._where(task) is source:
            report(task.position)
            self.model[self._id(task)] = target
        else:
            with pytest.raises(ProtocolError):
                report(task.position)

    @invariant()
    def every_task_is_where_the_model_has_it(self) -> None:
        found = dict.fromkeys([task.row.id for task in self.in_flight.prefetched.values()], Where.PREFETCHED)
        found |= dict.fromkeys([task.row.id for task in self.in_flight.unassigned.values()], Where.UNASSIGNED)
        for chunk in self.in_flight.chunks.values():
            for row, state in zip(chunk.rows, chunk.states, strict=True):
                if state != TaskState.SETTLED:
                    found[row.id] = STATES[TaskState(state)]
        assert found == self.model
        assert {task.row.id for task in self.in_flight} == self.model.keys()

    @invariant()
    def counters_agree_with_the_states(self) -> None:
        for chunk in self.in_flight.chunks.values():
            assert chunk.in_child == len(chunk.remaining())
            assert chunk.unsettled == sum(state != TaskState.SETTLED for state in chunk.states) > 0
        running = {Where.UNASSIGNED, Where.WAITING, Where.RUNNING, Where.OUT}
        assert self.in_flight.is_running == any(where in running for where in self.model.values())
        assert self.in_flight.count_started() == sum(where is not Where.PREFETCHED for where in self.model.values())


TestInFlight = InFlightMachine.TestCase


@pytest.mark.parametrize("position", [-1, 1, 10**30])
def test_report_about_a_task_outside_the_chunk_is_rejected(position: int) -> None:
    with pytest.raises(ProtocolError, match="unexpected report"):
        Chunk(0, [claimed_row()], uuid4(), CHILD).begin(position)


def test_running_longer_than_expected_adds_to_the_remaining_time() -> None:
    chunk = Chunk(0, [claimed_row(), claimed_row()], uuid4(), CHILD, expected_ms=5.0)
    assert chunk.remaining_ms(now=10.0) == 10.0
    chunk.begin(0)
    chunk.began_at = 10.0
    assert chunk.remaining_ms(now=10.001) == 10.0
    assert round(chunk.remaining_ms(now=10.025)) == 30


def test_timeout_comes_from_the_options() -> None:
    row = claimed_row()._replace(details='{"task_options": {"timeout_ms": 500}}')
    assert InFlightTask(row, uuid4()).timeout_ms == 500
    assert InFlightTask(claimed_row(), uuid4()).timeout_ms is None


def test_retry_policy_comes_from_the_options() -> None:
    policy = RetryPolicy.fixed([60], auto_retry_for=["BUSY"], jitter=False)
    row = claimed_row()._replace(details=json.dumps({"task_options": {"retry_policy": policy.model_dump(mode="json")}}))
    assert InFlightTask(row, uuid4()).decide_retry(Cause(code="BUSY")) == 60.0
    assert not isinstance(InFlightTask(claimed_row(), uuid4()).decide_retry(Cause(code="BUSY")), float)
