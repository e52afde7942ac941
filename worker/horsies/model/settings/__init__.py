"""Settings as frozen, validated values; `horsies.config` reads them from files and the environment."""

from horsies.model.settings.app import (
    AppConfig,
    CustomQueueConfig,
    LogConfig,
    PayloadPolicy,
    ProjectConfig,
    QueueMode,
    TuiConfig,
)
from horsies.model.settings.base import Fault, Settings
from horsies.model.settings.broker import DatabaseUrl, PostgresConfig
from horsies.model.settings.recovery import RecoveryConfig, RetentionConfig
from horsies.model.settings.schedule import ScheduleConfig, TaskSchedule
from horsies.model.settings.worker import WorkerConfig, WorkerResilienceConfig, WorkerSettings

__all__ = [
    "AppConfig",
    "CustomQueueConfig",
    "DatabaseUrl",
    "Fault",
    "LogConfig",
    "PayloadPolicy",
    "PostgresConfig",
    "ProjectConfig",
    "QueueMode",
    "RecoveryConfig",
    "RetentionConfig",
    "ScheduleConfig",
    "Settings",
    "TaskSchedule",
    "TuiConfig",
    "WorkerConfig",
    "WorkerResilienceConfig",
    "WorkerSettings",
]
