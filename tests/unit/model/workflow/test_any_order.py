"""Any graph, any order of endings, any point of death: the run and all below it end as their graphs alone say."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, TypeVar

from hypothesis import given, settings

from horsies.model.workflow.plan import WorkflowStatus
from tests.support.workflow_graphs import (
    RANDOM_GENERATORS,
    Dag,
    Request,
    SimulatedRun,
    SimulatedRuns,
    dags,
    expected_outcome,
)

if TYPE_CHECKING:
    Deed = Callable[[SimulatedRuns, Random], None]

T = TypeVar("T")


@given(dags(), RANDOM_GENERATORS)
@settings(max_examples=40, deadline=None)
def test_every_order_of_endings_leads_to_the_same_state(dag: Dag, chance: Random) -> None:
    runs = SimulatedRuns(dag)
    _live(runs, chance, UNDISTURBED)
    assert runs.root.outcome() == expected_outcome(dag)


@given(dags(largest=30), RANDOM_GENERATORS)
@settings(max_examples=60, deadline=None)
def test_a_death_at_any_boundary_leads_to_the_same_state(dag: Dag, chance: Random) -> None:
    runs = SimulatedRuns(dag)
    _live(runs, chance, UNDISTURBED + DISTURBED)
    assert runs.root.outcome() == expected_outcome(dag)
    for run in runs.root.tree():
        assert run.starts == [int(node.status != "SKIPPED") for node in run.nodes], "each once"


@given(dags(largest=20), RANDOM_GENERATORS)
@settings(max_examples=30, deadline=None)
def test_what_was_done_is_not_asked_for_again(dag: Dag, chance: Random) -> None:
    runs = SimulatedRuns(dag)
    while not runs.root.status.is_terminal:
        _let_tasks_end(runs, chance)
        for run in list(runs.root.tree()):
            runs.advance(run)
            assert not runs.due_steps(run)
        _answer(runs, chance)
        _resume(runs, chance)


def _let_tasks_begin(runs: SimulatedRuns, chance: Random) -> None:
    for run, index in _some(_at_work(runs), chance):
        runs.begin_task(run, index)


def _let_tasks_end(runs: SimulatedRuns, chance: Random) -> None:
    for run, index in _some(_at_work(runs), chance):
        runs.end_task(run, index)


def _answer(runs: SimulatedRuns, chance: Random) -> None:
    for request in _some(runs.requests, chance):
        runs.process_request(request)


def _pause(runs: SimulatedRuns, chance: Random) -> None:
    runs.pause(chance.choice(list(runs.root.tree())))


def _resume(runs: SimulatedRuns, chance: Random) -> None:
    """Any run that stands still, also one that a failure has paused."""
    for run in _some([run for run in runs.root.tree() if run.status is WorkflowStatus.PAUSED], chance):
        runs.resume(run)


def _die_with_a_task(runs: SimulatedRuns, chance: Random) -> None:
    for run, index in _some(_at_work(runs), chance):
        runs.lose_task(run, index)


def _die_before_an_answer_is_stored(runs: SimulatedRuns, chance: Random) -> None:
    for request in _some(runs.requests, chance):
        runs.due_steps(request.run)


def _answer_twice(runs: SimulatedRuns, chance: Random) -> None:
    for request in _some(runs.requests, chance):
        runs.process_request(request)
        runs.process_request(request)


def _lose_requests(runs: SimulatedRuns, chance: Random) -> None:
    """Outcomes are stored and nobody advances; children are done and their parents not told."""
    lost = _some(runs.requests, chance)
    runs.requests = [request for request in runs.requests if request not in lost]


def _ask_late(runs: SimulatedRuns, chance: Random) -> None:
    """For what was advanced, started or ended long ago."""
    run = chance.choice(list(runs.root.tree()))
    runs.process_request(Request(run))
    for index in run.sub_runs:
        runs.process_request(Request(run, index))


UNDISTURBED: list[Deed] = [_let_tasks_end, _answer]
DISTURBED: list[Deed] = [
    _let_tasks_begin,
    _pause,
    _resume,
    _die_with_a_task,
    _die_before_an_answer_is_stored,
    _answer_twice,
    _lose_requests,
    _ask_late,
]


def _live(runs: SimulatedRuns, chance: Random, deeds: list[Deed]) -> None:
    """Whatever chance likes, until the root has ended; where nothing is left to do, those who live heal and resume."""
    while not runs.root.status.is_terminal:
        if not _at_work(runs) and not runs.requests:
            runs.heal()
            _resume(runs, chance)
        chance.choice(deeds)(runs, chance)


def _at_work(runs: SimulatedRuns) -> list[tuple[SimulatedRun, int]]:
    return [(run, index) for run in runs.root.tree() for index in run.active_nodes]


def _some(these: list[T], chance: Random) -> list[T]:
    return chance.sample(these, chance.randint(1, len(these))) if these else []
