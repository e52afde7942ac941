"""Why a task waits."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from horsies.model.waiting import MAX_AHEAD_COUNTED, OwnerFacts, WaitCause, WaitFacts, owner_reasons, wait_reasons


def make_facts(**facts: Any) -> WaitFacts:
    """Facts of a task that is next in a queue with one idle worker."""
    idle: dict[str, Any] = {
        "queue": "mail",
        "due_in": None,
        "is_retry": False,
        "is_overdue": False,
        "is_paused": False,
        "paused_by": None,
        "pause_reason": None,
        "ahead": 0,
        "workers": 1,
        "silent_workers": 0,
        "slots": 2,
        "running": {},
        "queue_in_flight": 0,
        "queue_limit": None,
        "cluster_in_flight": 0,
        "cluster_limit": None,
    }
    return WaitFacts(**idle | facts)


@pytest.mark.parametrize(
    ("facts", "cause", "text"),
    [
        ({}, WaitCause.NEXT, "it is next: a worker claims it as soon as it looks for tasks"),
        ({"due_in": timedelta(seconds=48)}, WaitCause.DELAYED, "it is due in 48s"),
        ({"due_in": timedelta(minutes=3), "is_retry": True}, WaitCause.DELAYED, "its retry is due in 3m00s"),
        ({"is_overdue": True}, WaitCause.EXPIRED, "its good_until has passed: it will expire"),
        ({"is_paused": True}, WaitCause.PAUSED, "queue mail is paused"),
        (
            {"is_paused": True, "paused_by": "ana", "pause_reason": "broken"},
            WaitCause.PAUSED,
            "queue mail is paused by ana: broken",
        ),
        ({"workers": 0, "slots": 0}, WaitCause.UNSERVED, "no worker serves queue mail"),
        (
            {"workers": 0, "slots": 0, "silent_workers": 1},
            WaitCause.UNSERVED,
            "no worker serves queue mail; 1 that did is silent",
        ),
        (
            {"queue_limit": 4, "queue_in_flight": 4},
            WaitCause.QUEUE_LIMIT,
            "queue mail has reached its limit: 4 of 4 tasks in flight",
        ),
        (
            {"cluster_limit": 9, "cluster_in_flight": 9},
            WaitCause.CLUSTER_LIMIT,
            "all workers together have reached their limit: 9 of 9 tasks in flight",
        ),
        ({"running": {"resize": 2}}, WaitCause.BUSY, "all 2 slots are busy with 2 × resize"),
        ({"slots": 1, "running": {"resize": 1}}, WaitCause.BUSY, "the only slot is busy with resize"),
        (
            {"slots": 9, "running": {"a": 4, "b": 2, "c": 2, "d": 1}},
            WaitCause.BUSY,
            "all 9 slots are busy with 4 × a, 2 × b, 2 × c and 1 others",
        ),
        ({"ahead": 1}, WaitCause.POSITION, "1 task of its queue is ahead of it"),
        ({"ahead": MAX_AHEAD_COUNTED}, WaitCause.POSITION, "10,000+ tasks of its queue are ahead of it"),
    ],
)
def test_single_reason_is_a_code_and_a_sentence(facts: dict[str, Any], cause: WaitCause, text: str) -> None:
    assert wait_reasons(make_facts(**facts)) == ((cause, text),)


def test_below_a_limit_there_is_no_reason() -> None:
    facts = make_facts(queue_limit=4, queue_in_flight=3, cluster_limit=9, cluster_in_flight=8, running={"a": 1})
    assert [reason.cause for reason in wait_reasons(facts)] == [WaitCause.NEXT]


def test_all_reasons_are_listed_most_important_first() -> None:
    facts = make_facts(due_in=timedelta(hours=1), is_paused=True, running={"resize": 2}, ahead=12)
    assert [reason.cause for reason in wait_reasons(facts)] == [
        WaitCause.DELAYED,
        WaitCause.PAUSED,
        WaitCause.BUSY,
        WaitCause.POSITION,
    ]


def test_unserved_queue_has_no_limits_and_slots() -> None:
    facts = make_facts(workers=0, slots=0, queue_limit=0)
    assert [reason.cause for reason in wait_reasons(facts)] == [WaitCause.UNSERVED]


def make_owner_facts(**facts: Any) -> OwnerFacts:
    """Facts of a task that a healthy worker runs."""
    healthy: dict[str, Any] = {
        "worker": "1a2b3c4d",
        "process": "host-1:901",
        "worker_state": "running",
        "worker_silence": None,
        "is_running": True,
        "child_pid": 933,
        "elapsed": timedelta(seconds=80),
        "attempt": 1,
        "max_attempts": 3,
        "heartbeat_age": timedelta(seconds=12),
        "heartbeat_interval": timedelta(seconds=30),
        "is_late": False,
        "due_in": timedelta(seconds=288),
        "decision": "retry, attempt 2 of 3",
        "has_reaper": True,
    }
    return OwnerFacts(**healthy | facts)


def test_running_task_names_worker_child_and_heartbeat() -> None:
    assert owner_reasons(make_owner_facts()) == (
        (WaitCause.RUNNING, "worker 1a2b3c4d (host-1:901) has run it for 1m20s in child process 933, attempt 1 of 3"),
        (WaitCause.HEARTBEAT, "last heartbeat 12s ago, one is due every 30s"),
    )


def test_claimed_task_has_not_started() -> None:
    first, _ = owner_reasons(make_owner_facts(is_running=False, elapsed=timedelta(seconds=20)))
    assert first == (WaitCause.CLAIMED, "worker 1a2b3c4d (host-1:901) claimed it 20s ago and has not started it")


@pytest.mark.parametrize(
    ("facts", "silence", "coming"),
    [
        (
            {"worker_state": "silent", "worker_silence": timedelta(seconds=70), "due_in": timedelta(seconds=42)},
            "its worker is silent, last seen 1m10s ago",
            "in 42s, if no heartbeat arrives: retry, attempt 2 of 3",
        ),
        (
            {"is_late": True, "due_in": timedelta(0), "decision": "fail with WORKER_CRASHED"},
            "its worker still sends heartbeats: the task may be blocked or busy, and still running",
            "with the next sweep: fail with WORKER_CRASHED",
        ),
        (
            {"is_late": True, "worker_state": "missing", "process": None, "due_in": timedelta(seconds=42)},
            "its worker is missing",
            "in 42s, if no heartbeat arrives: retry, attempt 2 of 3",
        ),
    ],
    ids=["silent worker", "silent task", "no worker"],
)
def test_silent_task_shows_what_happens_and_when(facts: dict[str, Any], silence: str, coming: str) -> None:
    assert owner_reasons(make_owner_facts(**facts))[2:] == (
        (WaitCause.SILENT, silence),
        (WaitCause.RECOVERY, coming),
    )


def test_ages_and_due_time_move_on_between_reads() -> None:
    facts = make_owner_facts(worker_silence=timedelta(seconds=70), due_in=timedelta(seconds=42))
    texts = [text for _, text in owner_reasons(facts, timedelta(seconds=20))]
    assert "last heartbeat 32s ago, one is due every 30s" in texts
    assert "in 22s, if no heartbeat arrives: retry, attempt 2 of 3" in texts


def test_silent_task_without_live_worker_is_not_promised_a_recovery() -> None:
    facts = make_owner_facts(is_late=True, has_reaper=False)
    assert "no live worker recovers it: start one, or sweep by hand" in [text for _, text in owner_reasons(facts)]
