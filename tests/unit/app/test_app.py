from __future__ import annotations

import logging
from pathlib import Path

import pytest

from horsies import AppConfig, ConfigurationError, CustomQueueConfig, ErrorCode, Horsies, QueueMode, TaskDefinitionError

CUSTOM = AppConfig(
    queue_mode=QueueMode.CUSTOM, custom_queues=[CustomQueueConfig(name="post"), CustomQueueConfig(name="mail")]
)


def test_valid_queue_names_are_default_or_configured() -> None:
    assert Horsies(AppConfig()).get_valid_queue_names() == ["default"]
    assert Horsies(CUSTOM).get_valid_queue_names() == ["mail", "post"]


def test_valid_queue_name_is_returned() -> None:
    assert Horsies(AppConfig()).validate_queue_name(None) == "default"
    assert Horsies(CUSTOM).validate_queue_name("mail") == "mail"


@pytest.mark.parametrize(
    ("config", "queue_name", "code"),
    [
        (AppConfig(), "mail", ErrorCode.CONFIG_INVALID_QUEUE_MODE),
        (CUSTOM, None, ErrorCode.CONFIG_INVALID_QUEUE_MODE),
        (CUSTOM, "fax", ErrorCode.TASK_INVALID_QUEUE),
    ],
)
def test_unknown_queue_name_raises(config: AppConfig, queue_name: str | None, code: ErrorCode) -> None:
    with pytest.raises((ConfigurationError, TaskDefinitionError)) as caught:
        Horsies(config).validate_queue_name(queue_name)
    assert caught.value.code is code


def test_discovered_modules_are_not_imported_and_returned_as_copy() -> None:
    app = Horsies(AppConfig())
    app.discover_tasks(["no.such.module", "tasks.py"])
    found = app.get_discovered_task_modules()
    found.clear()
    assert app.get_discovered_task_modules() == ["no.such.module", "tasks.py"]


def test_second_discover_replaces_modules_with_warning(caplog: pytest.LogCaptureFixture) -> None:
    app = Horsies(AppConfig())
    with caplog.at_level(logging.WARNING, "horsies"):
        app.discover_tasks(["one"])
        assert not caplog.records
        app.discover_tasks(["other"])
    assert app.get_discovered_task_modules() == ["other"]
    assert len(caplog.records) == 1


def test_imports_suppress_sends_of_every_app(tmp_path: Path) -> None:
    app = Horsies(AppConfig())
    module = tmp_path / "asking_at_import.py"
    module.write_text("from horsies import AppConfig, Horsies\nanswer = Horsies(AppConfig()).are_sends_suppressed()\n")
    (imported,) = app.import_task_modules([str(module)])
    assert vars(imported)["answer"] is True
    assert not app.are_sends_suppressed()


def test_creating_app_and_broker_opens_no_connection() -> None:
    app = Horsies(AppConfig())
    broker = app.get_broker()
    app.set_role("worker")
    assert app.get_broker() is broker
    assert broker.role == "worker"
    app.close()
