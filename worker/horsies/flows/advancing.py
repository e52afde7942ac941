"""Runs go on: what has ended is taken over, what may start is started, what is done is closed.

Many runs share a transaction, and in it the steps of all of them a handful of statements. Every step follows from what
is stored, so it does not matter who asks, how often, or what became of those who asked before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, assert_never

from horsies.codec.ids import IDS
from horsies.flows.states import by_run, run_state
from horsies.flows.wording import error_of, error_of_child, error_of_skip, error_text
from horsies.model.codes import OutcomeCode
from horsies.model.workflow.outcome import last_nodes
from horsies.model.workflow.progress import (
    Blame,
    End,
    Enqueue,
    Finish,
    Pause,
    PutBack,
    Skip,
    StartChild,
    next_steps,
)
from horsies.model.workflow.status import WorkflowTaskStatus
from horsies.store.flows import Closing, FlowWrites, NodeMoves

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from horsies.model.task_error import TaskError
    from horsies.model.workflow.outcome import Outcome
    from horsies.model.workflow.progress import Step
    from horsies.store.db import Database, Transaction
    from horsies.store.flows import DueRun, NodeRow

LARGEST_BATCH = 500
"""Rows of the outbox that one transaction answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advanced:
    """What came of one look at the outbox."""

    runs: int = 0
    passed_by: int = 0
    """Runs that another hand held; worth another look soon."""
    to_pause: Sequence[UUID] = ()
    """Runs that a failure is to pause, which needs their whole tree: nothing of them was done yet."""


async def advance_due(database: Database, *, limit: int = LARGEST_BATCH) -> Advanced:
    """Advance the runs that have asked longest, in one transaction."""

    async def work(transaction: Transaction) -> Advanced:
        writes = FlowWrites(transaction)
        due = await writes.lock_due(limit)
        runs = [run for run in due if run.status is not None]
        to_pause = await advance(writes, runs) if runs else ()
        return Advanced(runs=len(runs), passed_by=len(due) - len(runs), to_pause=to_pause)

    return await database.run(work)


async def advance(
    writes: FlowWrites, runs: Sequence[DueRun], refusals: Mapping[UUID, TaskError] | None = None
) -> list[UUID]:
    """Do all that is due in runs that are locked; returns those that are to be paused, untouched."""
    nodes = by_run(await writes.nodes_of([run.id for run in runs]))
    due = Due()
    to_pause: list[UUID] = []
    for run in runs:
        rows = nodes.get(run.id, [])
        steps = list(next_steps(run_state(run, rows, refusals or {})))
        if any(isinstance(step, Pause) for step in steps):
            to_pause.append(run.id)
        else:
            due.add(run, rows, steps, refusals or {})
    await due.write(writes)
    return to_pause


@dataclass(slots=True)
class Due:
    """The steps of many runs, sorted by the statements that carry them out."""

    moves: NodeMoves = field(default_factory=NodeMoves)
    enqueued: list[UUID] = field(default_factory=list["UUID"])
    closings: list[Closing] = field(default_factory=list[Closing])
    asked: list[UUID] = field(default_factory=list["UUID"])

    def add(
        self, run: DueRun, nodes: Sequence[NodeRow], steps: Sequence[Step], refusals: Mapping[UUID, TaskError]
    ) -> None:
        self.asked.extend(run.asked)
        started = {step.index for step in steps if isinstance(step, Enqueue | StartChild)}
        for step in steps:
            match step:
                case Blame():
                    self.closings.append(Closing(workflow_id=run.id, blamed=step.index))
                case Finish():
                    self.closings.append(_closing(run, nodes, step.outcome))
                case Pause():
                    pass  # needs the runs below as well
                case PutBack() if step.index in started:
                    pass  # moves once, not twice
                case Skip():
                    because = None if step.because is None else nodes[step.because]
                    error = error_of_skip(step.index, because)
                    self.moves.add(nodes[step.index].id, WorkflowTaskStatus.SKIPPED, error=error)
                case _:
                    self._move(nodes[step.index], step, refusals)

    async def write(self, writes: FlowWrites) -> None:
        if self.moves.ids or self.asked:
            await writes.move_nodes(self.moves, asked=self.asked)
        if self.enqueued:
            await writes.enqueue(self.enqueued)
        if self.closings:
            await writes.close(self.closings)

    def _move(
        self, node: NodeRow, step: End | PutBack | Enqueue | StartChild, refusals: Mapping[UUID, TaskError]
    ) -> None:
        match step:
            case End():
                self._end(node, step, refusals)
            case Enqueue():
                self.moves.add(node.id, WorkflowTaskStatus.ENQUEUED, task_id=IDS.next())
                self.enqueued.append(node.id)
            case PutBack() | StartChild():
                self.moves.add(node.id, WorkflowTaskStatus.READY)
            case _:
                assert_never(step)

    def _end(self, node: NodeRow, step: End, refusals: Mapping[UUID, TaskError]) -> None:
        error = None
        if node.id in refusals:
            error = error_text(refusals[node.id])
            self.asked.append(node.id)
        elif step.end.code is OutcomeCode.SUBWORKFLOW_FAILED:
            error = error_of_child(node.sub_workflow_id)
        elif step.end.code is not None:
            error = error_of(step.end.code)
        self.moves.add(node.id, step.end.status, error=error)


def _closing(run: DueRun, nodes: Sequence[NodeRow], outcome: Outcome) -> Closing:
    return Closing(
        workflow_id=run.id,
        status=outcome.status,
        blamed=outcome.error_from,
        error=None if outcome.code is None else error_of(outcome.code),
        last_nodes=() if run.output_task_index is not None else last_nodes([node.dependencies for node in nodes]),
    )
