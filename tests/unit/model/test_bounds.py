"""Recovery bounds, connection budget and limits of a worker, and their descriptions."""

from __future__ import annotations

import pytest

from horsies.model.bounds import (
    ConnectionBudget,
    RecoveryBounds,
    connection_budget,
    describe_limits,
    describe_queue,
    format_ms,
    recovery_bounds,
)
from horsies.model.settings.app import AppConfig, CustomQueueConfig
from horsies.model.settings.broker import DatabaseUrl
from horsies.model.settings.recovery import RecoveryConfig
from horsies.model.settings.worker import WorkerConfig


def test_bound_is_threshold_plus_check_interval() -> None:
    assert recovery_bounds(RecoveryConfig()) == RecoveryBounds(claimed_ms=150_000, running_ms=330_000)


def test_resilient_multiplier_applies_to_the_threshold_only() -> None:
    bounds = recovery_bounds(RecoveryConfig(resilient_multiplier=3), is_resilient=True)

    assert (bounds.claimed_ms, bounds.running_ms, bounds.child_death_ms) == (390_000, 930_000, 1_000)


def test_describe_recovery_bounds() -> None:
    text = recovery_bounds(RecoveryConfig()).describe()

    assert text == "if this worker dies: claimed tasks back in 2m30s, running in 5m30s; if a child dies: 1s"


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0s"), (300, "0.3s"), (1_500, "1.5s"), (121_000, "2m01s"), (7_500_000, "2h05m"), (7_800_000, "2h10m")],
)
def test_durations_are_formatted_briefly(ms: int, text: str) -> None:
    assert format_ms(ms) == text


@pytest.mark.parametrize("processes", [1, 32])
def test_worker_connections_do_not_depend_on_processes(processes: int) -> None:
    worker = WorkerConfig(dsn=DatabaseUrl.parse("embedded"), processes=processes)

    assert connection_budget(worker) == ConnectionBudget(worker=7, children=2 * processes)


def test_budget_includes_two_connections_for_a_reaper_pass() -> None:
    worker = WorkerConfig(dsn=DatabaseUrl.parse("embedded"), processes=1, parent_pool_size=1, parent_max_overflow=0)

    assert connection_budget(worker).worker == 4


def test_describe_connection_budget() -> None:
    text = ConnectionBudget(worker=7, children=8).describe()

    assert text == "at most 7, plus 8 if tasks send tasks"


@pytest.mark.parametrize(
    ("max_concurrency", "text"),
    [
        (None, "mail (priority 1, no cap)"),
        (5, "mail (priority 1, at most 5 in flight)"),
        (0, "mail (priority 1, closed: no claims)"),
    ],
)
def test_describe_queue_with_its_cap(max_concurrency: int | None, text: str) -> None:
    assert describe_queue(CustomQueueConfig(name="mail", max_concurrency=max_concurrency)) == text


@pytest.mark.parametrize(
    ("app", "text"),
    [
        (AppConfig(), "no global cap, no prefetch"),
        (AppConfig(cluster_wide_cap=9), "at most 9 in flight in all workers, no prefetch"),
        (AppConfig(prefetch_buffer=4, claim_lease_ms=60_000), "no global cap, prefetch 4, lease 1m"),
    ],
)
def test_describe_fleet_limits(app: AppConfig, text: str) -> None:
    assert describe_limits(app) == text
