"""Settings as frozen values that are right by construction; where they come from is `horsies.config`'s business."""

from horsies.model.settings.app import AppConfig
from horsies.model.settings.base import Settings
from horsies.model.settings.broker import PostgresConfig
from horsies.model.settings.fault import Fault
from horsies.model.settings.log import LogConfig
from horsies.model.settings.payload import PayloadPolicy
from horsies.model.settings.project import ProjectConfig
from horsies.model.settings.queues import CustomQueueConfig, QueueMode
from horsies.model.settings.recovery import RecoveryConfig
from horsies.model.settings.resilience import WorkerResilienceConfig
from horsies.model.settings.retention import RetentionConfig
from horsies.model.settings.schedule import ScheduleConfig, TaskSchedule
from horsies.model.settings.tui import TuiConfig
from horsies.model.settings.url import DatabaseUrl
from horsies.model.settings.worker import WorkerConfig, WorkerSettings

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
