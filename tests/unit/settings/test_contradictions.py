"""Contradictions between settings; all faults are reported together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from horsies.errors import ConfigurationError, ErrorCode, MultipleValidationErrors
from horsies.model.settings import (
    AppConfig,
    CustomQueueConfig,
    PostgresConfig,
    ProjectConfig,
    QueueMode,
    RecoveryConfig,
    RetentionConfig,
    ScheduleConfig,
    Settings,
    WorkerConfig,
    WorkerResilienceConfig,
    WorkerSettings,
)

MAIL = {"name": "mail"}
URL = "postgresql://h/db"
CONTRADICTIONS: list[tuple[type[Settings], dict[str, Any], ErrorCode, str]] = [
    (RecoveryConfig, {"claimed_stale_threshold_ms": 59_999}, ErrorCode.CONFIG_INVALID_RECOVERY, "60000"),
    (RecoveryConfig, {"running_stale_threshold_ms": 59_999}, ErrorCode.CONFIG_INVALID_RECOVERY, "60000"),
    (RecoveryConfig, {"worker_stale_threshold_ms": 59_999}, ErrorCode.CONFIG_INVALID_RECOVERY, "60000"),
    (RecoveryConfig, {"worker_heartbeat_interval_ms": 30_001}, ErrorCode.CONFIG_INVALID_RECOVERY, "30000"),
    (WorkerResilienceConfig, {"db_retry_initial_ms": 30_001}, ErrorCode.CONFIG_INVALID_RESILIENCE, "30001"),
    (PostgresConfig, {"worker_child_pool_min_size": 3}, ErrorCode.CONFIG_INVALID_BROKER_POOL, "max_size"),
    (PostgresConfig, {"tcp_keepalives_count": 0}, ErrorCode.CONFIG_INVALID_KEEPALIVE, "at least 1"),
    (PostgresConfig, {"pgbouncer_transaction_mode": True}, ErrorCode.BROKER_INVALID_URL, "session_database_url"),
    (PostgresConfig, {"session_database_url": ""}, ErrorCode.BROKER_INVALID_URL, "session_database_url"),
    (PostgresConfig, {"session_database_url": URL}, ErrorCode.BROKER_INVALID_URL, "database_url is embedded"),
    (
        PostgresConfig,
        {"pgbouncer_transaction_mode": True, "database_url": URL, "session_database_url": URL},
        ErrorCode.BROKER_INVALID_URL,
        "must differ",
    ),
    (AppConfig, {"custom_queues": [MAIL]}, ErrorCode.CONFIG_INVALID_QUEUE_MODE, "must be custom"),
    (AppConfig, {"queue_mode": "custom"}, ErrorCode.CONFIG_INVALID_QUEUE_MODE, "at least one queue"),
    (AppConfig, {"queue_mode": "custom", "custom_queues": []}, ErrorCode.CONFIG_INVALID_QUEUE_MODE, "at least one"),
    (
        AppConfig,
        {"queue_mode": "custom", "custom_queues": [MAIL, MAIL]},
        ErrorCode.CONFIG_INVALID_QUEUE_MODE,
        "'mail' is used 2 times",
    ),
    (
        AppConfig,
        {"cluster_wide_cap": 5, "prefetch_buffer": 1, "claim_lease_ms": 60_000},
        ErrorCode.CONFIG_INVALID_CLUSTER_CAP,
        "prefetch_buffer",
    ),
    (AppConfig, {"prefetch_buffer": 1}, ErrorCode.CONFIG_INVALID_PREFETCH, "claim_lease_ms"),
    (AppConfig, {"claim_lease_ms": 59_999}, ErrorCode.CONFIG_INVALID_PREFETCH, "60000"),
    (AppConfig, {"claim_lease_ms": 180_001}, ErrorCode.CONFIG_INVALID_PREFETCH, "max_claim_renew_age_ms"),
    (
        ScheduleConfig,
        {"schedules": [{"name": "a", "task_name": "t", "pattern": {"type": "daily", "time": "02:30"}}] * 2},
        ErrorCode.CONFIG_INVALID_SCHEDULE,
        "'a' is used 2 times",
    ),
]


@pytest.mark.parametrize(("model", "given", "code", "message"), CONTRADICTIONS)
def test_contradiction_is_rejected(model: type[Settings], given: dict[str, Any], code: ErrorCode, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        model(**given)
    assert caught.value.code is code
    assert not isinstance(caught.value, MultipleValidationErrors)


def test_worker_heartbeat_defaults_to_the_shorter_interval() -> None:
    settings = RecoveryConfig(claimer_heartbeat_interval_ms=2_000, runner_heartbeat_interval_ms=5_000)
    assert settings.effective_worker_heartbeat_ms == 2_000
    assert RecoveryConfig(worker_heartbeat_interval_ms=1_500).effective_worker_heartbeat_ms == 1_500


def test_all_kinds_of_faults_are_reported_together() -> None:
    with pytest.raises(ConfigurationError) as caught:
        RecoveryConfig(check_interval_ms=1, running_stale_threshold_ms=30_000, max_crashs=3)  # pyright: ignore[reportCallIssue]
    assert isinstance(caught.value, MultipleValidationErrors)
    assert isinstance(caught.value, ValueError)
    assert [error.message.partition(":")[0] for error in caught.value.report.errors] == [
        "check_interval_ms",
        "max_crashs",
        "running_stale_threshold_ms",
    ]


def test_contradiction_is_found_despite_an_invalid_nested_value() -> None:
    with pytest.raises(ConfigurationError) as caught:
        AppConfig.model_validate({"recovery": {"check_interval_ms": 1}, "claim_lease_ms": 100})
    assert "recovery.check_interval_ms" in str(caught.value)
    assert "claim_lease_ms: must be at least twice recovery.claimer_heartbeat_interval_ms" in str(caught.value)


def test_rules_ignore_invalid_values() -> None:
    with pytest.raises(ConfigurationError) as caught:
        RecoveryConfig(running_stale_threshold_ms=30_000, runner_heartbeat_interval_ms=0)
    assert caught.value.message.startswith("runner_heartbeat_interval_ms")
    assert not isinstance(caught.value, MultipleValidationErrors)


def test_invalid_queue_is_not_reported_as_missing() -> None:
    with pytest.raises(ConfigurationError) as caught:
        AppConfig.model_validate({"queue_mode": "custom", "custom_queues": [{"name": "mail", "priority": 0}]})
    assert caught.value.message.startswith("custom_queues[0].priority")


def test_unknown_name_suggests_the_closest_one() -> None:
    with pytest.raises(ConfigurationError, match="unknown key, did you mean check_interval_ms\\?") as caught:
        RecoveryConfig(check_intervall_ms=5)  # pyright: ignore[reportCallIssue]
    assert caught.value.code is ErrorCode.CONFIG_UNKNOWN_KEY


def test_unknown_name_without_a_close_match_lists_all() -> None:
    with pytest.raises(ConfigurationError, match="valid keys: audit_retention_hours, "):
        RetentionConfig(zzz=5)  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize(
    "window", ["heartbeat_retention_hours", "worker_state_retention_hours", "terminal_record_retention_hours"]
)
def test_recovery_windows_in_retention_name_the_right_place(window: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RetentionConfig.model_validate({window: 5})
    assert caught.value.code is ErrorCode.CONFIG_INVALID_RETENTION
    assert caught.value.help_text == f"use recovery.{window}"


def test_error_points_at_the_callers_line() -> None:
    with pytest.raises(ConfigurationError) as caught:
        RecoveryConfig(max_crashes=0)
    assert caught.value.location is not None
    assert Path(caught.value.location.file) == Path(__file__)


@pytest.mark.parametrize("make", [RecoveryConfig.model_validate, RecoveryConfig.model_validate_strings])
@pytest.mark.parametrize("given", [{"max_crashes": "x"}, 5, None])
def test_pydantic_errors_are_always_converted(make: Any, given: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make(given)
    assert not isinstance(caught.value, ValidationError)
    assert caught.value.__context__ is None


def test_invalid_json_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError):
        RecoveryConfig.model_validate_json('{"max_crashes": 0}')


def test_settings_are_frozen() -> None:
    settings = RecoveryConfig()
    with pytest.raises(ConfigurationError, match="frozen"):
        settings.max_crashes = 5
    with pytest.raises(ConfigurationError, match="frozen"):
        del settings.max_crashes


def test_unchecked_settings_may_leave_the_public_ranges() -> None:
    fast = RecoveryConfig.unchecked(check_interval_ms=300, running_stale_threshold_ms=1_000)
    assert AppConfig(recovery=fast).recovery.check_interval_ms == 300
    assert fast.max_crashes == 10


def test_unchecked_settings_reject_unknown_names() -> None:
    with pytest.raises(ConfigurationError, match="did you mean check_interval_ms"):
        RecoveryConfig.unchecked(check_interval=300)


def test_worker_serves_all_configured_queues_by_default() -> None:
    queues = [CustomQueueConfig(name="mail"), CustomQueueConfig(name="big")]
    app = AppConfig(queue_mode=QueueMode.CUSTOM, custom_queues=queues)
    assert WorkerConfig.of(app, WorkerSettings(), ProjectConfig()).queues == ["mail", "big"]
    assert WorkerConfig.of(app, WorkerSettings(queues=["big"]), ProjectConfig()).queues == ["big"]
    assert WorkerConfig.of(AppConfig(), WorkerSettings(), ProjectConfig()).queues == ["default"]


def test_worker_rejects_an_unknown_queue() -> None:
    with pytest.raises(ConfigurationError, match="no queue 'mail'") as caught:
        WorkerConfig.of(AppConfig(), WorkerSettings(queues=["mail"]), ProjectConfig())
    assert caught.value.code is ErrorCode.TASK_INVALID_QUEUE
