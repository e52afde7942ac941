"""Stale tasks in words: what the list says of each, and the evidence below it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from horsies.model.recovery.decision import Decision
from horsies.model.recovery.fleet import SweepOptions
from horsies.model.settings import RecoveryConfig
from horsies.model.task import TaskStatus
from horsies.recovery.report import SweptTask
from horsies_ops.reads.workers import Upkeep
from horsies_tui.demo.source import DemoSource
from horsies_tui.format import clock
from horsies_tui.proposals.sweep import Candidate, owner, staleness, verdict, why
from tests.support.rows import make_worker
from tests.support.tui import NOON, still

WORKER = UUID(int=0xA7)
UPKEEP = Upkeep(
    at=NOON,
    config=RecoveryConfig(),
    last_pass_at=NOON - timedelta(seconds=16),
    last_pass_by=WORKER,
    last_retention_at=None,
)


def _task(**fields: Any) -> SweptTask:
    usual: dict[str, Any] = {
        "task_id": UUID(int=1), "task_name": "mail.send", "queue_name": "mail", "state": TaskStatus.RUNNING,
        "owner_id": WORKER, "owner_state": "lost", "last_beat_age": timedelta(minutes=6),
        "effective_threshold": timedelta(minutes=5), "resilient": False, "decision": Decision.RETRY,
        "reason": "OWNER_LOST", "retries_left": 2,
    }  # fmt: skip
    return SweptTask(**usual | fields)


def _candidate(*, is_near: bool = False, **fields: Any) -> Candidate:
    task = _task(**fields)
    quiet = task.last_beat_age or task.overdue_by
    return Candidate(task=task, quiet_since=NOON - quiet if quiet else None, owner=None, is_near=is_near)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({}, "retry, 2 left"),
        ({"decision": Decision.FAIL, "code": "WORKER_CRASHED"}, "fail"),
        ({"decision": Decision.FAIL, "code": "POISON_TASK"}, "fail, poison"),
        ({"decision": Decision.REQUEUE, "state": TaskStatus.CLAIMED}, "requeue"),
        ({"decision": Decision.LEAVE, "reason": "amnesty", "held_until": NOON + timedelta(seconds=40)}, "amnesty 40s"),
        ({"decision": Decision.HOLD, "reason": "hook_skip", "held_until": NOON + timedelta(seconds=90)}, "hold 1m30s"),
        ({"reason": "HEARTBEAT_LOST", "owner_state": "running"}, "? alive"),
        ({"decision": Decision.LEAVE, "reason": "fresh", "is_near": True}, "watch"),
    ],
)
def test_a_verdict_is_a_word_or_two(fields: dict[str, Any], word: str) -> None:
    assert verdict(_candidate(**fields), NOON) == word


def test_a_claimed_task_of_a_worker_that_reports_is_not_taken_for_alive() -> None:
    candidate = _candidate(
        state=TaskStatus.CLAIMED, reason="HEARTBEAT_LOST", owner_state="running", decision=Decision.REQUEUE
    )
    assert verdict(candidate, NOON) == "requeue"


def test_how_far_past_its_limit_grows_with_time_and_is_below_zero_before() -> None:
    candidate = _candidate()
    assert candidate.over(NOON) == timedelta(minutes=1)
    assert candidate.over(NOON - timedelta(minutes=2)) == timedelta(minutes=-1)


def test_a_task_that_nobody_holds_is_reckoned_from_the_end_of_its_time() -> None:
    candidate = _candidate(
        state=TaskStatus.PENDING, owner_id=None, last_beat_age=None, effective_threshold=None,
        overdue_by=timedelta(minutes=22), decision=Decision.EXPIRE,
    )  # fmt: skip
    assert candidate.silence(NOON) is None
    assert candidate.over(NOON) == timedelta(minutes=22)
    assert owner(candidate, NOON) == "-"


def test_an_owner_whose_row_is_gone_is_named_by_its_state() -> None:
    assert owner(_candidate(owner_state="missing"), NOON) == "000000a7 missing"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (RecoveryConfig(), "next automatic sweep in 14s"),
        (RecoveryConfig(auto_fail_stale_running=False), "auto_fail_stale_running is off"),
        (None, "no worker lives"),
    ],
)
def test_the_evidence_says_whether_anybody_acts_unasked(config: RecoveryConfig | None, said: str) -> None:
    lines = list(why(_candidate(), None, replace(UPKEEP, config=config), NOON))
    assert said in lines[-1]


def test_the_evidence_of_a_live_owner_warns() -> None:
    lines = list(why(_candidate(reason="HEARTBEAT_LOST", owner_state="running"), None, UPKEEP, NOON))
    assert any("still at work" in line for line in lines)


def test_an_owner_that_is_as_silent_as_its_task_is_not_said_to_report() -> None:
    silent = make_worker(last_heartbeat_at=NOON - timedelta(minutes=6), heartbeat_age=timedelta(minutes=6))
    candidate = replace(_candidate(reason="HEARTBEAT_LOST", owner_state="running"), owner=silent)
    lines = list(why(candidate, None, UPKEEP, NOON))
    assert f"its worker is silent as well, since {clock(silent.last_heartbeat_at)}" in lines
    assert not any("still reports" in line for line in lines)
    assert verdict(candidate, NOON) == "retry, 2 left"


async def test_what_ran_comes_first_and_of_that_what_is_furthest_past_its_limit() -> None:
    found = await staleness(DemoSource(still(), read_only=True, pace_s=None), SweepOptions())
    states = [each.task.state for each in found.stale]
    assert states == sorted(states, key=[TaskStatus.RUNNING, TaskStatus.CLAIMED].index)
    running = [each.over(NOON) for each in found.stale if each.task.state is TaskStatus.RUNNING]
    assert running == sorted(running, reverse=True)  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert [verdict(each, NOON) for each in found.near] == ["watch"]
