from __future__ import annotations

import dataclasses

import pytest

from horsies.model.task import (
    TASK_TERMINAL_STATES,
    TRANSITIONS,
    Actor,
    TaskAttemptInfo,
    TaskContext,
    TaskInfo,
    TaskStatus,
    Transition,
)

LIVE = set(TaskStatus) - TASK_TERMINAL_STATES


def test_four_states_are_terminal() -> None:
    assert {status for status in TaskStatus if status.is_terminal} == {"COMPLETED", "FAILED", "CANCELLED", "EXPIRED"}
    assert all(status.value == status.name for status in TaskStatus)


def test_the_moves_are_numbered_without_gaps_and_named_once() -> None:
    assert [move.number for move in TRANSITIONS] == [f"T{number}" for number in range(1, 23)]
    assert len({move.name for move in TRANSITIONS}) == len(TRANSITIONS)


@pytest.mark.parametrize("move", TRANSITIONS, ids=lambda move: move.number)
def test_no_move_leaves_a_terminal_state(move: Transition) -> None:
    assert not move.sources & TASK_TERMINAL_STATES


@pytest.mark.parametrize("status", [status for status in TaskStatus if status is not TaskStatus.PENDING])
def test_every_state_can_be_reached_from_pending(status: TaskStatus) -> None:
    reached = {TaskStatus.PENDING}
    while more := {to for move in TRANSITIONS if move.sources & reached for to in move.targets} - reached:
        reached |= more

    assert status in reached


@pytest.mark.parametrize("status", sorted(LIVE))
def test_every_live_state_can_come_to_an_end(status: TaskStatus) -> None:
    assert any(move.targets & TASK_TERMINAL_STATES for move in TRANSITIONS if status in move.sources)


def test_only_the_owner_completes_and_only_claims_and_owners_start() -> None:
    completing = {actor for move in TRANSITIONS if TaskStatus.COMPLETED in move.targets for actor in move.actors}
    starting = {actor for move in TRANSITIONS if TaskStatus.RUNNING in move.targets for actor in move.actors}

    assert completing == {Actor.OWNER}
    assert starting == {Actor.OWNER, Actor.CLAIM}


@pytest.mark.parametrize(
    ("source", "target", "numbers"),
    [
        ("PENDING", "CLAIMED", ["T2"]),
        ("CLAIMED", "CLAIMED", ["T3"]),
        ("CLAIMED", "PENDING", ["T6", "T7", "T22"]),
        ("PENDING", "COMPLETED", []),
        ("RUNNING", "EXPIRED", []),
        ("COMPLETED", "PENDING", []),
    ],
)
def test_transitions_between_two_states(source: str, target: str, numbers: list[str]) -> None:
    found = [each.number for each in TRANSITIONS if source in each.sources and target in each.targets]
    assert found == numbers


CONTEXT = """
    task_id task_name queue_name attempt retry_count claim_token sent_at good_until timeout_ms worker_id flags
    possible_overlap
"""
INFO = """
    task_id task_name status queue_name priority retry_count max_retries crash_count flags next_retry_at sent_at
    enqueued_at claimed_at started_at completed_at failed_at good_until worker_id worker_hostname worker_pid
    worker_process_name error_code workflow_id retry_of result failed_reason attempts
"""
ATTEMPT = """
    task_id attempt claim_token outcome will_retry started_at finished_at error_code error_message failed_reason
    worker_id worker_hostname worker_pid worker_process_name
"""


@pytest.mark.parametrize(("kind", "names"), [(TaskContext, CONTEXT), (TaskInfo, INFO), (TaskAttemptInfo, ATTEMPT)])
def test_what_is_shown_of_a_task_is_what_is_documented(kind: type, names: str) -> None:
    assert {each.name for each in dataclasses.fields(kind)} == set(names.split())
