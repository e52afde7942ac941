from __future__ import annotations

import logging
from pathlib import Path

import pytest

from horsies import AppConfig, ConfigurationError, CustomQueueConfig, ErrorCode, Horsies, QueueMode, TaskDefinitionError

CUSTOM = AppConfig(
    queue_mode=QueueMode.CUSTOM, custom_queues=[CustomQueueConfig(name="post"), CustomQueueConfig(name="mail")]
)


def test_an_app_has_its_default_queue_or_those_configured() -> None:
    assert Horsies(AppConfig()).get_valid_queue_names() == ["default"]
    assert Horsies(CUSTOM).get_valid_queue_names() == ["mail", "post"]


def test_a_valid_queue_is_named_in_return() -> None:
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
def test_any_other_queue_is_refused(config: AppConfig, queue_name: str | None, code: ErrorCode) -> None:
    with pytest.raises((ConfigurationError, TaskDefinitionError)) as caught:
        Horsies(config).validate_queue_name(queue_name)
    assert caught.value.code is code


def test_discovering_imports_nothing_and_hands_out_a_copy() -> None:
    app = Horsies(AppConfig())
    app.discover_tasks(["no.such.module", "tasks.py"])
    found = app.get_discovered_task_modules()
    found.clear()
    assert app.get_discovered_task_modules() == ["no.such.module", "tasks.py"]


def test_discovering_again_replaces_and_warns(caplog: pytest.LogCaptureFixture) -> None:
    app = Horsies(AppConfig())
    with caplog.at_level(logging.WARNING, "horsies"):
        app.discover_tasks(["one"])
        assert not caplog.records
        app.discover_tasks(["other"])
    assert app.get_discovered_task_modules() == ["other"]
    assert len(caplog.records) == 1


def test_sends_are_suppressed_in_every_app_while_modules_are_imported(tmp_path: Path) -> None:
    app = Horsies(AppConfig())
    module = tmp_path / "asking_at_import.py"
    module.write_text("from horsies import AppConfig, Horsies\nanswer = Horsies(AppConfig()).are_sends_suppressed()\n")
    (imported,) = app.import_task_modules([str(module)])
    assert vars(imported)["answer"] is True
    assert not app.are_sends_suppressed()


def test_making_an_app_and_its_broker_opens_nothing() -> None:
    app = Horsies(AppConfig())
    broker = app.get_broker()
    app.set_role("worker")
    assert app.get_broker() is broker
    assert broker.role == "worker"
    app.close()
