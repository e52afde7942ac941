"""The documented import paths lead to the same objects."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import horsies
import horsies_ops

ALIASES = [
    ("horsies.core.models.recovery", "RecoveryConfig", "horsies.model.settings.recovery"),
    ("horsies.core.models.recovery", "RetentionConfig", "horsies.model.settings.recovery"),
    ("horsies.core.models.app", "AppConfig", "horsies.model.settings.app"),
    ("horsies.core.models.broker", "PostgresConfig", "horsies.model.settings.broker"),
    ("horsies.core.models.queues", "CustomQueueConfig", "horsies.model.settings.app"),
    ("horsies.core.models.queues", "QueueMode", "horsies.model.settings.app"),
    ("horsies.core.models.resilience", "WorkerResilienceConfig", "horsies.model.settings.worker"),
    ("horsies.core.models.schedule", "ScheduleConfig", "horsies.model.settings.schedule"),
    ("horsies.core.models.tasks", "RetryPolicy", "horsies.model.retry"),
    ("horsies.core.models.workflow", "SubWorkflowError", "horsies.model.task_result"),
    ("horsies.core.errors", "ConfigurationError", "horsies.errors"),
    ("horsies.core.models.recovery", "INFRASTRUCTURE_RESILIENT_FLAG", "horsies.model.settings.recovery"),
    ("horsies.core.models.resilience", "INFRASTRUCTURE_RESILIENT_FLAG", "horsies.model.settings.recovery"),
    *[
        ("horsies.core.models.tasks", name, "horsies")
        for name in ("BuiltInTaskCode", "ContractCode", "OperationalErrorCode", "OutcomeCode", "RetrievalCode")
    ],
    *[("horsies.core.models.tasks", name, "horsies") for name in ("TaskSendError", "TaskSendErrorCode", "TaskHandle")],
    *[
        ("horsies.core.models.workflow", name, "horsies")
        for name in ("HandleErrorCode", "HandleOperationError", "HandleResult", "WorkflowHandle")
    ],
    ("horsies.core.models.workflow", "WorkflowValidationError", "horsies.errors"),
    ("horsies.core.models.broker", "PostgresBroker", "horsies"),
]


@pytest.mark.parametrize(("alias", "name", "home"), ALIASES)
def test_alias_is_the_same_object(alias: str, name: str, home: str) -> None:
    assert getattr(importlib.import_module(alias), name) is getattr(importlib.import_module(home), name)


def test_loading_settings_does_not_import_asyncpg() -> None:
    program = "import sys, horsies.config; sys.exit('asyncpg' in sys.modules)"
    environ = {"PYTHONPATH": str(Path(horsies.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", program], env=environ, timeout=60)
    assert done.returncode == 0


def test_flag_of_resilient_tasks_selects_the_longer_thresholds() -> None:
    assert horsies.INFRASTRUCTURE_RESILIENT_FLAG in horsies.RecoveryConfig().resilient_flags


def test_dir_of_the_toolkit_lists_its_names() -> None:
    assert set(horsies_ops.__all__) <= set(dir(horsies_ops))
