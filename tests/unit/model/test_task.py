from __future__ import annotations

import inspect

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


def test_terminal_statuses() -> None:
    assert {status for status in TaskStatus if status.is_terminal} == {"COMPLETED", "FAILED", "CANCELLED", "EXPIRED"}
    assert all(status.value == status.name for status in TaskStatus)


def test_transitions_have_consecutive_numbers_and_unique_names() -> None:
    assert [transition.number for transition in TRANSITIONS] == [f"T{number}" for number in range(1, 23)]
    assert len({transition.name for transition in TRANSITIONS}) == len(TRANSITIONS)


@pytest.mark.parametrize("transition", TRANSITIONS, ids=lambda transition: transition.number)
def test_no_transition_leaves_a_terminal_status(transition: Transition) -> None:
    assert not transition.sources & TASK_TERMINAL_STATES


@pytest.mark.parametrize("status", [status for status in TaskStatus if status is not TaskStatus.PENDING])
def test_every_status_is_reachable_from_pending(status: TaskStatus) -> None:
    reached = {TaskStatus.PENDING}
    while (
        more := {to for transition in TRANSITIONS if transition.sources & reached for to in transition.targets}
        - reached
    ):
        reached |= more

    assert status in reached


@pytest.mark.parametrize("status", sorted(LIVE))
def test_every_unfinished_status_can_become_terminal(status: TaskStatus) -> None:
    assert any(transition.targets & TASK_TERMINAL_STATES for transition in TRANSITIONS if status in transition.sources)


def test_only_owners_complete_and_owners_or_claims_start() -> None:
    completing = {actor for each in TRANSITIONS if TaskStatus.COMPLETED in each.targets for actor in each.actors}
    starting = {actor for each in TRANSITIONS if TaskStatus.RUNNING in each.targets for actor in each.actors}

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
def test_transitions_between_two_statuses(source: str, target: str, numbers: list[str]) -> None:
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
def test_public_views_have_the_documented_fields(kind: type, names: str) -> None:
    assert set(inspect.signature(kind).parameters) == set(names.split())
