from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from horsies_tui.fleet import QueueHealth, WorkerHealth, drain_time, queue_health, worker_health
from tests.support.rows import NOON, make_queue, make_worker

LATE = timedelta(seconds=61)


@pytest.mark.parametrize(
    ("fields", "health"),
    [
        ({}, QueueHealth.OK),
        ({"oldest_due_age": timedelta(seconds=60)}, QueueHealth.OK),
        ({"oldest_due_age": LATE}, QueueHealth.BACKLOG),
        ({"oldest_due_age": LATE, "served_by": 0}, QueueHealth.UNSERVED),
        ({"served_by": 0}, QueueHealth.UNSERVED),
        ({"paused_at": NOON, "served_by": 0, "oldest_due_age": LATE}, QueueHealth.PAUSED),
    ],
)
def test_queue_health_is_the_worst_condition(fields: dict[str, Any], health: QueueHealth) -> None:
    assert queue_health(make_queue(**fields)) is health


@pytest.mark.parametrize(
    ("fields", "health"),
    [
        ({}, WorkerHealth.RUNNING),
        ({"state": "starting"}, WorkerHealth.STARTING),
        ({"cpu_percent": 84.9, "memory_percent": 84.9}, WorkerHealth.RUNNING),
        ({"cpu_percent": 85.0}, WorkerHealth.HOT),
        ({"memory_percent": 96.0}, WorkerHealth.HOT),
        ({"is_degraded": True, "cpu_percent": 99.0}, WorkerHealth.DEGRADED),
        ({"is_degraded": True, "is_silent": True}, WorkerHealth.SILENT),
        ({"state": "draining", "is_degraded": True}, WorkerHealth.DRAINING),
        ({"state": "draining", "cpu_percent": 99.0}, WorkerHealth.DRAINING),
        ({"is_silent": True, "cpu_percent": 99.0}, WorkerHealth.SILENT),
        ({"is_silent": True, "is_stale": True}, WorkerHealth.STALE),
        ({"is_stale": True, "state": "draining"}, WorkerHealth.STALE),
        ({"is_stale": True, "state": "lost"}, WorkerHealth.LOST),
    ],
)
def test_worker_health_is_the_worst_condition(fields: dict[str, Any], health: WorkerHealth) -> None:
    assert worker_health(make_worker(**fields)) is health


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"pending": 1000, "finished_last_minute": 125}, timedelta(minutes=8)),
        ({"pending": 1000}, None),
        ({"pending": 1000, "finished_last_minute": 125, "paused_at": NOON}, None),
        ({"pending": 1000, "finished_last_minute": 125, "served_by": 0}, None),
    ],
)
def test_drain_time_uses_last_minute_rate(fields: dict[str, Any], expected: timedelta | None) -> None:
    assert drain_time(make_queue(**fields)) == expected
