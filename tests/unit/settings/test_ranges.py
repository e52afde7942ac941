"""Every range of a setting, at its limits and just outside."""

from __future__ import annotations

from typing import Any

import pytest

from horsies.errors import ConfigurationError, ErrorCode
from horsies.model.settings import (
    AppConfig,
    CustomQueueConfig,
    PayloadPolicy,
    PostgresConfig,
    RecoveryConfig,
    RetentionConfig,
    ScheduleConfig,
    Settings,
    TaskSchedule,
    TuiConfig,
    WorkerResilienceConfig,
    WorkerSettings,
)
from horsies.model.settings.patterns import IntervalSchedule

# The shortest heartbeat intervals, so that no contradiction hides a range.
SHORT_INTERVALS = {"runner_heartbeat_interval_ms": 1_000, "claimer_heartbeat_interval_ms": 1_000}
LONG = {
    "claimed_stale_threshold_ms": 3_600_000,
    "running_stale_threshold_ms": 7_200_000,
    "worker_stale_threshold_ms": 7_200_000,
}
# A threshold is at least two heartbeat intervals, so the shortest interval determines its minimum.
RANGES: list[tuple[type[Settings], ErrorCode, str, int, int | None, dict[str, Any]]] = [
    (
        RecoveryConfig,
        ErrorCode.CONFIG_INVALID_RECOVERY,
        "claimed_stale_threshold_ms",
        2_000,
        3_600_000,
        SHORT_INTERVALS,
    ),
    (
        RecoveryConfig,
        ErrorCode.CONFIG_INVALID_RECOVERY,
        "running_stale_threshold_ms",
        2_000,
        7_200_000,
        SHORT_INTERVALS,
    ),
    (RecoveryConfig, ErrorCode.CONFIG_INVALID_RECOVERY, "worker_stale_threshold_ms", 2_000, 7_200_000, SHORT_INTERVALS),
    (RecoveryConfig, ErrorCode.CONFIG_INVALID_RECOVERY, "check_interval_ms", 1_000, 600_000, {}),
    (RecoveryConfig, ErrorCode.CONFIG_INVALID_RECOVERY, "runner_heartbeat_interval_ms", 1_000, 120_000, LONG),
    (RecoveryConfig, ErrorCode.CONFIG_INVALID_RECOVERY, "claimer_heartbeat_interval_ms", 1_000, 120_000, LONG),
    (RecoveryConfig, ErrorCode.CONFIG_INVALID_RECOVERY, "heartbeat_retention_hours", 1, 8_760, {}),
    (RecoveryConfig, ErrorCode.CONFIG_INVALID_RECOVERY, "worker_state_retention_hours", 1, 8_760, {}),
    (RecoveryConfig, ErrorCode.CONFIG_INVALID_RECOVERY, "terminal_record_retention_hours", 1, 43_800, {}),
    (RecoveryConfig, ErrorCode.CONFIG_INVALID_RECOVERY, "recovery_delay_ms", 0, 3_600_000, {}),
    (RecoveryConfig, ErrorCode.CONFIG_INVALID_RECOVERY, "resilient_multiplier", 1, 100, {}),
    (RecoveryConfig, ErrorCode.CONFIG_INVALID_RECOVERY, "max_crashes", 1, 1_000, {}),
    (RecoveryConfig, ErrorCode.CONFIG_INVALID_RECOVERY, "worker_heartbeat_interval_ms", 1_000, 30_000, {}),
    (
        WorkerResilienceConfig,
        ErrorCode.CONFIG_INVALID_RESILIENCE,
        "db_retry_initial_ms",
        100,
        60_000,
        {"db_retry_max_ms": 300_000},
    ),
    (WorkerResilienceConfig, ErrorCode.CONFIG_INVALID_RESILIENCE, "db_retry_max_ms", 500, 300_000, {}),
    (WorkerResilienceConfig, ErrorCode.CONFIG_INVALID_RESILIENCE, "db_retry_max_attempts", 0, 10_000, {}),
    (WorkerResilienceConfig, ErrorCode.CONFIG_INVALID_RESILIENCE, "notify_poll_interval_ms", 1_000, 300_000, {}),
    (RetentionConfig, ErrorCode.CONFIG_INVALID_RETENTION, "interval_s", 60, 86_400, {}),
    (RetentionConfig, ErrorCode.CONFIG_INVALID_RETENTION, "batch_size", 50, 10_000, {}),
    (RetentionConfig, ErrorCode.CONFIG_INVALID_RETENTION, "pass_budget_s", 1, 3_600, {}),
    (RetentionConfig, ErrorCode.CONFIG_INVALID_RETENTION, "event_retention_hours", 1, 8_760, {}),
    (RetentionConfig, ErrorCode.CONFIG_INVALID_RETENTION, "audit_retention_hours", 1, 87_600, {}),
    (RetentionConfig, ErrorCode.CONFIG_INVALID_RETENTION, "paused_workflow_expire_hours", 1, 8_760, {}),
    (CustomQueueConfig, ErrorCode.CONFIG_INVALID_QUEUE_MODE, "priority", 1, 100, {"name": "mail"}),
    (CustomQueueConfig, ErrorCode.CONFIG_INVALID_QUEUE_MODE, "max_concurrency", 0, None, {"name": "mail"}),
    (AppConfig, ErrorCode.CONFIG_INVALID_CLUSTER_CAP, "cluster_wide_cap", 1, None, {}),
    (AppConfig, ErrorCode.CONFIG_INVALID_PREFETCH, "prefetch_buffer", 0, None, {"claim_lease_ms": 60_000}),
    (AppConfig, ErrorCode.CONFIG_INVALID_PREFETCH, "claim_lease_ms", 60_000, None, {"max_claim_renew_age_ms": 10**6}),
    (AppConfig, ErrorCode.CONFIG_INVALID_PREFETCH, "max_claim_renew_age_ms", 60_000, None, {"claim_lease_ms": 60_000}),
    (PostgresConfig, ErrorCode.CONFIG_INVALID_BROKER_POOL, "pool_size", 1, None, {}),
    (PostgresConfig, ErrorCode.CONFIG_INVALID_BROKER_POOL, "max_overflow", 0, None, {}),
    (PostgresConfig, ErrorCode.CONFIG_INVALID_BROKER_POOL, "pool_timeout", 1, None, {}),
    (PostgresConfig, ErrorCode.CONFIG_INVALID_BROKER_POOL, "pool_recycle", 1, None, {}),
    (PostgresConfig, ErrorCode.CONFIG_INVALID_BROKER_POOL, "worker_pool_size", 1, None, {}),
    (PostgresConfig, ErrorCode.CONFIG_INVALID_BROKER_POOL, "worker_max_overflow", 0, None, {}),
    (PostgresConfig, ErrorCode.CONFIG_INVALID_BROKER_POOL, "worker_child_pool_min_size", 0, 2, {}),
    (PostgresConfig, ErrorCode.CONFIG_INVALID_BROKER_POOL, "worker_child_pool_max_size", 1, None, {}),
    (PostgresConfig, ErrorCode.CONFIG_INVALID_KEEPALIVE, "tcp_keepalives_idle", 1, None, {}),
    (PostgresConfig, ErrorCode.CONFIG_INVALID_KEEPALIVE, "tcp_keepalives_interval", 1, None, {}),
    (PostgresConfig, ErrorCode.CONFIG_INVALID_KEEPALIVE, "tcp_keepalives_count", 1, None, {}),
    (PostgresConfig, ErrorCode.CONFIG_INVALID_KEEPALIVE, "tcp_keepalives_idle", 0, None, {"tcp_keepalives": False}),
    (PostgresConfig, ErrorCode.CONFIG_INVALID_KEEPALIVE, "tcp_user_timeout_ms", 0, None, {}),
    (WorkerSettings, ErrorCode.CONFIG_INVALID_WORKER, "processes", 1, None, {}),
    (WorkerSettings, ErrorCode.CONFIG_INVALID_WORKER, "max_claim_batch", 0, None, {}),
    (WorkerSettings, ErrorCode.CONFIG_INVALID_WORKER, "max_claim_per_worker", 0, None, {}),
    (WorkerSettings, ErrorCode.CONFIG_INVALID_WORKER, "max_tasks_per_child", 0, None, {}),
    (WorkerSettings, ErrorCode.CONFIG_INVALID_WORKER, "max_memory_per_child_mb", 1, None, {}),
    (WorkerSettings, ErrorCode.CONFIG_INVALID_WORKER, "max_chunk", 1, 64, {}),
    (WorkerSettings, ErrorCode.CONFIG_INVALID_WORKER, "async_concurrency", 1, 1_000, {}),
    (WorkerSettings, ErrorCode.CONFIG_INVALID_WORKER, "grace_s", 0, None, {}),
    (WorkerSettings, ErrorCode.CONFIG_INVALID_WORKER, "kill_wait_s", 0, None, {}),
    (WorkerSettings, ErrorCode.CONFIG_INVALID_WORKER, "snapshot_interval_ms", 1_000, 300_000, {}),
    (ScheduleConfig, ErrorCode.CONFIG_INVALID_SCHEDULE, "check_interval_seconds", 1, 60, {}),
    (PayloadPolicy, ErrorCode.CLI_INVALID_ARGS, "warn_bytes", 1, None, {}),
    (PayloadPolicy, ErrorCode.CLI_INVALID_ARGS, "reject_bytes", 1, None, {}),
    (TuiConfig, ErrorCode.CLI_INVALID_ARGS, "refresh_ms", 100, 60_000, {}),
    (TuiConfig, ErrorCode.CLI_INVALID_ARGS, "max_rows", 50, 5_000, {}),
]
INSIDE = [(model, name, edge, rest) for model, _, name, low, high, rest in RANGES for edge in {low, high or 10**6}]
OUTSIDE = [
    (model, code, name, beyond, rest)
    for model, code, name, low, high, rest in RANGES
    for beyond in (low - 1, *(() if high is None else (high + 1,)))
]
FRACTIONS = {"grace_s", "kill_wait_s", "pool_timeout", "pool_recycle"}
NOT_NUMBERS = [
    (model, name, wrong)
    for model, _, name, *_ in RANGES
    for wrong in (True, "5", [5], float("nan"), *(() if name in FRACTIONS else (10.5,)))
]


@pytest.mark.parametrize(("model", "name", "edge", "rest"), INSIDE)
def test_limits_of_a_range_are_valid(model: type[Settings], name: str, edge: int, rest: dict[str, Any]) -> None:
    assert getattr(model(**{**rest, name: edge}), name) == edge


@pytest.mark.parametrize(("model", "code", "name", "beyond", "rest"), OUTSIDE)
def test_value_out_of_range_has_the_settings_error_code(
    model: type[Settings], code: ErrorCode, name: str, beyond: int, rest: dict[str, Any]
) -> None:
    with pytest.raises(ConfigurationError, match=rf"^error.*: {name}: must ") as caught:
        model(**{**rest, name: beyond})
    assert caught.value.code is code


@pytest.mark.parametrize(("model", "name", "wrong"), NOT_NUMBERS)
def test_non_integers_are_rejected(model: type[Settings], name: str, wrong: object) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}: must be a"):
        model(**{name: wrong})


def test_seconds_may_have_fractions() -> None:
    assert WorkerSettings(grace_s=0.5).grace_s == 0.5
    assert PostgresConfig(pool_timeout=0.2).pool_timeout == 0.2


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (RecoveryConfig, "heartbeat_retention_hours"),
        (RecoveryConfig, "worker_state_retention_hours"),
        (RecoveryConfig, "terminal_record_retention_hours"),
        (RecoveryConfig, "worker_heartbeat_interval_ms"),
        (RetentionConfig, "event_retention_hours"),
        (RetentionConfig, "audit_retention_hours"),
        (RetentionConfig, "paused_workflow_expire_hours"),
        (AppConfig, "cluster_wide_cap"),
        (AppConfig, "claim_lease_ms"),
        (PayloadPolicy, "warn_bytes"),
        (WorkerSettings, "grace_s"),
    ],
)
def test_none_is_valid_where_documented(model: type[Settings], name: str) -> None:
    assert getattr(model(**{name: None}), name) is None


@pytest.mark.parametrize("name", ["", "a b", "ü", "a/b", "x" * 101, "a\n"])
def test_invalid_queue_names_are_rejected(name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        CustomQueueConfig(name=name)
    assert caught.value.code is ErrorCode.CONFIG_INVALID_QUEUE_MODE


@pytest.mark.parametrize("name", ["", " ", " a", "a\n", "a\0b", "\x1b[31mred", "x" * 256])
def test_invalid_schedule_names_are_rejected(name: str) -> None:
    with pytest.raises(ConfigurationError, match="printable"):
        TaskSchedule(name=name, task_name="add", pattern=IntervalSchedule(hours=1))


@pytest.mark.parametrize("name", ["a", "A.b-c_9", "x" * 100])
def test_queue_names_may_contain_dots_dashes_and_underscores(name: str) -> None:
    assert CustomQueueConfig(name=name).name == name


@pytest.mark.parametrize("schema", ["", "1a", "a b", 'a"b', "a;drop", "x" * 64, "a\n"])
def test_invalid_schema_names_are_rejected(schema: str) -> None:
    with pytest.raises(ConfigurationError, match="schema"):
        PostgresConfig(schema=schema)


@pytest.mark.parametrize("code", ["lower", "A-B", "_A", "A_", "", "A__B", "1A"])
def test_error_codes_must_be_upper_snake(code: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        AppConfig(default_unhandled_error_code=code, exception_mapper={ValueError: code})
    assert caught.value.code is ErrorCode.CONFIG_INVALID_EXCEPTION_MAPPER
    assert str(caught.value).count("HRS-209") == 2


@pytest.mark.parametrize("mapper", [{"ValueError": "X"}, {int: "X"}, {ValueError: 5}, ["X"]])
def test_invalid_exception_mappers_are_rejected(mapper: Any) -> None:
    with pytest.raises(ConfigurationError, match="exception_mapper") as caught:
        AppConfig(exception_mapper=mapper)
    assert caught.value.code is ErrorCode.CONFIG_INVALID_EXCEPTION_MAPPER


def test_valid_exception_mapper_is_kept() -> None:
    assert AppConfig(exception_mapper={KeyError: "NOT_THERE"}).exception_mapper == {KeyError: "NOT_THERE"}
