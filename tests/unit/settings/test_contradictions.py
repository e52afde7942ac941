"""Rules between settings, and that all faults come at once."""

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


@pytest.mark.parametrize(("model", "given", "code", "words"), CONTRADICTIONS)
def test_a_contradiction_is_refused(model: type[Settings], given: dict[str, Any], code: ErrorCode, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        model(**given)
    assert caught.value.code is code
    assert not isinstance(caught.value, MultipleValidationErrors)


def test_a_worker_beats_as_often_as_the_shorter_of_the_other_beats() -> None:
    settings = RecoveryConfig(claimer_heartbeat_interval_ms=2_000, runner_heartbeat_interval_ms=5_000)
    assert settings.effective_worker_heartbeat_ms == 2_000
    assert RecoveryConfig(worker_heartbeat_interval_ms=1_500).effective_worker_heartbeat_ms == 1_500


def test_wrong_values_contradictions_and_unknown_names_are_reported_together() -> None:
    with pytest.raises(ConfigurationError) as caught:
        RecoveryConfig(check_interval_ms=1, running_stale_threshold_ms=30_000, max_crashs=3)  # pyright: ignore[reportCallIssue]
    assert isinstance(caught.value, MultipleValidationErrors)
    assert isinstance(caught.value, ValueError)
    assert [error.message.partition(":")[0] for error in caught.value.report.errors] == [
        "check_interval_ms",
        "max_crashs",
        "running_stale_threshold_ms",
    ]


def test_a_contradiction_is_found_beside_a_wrong_value_of_a_nested_group() -> None:
    with pytest.raises(ConfigurationError) as caught:
        AppConfig.model_validate({"recovery": {"check_interval_ms": 1}, "claim_lease_ms": 100})
    assert "recovery.check_interval_ms" in str(caught.value)
    assert "claim_lease_ms: must be at least twice recovery.claimer_heartbeat_interval_ms" in str(caught.value)


def test_a_rule_is_not_judged_on_a_value_that_is_wrong_itself() -> None:
    with pytest.raises(ConfigurationError) as caught:
        RecoveryConfig(running_stale_threshold_ms=30_000, runner_heartbeat_interval_ms=0)
    assert caught.value.message.startswith("runner_heartbeat_interval_ms")
    assert not isinstance(caught.value, MultipleValidationErrors)


def test_a_wrong_queue_in_the_list_does_not_look_like_a_missing_one() -> None:
    with pytest.raises(ConfigurationError) as caught:
        AppConfig.model_validate({"queue_mode": "custom", "custom_queues": [{"name": "mail", "priority": 0}]})
    assert caught.value.message.startswith("custom_queues[0].priority")


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigurationError, match="unknown key, did you mean check_interval_ms\\?") as caught:
        RecoveryConfig(check_intervall_ms=5)  # pyright: ignore[reportCallIssue]
    assert caught.value.code is ErrorCode.CONFIG_UNKNOWN_KEY


def test_a_name_like_no_other_gets_the_list_of_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="valid keys: audit_retention_hours, "):
        RetentionConfig(zzz=5)  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize(
    "window", ["heartbeat_retention_hours", "worker_state_retention_hours", "terminal_record_retention_hours"]
)
def test_windows_of_recovery_are_sent_there_from_retention(window: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RetentionConfig.model_validate({window: 5})
    assert caught.value.code is ErrorCode.CONFIG_INVALID_RETENTION
    assert caught.value.help_text == f"use recovery.{window}"


def test_an_error_points_at_the_line_of_the_caller() -> None:
    with pytest.raises(ConfigurationError) as caught:
        RecoveryConfig(max_crashes=0)
    assert caught.value.location is not None
    assert Path(caught.value.location.file) == Path(__file__)


@pytest.mark.parametrize("make", [RecoveryConfig.model_validate, RecoveryConfig.model_validate_strings])
@pytest.mark.parametrize("given", [{"max_crashes": "x"}, 5, None])
def test_the_exception_of_pydantic_never_gets_out(make: Any, given: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make(given)
    assert not isinstance(caught.value, ValidationError)
    assert caught.value.__context__ is None


def test_wrong_json_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError):
        RecoveryConfig.model_validate_json('{"max_crashes": 0}')


def test_settings_are_frozen() -> None:
    settings = RecoveryConfig()
    with pytest.raises(ConfigurationError, match="frozen"):
        settings.max_crashes = 5
    with pytest.raises(ConfigurationError, match="frozen"):
        del settings.max_crashes


def test_unchecked_settings_go_below_the_public_ranges_also_inside_an_app() -> None:
    fast = RecoveryConfig.unchecked(check_interval_ms=300, running_stale_threshold_ms=1_000)
    assert AppConfig(recovery=fast).recovery.check_interval_ms == 300
    assert fast.max_crashes == 10


def test_unchecked_settings_still_refuse_unknown_names() -> None:
    with pytest.raises(ConfigurationError, match="did you mean check_interval_ms"):
        RecoveryConfig.unchecked(check_interval=300)


def test_a_worker_serves_all_configured_queues_unless_told_otherwise() -> None:
    queues = [CustomQueueConfig(name="mail"), CustomQueueConfig(name="big")]
    app = AppConfig(queue_mode=QueueMode.CUSTOM, custom_queues=queues)
    assert WorkerConfig.of(app, WorkerSettings(), ProjectConfig()).queues == ["mail", "big"]
    assert WorkerConfig.of(app, WorkerSettings(queues=["big"]), ProjectConfig()).queues == ["big"]
    assert WorkerConfig.of(AppConfig(), WorkerSettings(), ProjectConfig()).queues == ["default"]


def test_a_worker_refuses_a_queue_nobody_configured() -> None:
    with pytest.raises(ConfigurationError, match="no queue 'mail'") as caught:
        WorkerConfig.of(AppConfig(), WorkerSettings(queues=["mail"]), ProjectConfig())
    assert caught.value.code is ErrorCode.TASK_INVALID_QUEUE
