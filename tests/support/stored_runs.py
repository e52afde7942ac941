"""Runs as a database would hold them, to live through the rules without one. Every public method is one commit.

Therefore an advance is applied wholly or not at all, and there is no half of it to be tried: a death in the middle is
`due` without `advance`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from horsies.model.task import TaskStatus
from horsies.model.workflow.plan import WorkflowStatus
from horsies.model.workflow.plan import WorkflowTaskStatus as S
from horsies.model.workflow.progress import (
    Blame,
    Document,
    End,
    EndedChild,
    EndedTask,
    Enqueue,
    Finish,
    NodeState,
    NoRestart,
    Pause,
    PutBack,
    RunState,
    Skip,
    StartChild,
    Step,
    next_steps,
)
from tests.support.oracle import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.dags import Dag

OK = EndedTask(status=TaskStatus.COMPLETED, document=Document.OK)
ERR = EndedTask(status=TaskStatus.FAILED, document=Document.ERR)
TAKEN_BACK = EndedTask(status=TaskStatus.CANCELLED, document=Document.ERR, mark=NoRestart.PAUSED)


@dataclass(slots=True, eq=False)
class StoredRun:
    dag: Dag
    nodes: list[NodeState]
    starts: list[int]
    """How often each node was given a task, less those that were taken back before or instead of an end."""
    children: dict[int, StoredRun]
    parent: StoredRun | None = None
    status: WorkflowStatus = WorkflowStatus.RUNNING
    blamed: int | None = None
    code: str | None = None

    @property
    def is_running(self) -> bool:
        return self.status is WorkflowStatus.RUNNING

    @property
    def at_work(self) -> list[int]:
        """Nodes with a task that has not ended."""
        tasks = (index for index, node in enumerate(self.nodes) if not node.is_subworkflow)
        return [
            index for index in tasks if self.nodes[index].status in {S.ENQUEUED, S.RUNNING} and not self._ended(index)
        ]

    def tree(self) -> Iterator[StoredRun]:
        yield self
        for child in self.children.values():
            yield from child.tree()

    def verdict(self) -> Verdict:
        """How it ended, with all below it."""
        return Verdict(
            status=self.status,
            nodes=[node.status for node in self.nodes],
            blamed=self.blamed,
            code=self.code,
            children={index: child.verdict() for index, child in sorted(self.children.items())},
        )

    def set(self, index: int, **changes: object) -> None:
        assert not self.nodes[index].status.is_terminal, "what has ended stays so"
        self.nodes[index] = replace(self.nodes[index], **changes)  # pyright: ignore[reportArgumentType]

    def _ended(self, index: int) -> bool:
        return self.nodes[index].ended is not None


@dataclass(frozen=True, slots=True)
class Request:
    """A row of the outbox: advance this run, or start the sub-workflow of this node of it."""

    run: StoredRun
    child: int | None = None


class StoredRuns:
    """A root and all that grows below it."""

    def __init__(self, dag: Dag) -> None:
        self.requests: list[Request] = []
        self.root = self._start(dag, None)

    def begin_task(self, run: StoredRun, index: int) -> None:
        run.set(index, status=S.RUNNING)

    def end_task(self, run: StoredRun, index: int) -> None:
        """The outcome and the request for an advance are stored together."""
        run.set(index, ended=OK if run.dag.nodes[index].succeeds else ERR)
        self.requests.append(Request(run))

    def lose_task(self, run: StoredRun, index: int) -> None:
        """Its worker died. It starts again, unless its run was paused meanwhile."""
        if not run.is_running:
            run.set(index, ended=TAKEN_BACK)
            self.requests.append(Request(run))

    def answer(self, request: Request) -> None:
        self.requests = [each for each in self.requests if each != request]
        if request.child is None:
            self.advance(request.run)
        elif request.run.is_running and request.run.nodes[request.child].status is S.READY:
            self._start_child(request.run, request.child)

    def due(self, run: StoredRun) -> list[Step]:
        """What an advance would do now."""
        nodes = [self._state_of(run, index) for index in range(len(run.nodes))]
        return list(
            next_steps(RunState(status=run.status, nodes=nodes, on_error=run.dag.on_error, success=run.dag.success))
        )

    def advance(self, run: StoredRun) -> None:
        for step in self.due(run):
            self._apply(run, step)

    def pause(self, run: StoredRun) -> None:
        """What waits is taken back; what runs may end."""
        for each in run.tree():
            if each.is_running:
                each.status = WorkflowStatus.PAUSED
                for index in each.at_work:
                    if each.nodes[index].status is S.ENQUEUED:
                        each.set(index, status=S.READY)
                        each.starts[index] -= 1

    def resume(self, run: StoredRun) -> None:
        paused = [each for each in run.tree() if each.status is WorkflowStatus.PAUSED]
        for each in paused:
            self.advance(each)
        for each in paused:
            each.status = WorkflowStatus.RUNNING
        for each in paused:
            self.advance(each)

    def heal(self) -> None:
        """Whoever heals advances each run in which something is due, asked for or not."""
        for run in list(self.root.tree()):
            if run.is_running:
                self.advance(run)

    def _start(self, dag: Dag, parent: StoredRun | None) -> StoredRun:
        nodes = [
            NodeState(
                status=S.PENDING,
                dependencies=node.dependencies,
                context=node.context,
                join=node.join,
                min_success=node.min_success,
                allow_failed_deps=node.allow_failed_deps,
                is_subworkflow=node.child is not None,
            )
            for node in dag.nodes
        ]
        run = StoredRun(dag=dag, nodes=nodes, starts=[0] * len(nodes), children={}, parent=parent)
        self.advance(run)
        return run

    def _start_child(self, run: StoredRun, index: int) -> None:
        child = run.dag.nodes[index].child
        assert child is not None
        assert index not in run.children, "a sub-workflow starts once"
        run.set(index, status=S.RUNNING)
        run.starts[index] += 1
        run.children[index] = self._start(child, run)

    def _state_of(self, run: StoredRun, index: int) -> NodeState:
        """A node with what the tables say of its child, and of the request to start one."""
        node, child = run.nodes[index], run.children.get(index)
        if node.status.is_terminal or not node.is_subworkflow:
            return node
        if child is not None and child.status.is_terminal:
            return replace(node, ended=EndedChild(status=child.status))
        return replace(node, status=S.ENQUEUED) if Request(run, index) in self.requests else node

    def _apply(self, run: StoredRun, step: Step) -> None:
        match step:
            case End(index, end):
                run.set(index, status=end.status, ended=None)
            case PutBack(index):
                run.set(index, status=S.READY, ended=None)
                run.starts[index] -= 1
            case Skip(index):
                run.set(index, status=S.SKIPPED, ended=None)
            case Enqueue(index):
                assert all(run.nodes[each].status.is_terminal for each in run.nodes[index].context), "it can read them"
                run.set(index, status=S.ENQUEUED)
                run.starts[index] += 1
            case StartChild(index):
                run.set(index, status=S.READY)
                self.requests.append(Request(run, index))
            case Pause():
                self.pause(run)
            case Finish(outcome):
                run.status, run.blamed, run.code = outcome.status, outcome.error_from, outcome.code
                if run.parent is not None:
                    self.requests.append(Request(run.parent))
            case Blame():
                pass
