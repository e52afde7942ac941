"""The documented defaults, repeated here so that a change is noticed."""

from __future__ import annotations

from typing import Any

import pytest

from horsies.model.settings import (
    AppConfig,
    CustomQueueConfig,
    LogConfig,
    PayloadPolicy,
    PostgresConfig,
    ProjectConfig,
    QueueMode,
    RecoveryConfig,
    RetentionConfig,
    ScheduleConfig,
    Settings,
    TaskSchedule,
    TuiConfig,
    WorkerResilienceConfig,
    WorkerSettings,
)
from horsies.model.settings.broker import DatabaseUrl
from horsies.model.settings.patterns import HourlySchedule
from horsies.model.settings.worker import usable_cpus

DEFAULTS: list[tuple[Settings, dict[str, Any]]] = [
    (
        AppConfig(),
        {
            "name": None,
            "queue_mode": QueueMode.DEFAULT,
            "custom_queues": None,
            "broker": PostgresConfig(),
            "cluster_wide_cap": None,
            "prefetch_buffer": 0,
            "claim_lease_ms": None,
            "max_claim_renew_age_ms": 180_000,
            "payload": PayloadPolicy(),
            "recovery": RecoveryConfig(),
            "resilience": WorkerResilienceConfig(),
            "retention": RetentionConfig(),
            "schedule": None,
            "exception_mapper": {},
            "default_unhandled_error_code": "UNHANDLED_EXCEPTION",
            "resend_on_transient_err": False,
            "unknown_task_grace_s": 3_600,
        },
    ),
    (CustomQueueConfig(name="mail"), {"name": "mail", "priority": 1, "max_concurrency": None}),
    (
        PostgresConfig(),
        {
            "database_url": DatabaseUrl.parse("embedded"),
            "session_database_url": None,
            "pgbouncer_transaction_mode": False,
            "schema": "public",
            "auto_migrate": True,
            "pool_size": 5,
            "max_overflow": 10,
            "pool_timeout": 30,
            "pool_recycle": 1800,
            "pool_pre_ping": True,
            "echo": False,
            "worker_pool_size": 3,
            "worker_max_overflow": 2,
            "worker_child_pool_min_size": 0,
            "worker_child_pool_max_size": 2,
            "tcp_keepalives": True,
            "tcp_keepalives_idle": 30,
            "tcp_keepalives_interval": 10,
            "tcp_keepalives_count": 3,
            "tcp_user_timeout_ms": 30_000,
        },
    ),
    (
        RecoveryConfig(),
        {
            "auto_requeue_stale_claimed": True,
            "claimed_stale_threshold_ms": 120_000,
            "auto_fail_stale_running": True,
            "running_stale_threshold_ms": 300_000,
            "check_interval_ms": 30_000,
            "runner_heartbeat_interval_ms": 30_000,
            "claimer_heartbeat_interval_ms": 30_000,
            "heartbeat_retention_hours": 24,
            "worker_state_retention_hours": 168,
            "terminal_record_retention_hours": 720,
            "recovery_delay_ms": 0,
            "resilient_multiplier": 3,
            "resilient_flags": ["infrastructure_resilient"],
            "max_crashes": 10,
            "outage_grace": True,
            "worker_heartbeat_interval_ms": None,
            "worker_stale_threshold_ms": 300_000,
        },
    ),
    (
        WorkerResilienceConfig(),
        {
            "db_retry_initial_ms": 500,
            "db_retry_max_ms": 30_000,
            "db_retry_max_attempts": 0,
            "notify_poll_interval_ms": 5_000,
        },
    ),
    (
        RetentionConfig(),
        {
            "interval_s": 3_600,
            "batch_size": 500,
            "pass_budget_s": 60,
            "event_retention_hours": 168,
            "audit_retention_hours": 8_760,
            "paused_workflow_expire_hours": None,
        },
    ),
    (
        WorkerSettings(),
        {
            "processes": usable_cpus(),
            "queues": None,
            "max_claim_batch": 0,
            "max_claim_per_worker": 0,
            "max_tasks_per_child": 0,
            "max_memory_per_child_mb": None,
            "max_chunk": 64,
            "async_concurrency": 10,
            "grace_s": 300,
            "kill_wait_s": 5,
            "snapshot_interval_ms": 30_000,
            "with_scheduler": None,
        },
    ),
    (PayloadPolicy(), {"warn_bytes": 1_048_576, "reject_bytes": None}),
    (ScheduleConfig(), {"enabled": True, "schedules": [], "check_interval_seconds": 1}),
    (
        TaskSchedule(name="n", task_name="t", pattern=HourlySchedule(minute=5)),
        {
            "name": "n",
            "task_name": "t",
            "workflow": None,
            "pattern": HourlySchedule(minute=5),
            "args": (),
            "kwargs": {},
            "queue_name": None,
            "priority": None,
            "enabled": True,
            "timezone": "UTC",
            "dst_gap": "skip",
            "missed": "latest",
            "missed_within": None,
            "grace": 60.0,
            "catch_up_missed": False,
            "max_catch_up_runs": 100,
            "good_for": None,
            "jitter_s": None,
            "overlap": "allow",
            "pause_after_failures": None,
            "source": "code",
        },
    ),
    (
        TuiConfig(),
        {
            "read_only": False,
            "theme": "horsies-dark",
            "refresh_ms": 250,
            "max_rows": 500,
            "require_reason": False,
            "env": "",
            "ascii": False,
            "show_args": "masked",
            "mask_keys": ["password", "token", "secret", "key", "authorization"],
            "keys": {},
            "filters": {},
        },
    ),
    (LogConfig(), {"level": "INFO", "format": "text", "statements": False}),
    (ProjectConfig(), {"locator": None, "modules": []}),
]


@pytest.mark.parametrize("settings", [settings for settings, _ in DEFAULTS], ids=lambda item: type(item).__name__)
def test_defaults_are_valid(settings: Settings) -> None:
    assert type(settings)(**{name: getattr(settings, name) for name in type(settings).model_fields}) == settings


@pytest.mark.parametrize(("settings", "expected"), DEFAULTS, ids=lambda item: type(item).__name__)
def test_documented_defaults(settings: Settings, expected: dict[str, Any]) -> None:
    assert {name: getattr(settings, name) for name in type(settings).model_fields} == expected
