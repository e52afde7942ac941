"""Random graphs, task orders and crashes: the outcome of a run tree depends on its graph alone."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, TypeVar

from hypothesis import given, settings

from horsies.model.workflow.plan import WorkflowStatus
from horsies.model.workflow.progress import steps_of_part
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
    Action = Callable[[SimulatedRuns, Random], None]

T = TypeVar("T")


@given(dags(), RANDOM_GENERATORS)
@settings(max_examples=40, deadline=None)
def test_every_task_order_leads_to_the_same_outcome(dag: Dag, rng: Random) -> None:
    runs = SimulatedRuns(dag)
    _run_to_end(runs, rng, NORMAL_ACTIONS)
    assert runs.root.outcome() == expected_outcome(dag)


@given(dags(largest=30), RANDOM_GENERATORS)
@settings(max_examples=60, deadline=None)
def test_crash_at_any_boundary_leads_to_the_same_outcome(dag: Dag, rng: Random) -> None:
    runs = SimulatedRuns(dag)
    _run_to_end(runs, rng, NORMAL_ACTIONS + DISRUPTIONS)
    assert runs.root.outcome() == expected_outcome(dag)
    for run in runs.root.tree():
        assert run.starts == [int(node.status != "SKIPPED") for node in run.nodes], "every node starts once"


@given(dags(largest=20), RANDOM_GENERATORS)
@settings(max_examples=30, deadline=None)
def test_applied_steps_are_not_yielded_again(dag: Dag, rng: Random) -> None:
    runs = SimulatedRuns(dag)
    while not runs.root.status.is_terminal:
        _end_tasks(runs, rng)
        for run in list(runs.root.tree()):
            runs.advance(run)
            assert not runs.due_steps(run)
        _process_requests(runs, rng)
        _resume(runs, rng)


@given(dags(largest=20), RANDOM_GENERATORS)
@settings(max_examples=60, deadline=None)
def test_a_part_of_a_run_decides_like_the_whole_run(dag: Dag, rng: Random) -> None:
    runs = SimulatedRuns(dag)
    while not runs.root.status.is_terminal:
        runs.heal()
        _resume(runs, rng)
        while runs.requests:
            runs.process_request(runs.requests[0])
        if active := _active_tasks(runs):
            run, index = rng.choice(active)
            runs.end_task(run, index)
            assert steps_of_part(runs.part_after(run, index)) in (None, runs.due_steps(run))


def _begin_tasks(runs: SimulatedRuns, rng: Random) -> None:
    for run, index in _some(_active_tasks(runs), rng):
        runs.begin_task(run, index)


def _end_tasks(runs: SimulatedRuns, rng: Random) -> None:
    for run, index in _some(_active_tasks(runs), rng):
        runs.end_task(run, index)


def _process_requests(runs: SimulatedRuns, rng: Random) -> None:
    for request in _some(runs.requests, rng):
        runs.process_request(request)


def _pause(runs: SimulatedRuns, rng: Random) -> None:
    runs.pause(rng.choice(list(runs.root.tree())))


def _resume(runs: SimulatedRuns, rng: Random) -> None:
    """Resume paused runs, also those paused by a failure."""
    for run in _some([run for run in runs.root.tree() if run.status is WorkflowStatus.PAUSED], rng):
        runs.resume(run)


def _lose_tasks(runs: SimulatedRuns, rng: Random) -> None:
    for run, index in _some(_active_tasks(runs), rng):
        runs.lose_task(run, index)


def _crash_before_steps_are_stored(runs: SimulatedRuns, rng: Random) -> None:
    for request in _some(runs.requests, rng):
        runs.due_steps(request.run)


def _process_requests_twice(runs: SimulatedRuns, rng: Random) -> None:
    for request in _some(runs.requests, rng):
        runs.process_request(request)
        runs.process_request(request)


def _lose_requests(runs: SimulatedRuns, rng: Random) -> None:
    """Lose requests: outcomes are stored but runs do not advance, and parents miss finished sub-workflows."""
    lost = _some(runs.requests, rng)
    runs.requests = [request for request in runs.requests if request not in lost]


def _repeat_old_requests(runs: SimulatedRuns, rng: Random) -> None:
    """Repeat requests that were processed long ago."""
    run = rng.choice(list(runs.root.tree()))
    runs.process_request(Request(run))
    for index in run.sub_runs:
        runs.process_request(Request(run, index))


NORMAL_ACTIONS: list[Action] = [_end_tasks, _process_requests]
DISRUPTIONS: list[Action] = [
    _begin_tasks,
    _pause,
    _resume,
    _lose_tasks,
    _crash_before_steps_are_stored,
    _process_requests_twice,
    _lose_requests,
    _repeat_old_requests,
]


def _run_to_end(runs: SimulatedRuns, rng: Random, actions: list[Action]) -> None:
    """Apply random actions until the root is terminal; heal and resume when nothing is left to do."""
    while not runs.root.status.is_terminal:
        if not _active_tasks(runs) and not runs.requests:
            runs.heal()
            _resume(runs, rng)
        rng.choice(actions)(runs, rng)


def _active_tasks(runs: SimulatedRuns) -> list[tuple[SimulatedRun, int]]:
    return [(run, index) for run in runs.root.tree() for index in run.active_nodes]


def _some(items: list[T], rng: Random) -> list[T]:
    return rng.sample(items, rng.randint(1, len(items))) if items else []
