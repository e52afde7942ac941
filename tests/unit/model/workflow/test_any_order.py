"""Any graph, any order of endings, any point of crash or pause: the run ends in one and the same state."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from horsies.model.task import TaskStatus
from horsies.model.workflow.ending import Document, EndedTask, NoRestart
from horsies.model.workflow.outcome import outcome_of
from horsies.model.workflow.progress import (
    Blame,
    End,
    Enqueue,
    Finish,
    NodeState,
    Pause,
    PutBack,
    RunState,
    Skip,
    StartChild,
    Step,
    next_steps,
)
from horsies.model.workflow.status import WorkflowStatus
from horsies.model.workflow.status import WorkflowTaskStatus as S
from tests.support.dags import Dag, dags

OK = EndedTask(status=TaskStatus.COMPLETED, document=Document.OK)
ERR = EndedTask(status=TaskStatus.FAILED, document=Document.ERR)
TAKEN_BACK = EndedTask(status=TaskStatus.CANCELLED, document=Document.ERR, mark=NoRestart.PAUSED)
CHANCES = st.integers(0, 2**32).map(Random)


class Stored:
    """A run as a database would hold it: steps are applied together or not at all."""

    def __init__(self, dag: Dag) -> None:
        self.dag = dag
        self.status = WorkflowStatus.RUNNING
        self.starts = [0] * len(dag.nodes)
        self.nodes = [
            NodeState(
                status=S.PENDING,
                dependencies=node.dependencies,
                context=node.context,
                join=node.join,
                min_success=node.min_success,
                allow_failed_deps=node.allow_failed_deps,
            )
            for node in dag.nodes
        ]

    @property
    def at_work(self) -> list[int]:
        return [index for index, node in enumerate(self.nodes) if node.status is S.ENQUEUED and node.ended is None]

    def run_task(self, index: int) -> None:
        self.nodes[index] = replace(self.nodes[index], ended=OK if self.dag.nodes[index].succeeds else ERR)

    def pause(self) -> None:
        """What waits is taken back; what has ended keeps its end."""
        self.status = WorkflowStatus.PAUSED
        for index in self.at_work:
            self.nodes[index] = replace(self.nodes[index], ended=TAKEN_BACK)

    def resume(self) -> None:
        self.advance()
        self.status = WorkflowStatus.RUNNING

    def advance(self) -> bool:
        """Whether anything was due."""
        run = RunState(status=self.status, nodes=self.nodes, on_error=self.dag.on_error, success=self.dag.success)
        steps = list(next_steps(run))
        for step in steps:
            self._apply(step)
        return bool(steps)

    def _apply(self, step: Step) -> None:
        match step:
            case End(index, end):
                self._set(index, end.status)
            case PutBack(index):
                self._set(index, S.READY)
            case Skip(index):
                self._set(index, S.SKIPPED)
            case Enqueue(index) | StartChild(index):
                self._set(index, S.ENQUEUED)
                self.starts[index] += 1
            case Pause():
                self.pause()
            case Finish(outcome):
                self.status = outcome.status
            case Blame():
                pass

    def _set(self, index: int, status: S) -> None:
        assert not self.nodes[index].status.is_terminal
        self.nodes[index] = replace(self.nodes[index], status=status, ended=None)


def _live(stored: Stored, chance: Random) -> None:
    """Let tasks end in any order and any number at a time, with pauses between, until the run has ended."""
    while not stored.status.is_terminal:
        stored.advance()
        if stored.status is WorkflowStatus.PAUSED:
            stored.resume()
        elif chance.random() < 0.1:
            stored.pause()
        elif at_work := stored.at_work:
            for index in chance.sample(at_work, chance.randint(1, len(at_work))):
                stored.run_task(index)


@given(dags(), CHANCES)
@settings(max_examples=150, deadline=None)
def test_every_order_of_endings_leads_to_the_same_state(dag: Dag, chance: Random) -> None:
    stored = Stored(dag)
    _live(stored, chance)
    assert [node.status for node in stored.nodes] == dag.last_states()
    assert stored.status is outcome_of(dag.last_states(), dag.success).status


@given(dags(largest=20), CHANCES)
@settings(max_examples=100, deadline=None)
def test_what_was_done_is_not_asked_for_again(dag: Dag, chance: Random) -> None:
    stored = Stored(dag)
    while not stored.status.is_terminal:
        stored.advance()
        if stored.status is WorkflowStatus.PAUSED:
            stored.resume()
            continue
        assert not stored.advance()
        if stored.at_work:
            stored.run_task(chance.choice(stored.at_work))
