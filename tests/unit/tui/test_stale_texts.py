"""Texts of the stale screen: decision, owner and evidence."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from horsies.model.recovery.decision import DecisionKind
from horsies.model.recovery.fleet import SweepOptions
from horsies.model.settings import RecoveryConfig
from horsies.model.task import TaskStatus
from horsies.recovery.report import SweptTask
from horsies_ops.reads.workers import MaintenanceStatus
from horsies_tui.format import format_time
from horsies_tui.proposals.sweep import StaleCandidate, decision_text, evidence_lines, load_stale_candidates, owner_text
from tests.support.fake_system.source import FakeSource
from tests.support.rows import make_worker
from tests.support.tui import NOON, frozen_system

WORKER = UUID(int=0xA7)
STATUS = MaintenanceStatus(
    at=NOON,
    config=RecoveryConfig(),
    last_pass_at=NOON - timedelta(seconds=16),
    last_pass_by=WORKER,
    last_retention_at=None,
)


def _task(**fields: Any) -> SweptTask:
    defaults: dict[str, Any] = {
        "task_id": UUID(int=1),
        "task_name": "mail.send",
        "queue_name": "mail",
        "state": TaskStatus.RUNNING,
        "owner_id": WORKER,
        "owner_state": "lost",
        "heartbeat_age": timedelta(minutes=6),
        "effective_threshold": timedelta(minutes=5),
        "resilient": False,
        "decision": DecisionKind.RETRY,
        "reason": "OWNER_LOST",
        "max_retries": 2,
        "retries_left": 2,
    }
    return SweptTask(**defaults | fields)


def _candidate(**fields: Any) -> StaleCandidate:
    task = _task(**fields)
    silence = task.heartbeat_age or task.overdue_by
    due_at = None if task.due_in is None else NOON + task.due_in
    return StaleCandidate(task=task, silent_since=NOON - silence if silence else None, owner=None, due_at=due_at)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "retry 2 of 3"),
        ({"decision": DecisionKind.FAIL, "code": "WORKER_CRASHED"}, "fail"),
        ({"decision": DecisionKind.FAIL, "code": "POISON_TASK"}, "fail, poison"),
        ({"decision": DecisionKind.REQUEUE, "state": TaskStatus.CLAIMED}, "requeue"),
        (
            {"decision": DecisionKind.LEAVE, "reason": "outage_grace", "held_until": NOON + timedelta(seconds=40)},
            "outage_grace 40s",
        ),
        (
            {"decision": DecisionKind.HOLD, "reason": "hook_skip", "held_until": NOON + timedelta(seconds=90)},
            "hold 1m30s",
        ),
        ({"reason": "HEARTBEAT_LOST", "owner_state": "running"}, "? alive"),
        ({"reason": "HEARTBEAT_LOST", "owner_state": "running", "due_in": timedelta(seconds=42)}, "retry 2 of 3"),
    ],
)
def test_decision_text_is_short(fields: dict[str, Any], text: str) -> None:
    assert decision_text(_candidate(**fields), NOON) == text


def test_claimed_task_of_live_worker_is_requeued() -> None:
    candidate = _candidate(
        state=TaskStatus.CLAIMED, reason="HEARTBEAT_LOST", owner_state="running", decision=DecisionKind.REQUEUE
    )
    assert decision_text(candidate, NOON) == "requeue"


def test_time_over_threshold_is_negative_before_it() -> None:
    candidate = _candidate()
    assert candidate.over_threshold(NOON) == timedelta(minutes=1)
    assert candidate.over_threshold(NOON - timedelta(minutes=2)) == timedelta(minutes=-1)


def test_unclaimed_task_counts_from_good_until() -> None:
    candidate = _candidate(
        state=TaskStatus.PENDING,
        owner_id=None,
        heartbeat_age=None,
        effective_threshold=None,
        overdue_by=timedelta(minutes=22),
        decision=DecisionKind.EXPIRE,
    )
    assert candidate.silence(NOON) is None
    assert candidate.over_threshold(NOON) == timedelta(minutes=22)
    assert owner_text(candidate, NOON) == "-"


def test_owner_without_row_shows_its_state() -> None:
    assert owner_text(_candidate(owner_state="missing"), NOON) == "000000a7 missing"


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (RecoveryConfig(), "next automatic sweep in 14s"),
        (RecoveryConfig(auto_fail_stale_running=False), "auto_fail_stale_running is off"),
        (None, "no live worker"),
    ],
)
def test_evidence_shows_next_automatic_sweep(config: RecoveryConfig | None, text: str) -> None:
    lines = list(evidence_lines(_candidate(), None, replace(STATUS, config=config), NOON))
    assert text in lines[-1]


def test_evidence_warns_about_live_owner() -> None:
    lines = list(evidence_lines(_candidate(reason="HEARTBEAT_LOST", owner_state="running"), None, STATUS, NOON))
    assert any("still running" in line for line in lines)


def test_silent_owner_is_not_shown_as_reporting() -> None:
    silent = make_worker(last_heartbeat_at=NOON - timedelta(minutes=6), heartbeat_age=timedelta(minutes=6))
    candidate = replace(_candidate(reason="HEARTBEAT_LOST", owner_state="running"), owner=silent)
    lines = list(evidence_lines(candidate, None, STATUS, NOON))
    assert f"its worker is silent too, since {format_time(silent.last_heartbeat_at)}" in lines
    assert not any("still sends heartbeats" in line for line in lines)
    assert decision_text(candidate, NOON) == "retry 2 of 3"


async def test_running_tasks_come_first_most_overdue_on_top() -> None:
    candidates = await load_stale_candidates(FakeSource(frozen_system(), read_only=True), SweepOptions())
    states = [row.task.state for row in candidates.stale]
    assert states == sorted(states, key=[TaskStatus.RUNNING, TaskStatus.CLAIMED].index)
    running = [row.over_threshold(NOON) for row in candidates.stale if row.task.state is TaskStatus.RUNNING]
    assert running == sorted(running, reverse=True)  # pyright: ignore[reportArgumentType, reportCallIssue]


async def test_silent_tasks_come_with_decision_and_time_soonest_first() -> None:
    candidates = await load_stale_candidates(FakeSource(frozen_system(), read_only=True), SweepOptions())
    assert [decision_text(row, NOON) for row in candidates.silent] == ["retry 3 of 4"]
    assert [row.over_threshold(NOON) for row in candidates.silent] == [timedelta(seconds=-19)]


def test_evidence_of_silent_task_says_what_comes_and_when() -> None:
    lines = list(evidence_lines(_candidate(due_in=timedelta(seconds=42)), None, STATUS, NOON))
    assert "in 42s, if no heartbeat arrives: retry, attempt 2 of 3" in lines
    later = list(evidence_lines(_candidate(due_in=timedelta(seconds=42)), None, STATUS, NOON + timedelta(seconds=50)))
    assert "with the next sweep: retry, attempt 2 of 3" in later
