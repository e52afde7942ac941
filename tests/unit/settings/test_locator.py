"""The form of app locators; whether the app exists is checked by importing it, not by the settings."""

from __future__ import annotations

import pytest

from horsies.errors import ConfigurationError, ErrorCode
from horsies.model.settings import ProjectConfig


@pytest.mark.parametrize(
    "locator",
    [
        "tasks:app",
        "package.module",
        "package.module:app",
        "tasks.py",
        "tasks.py:app",
        "path/to/file.py",
        "./pkg.mod.py:app",
        "/srv/my app/tasks.py:app",
    ],
)
def test_locator_may_be_a_module_or_a_file(locator: str) -> None:
    assert ProjectConfig(locator=locator).locator == locator


@pytest.mark.parametrize(
    "locator", ["", "two words", ":app", "tasks:", "a:b:c", "a..b:app", "1a.b", "a/file.txt:app", "a/.py"]
)
def test_invalid_locator_is_rejected_with_a_hint(locator: str) -> None:
    with pytest.raises(ConfigurationError, match=r"must be package\.module:app") as caught:
        ProjectConfig(locator=locator)
    assert caught.value.code is ErrorCode.WORKER_INVALID_LOCATOR
    assert ":app" in (caught.value.help_text or "")


def test_ambiguous_locator_is_rejected_with_both_readings() -> None:
    with pytest.raises(ConfigurationError, match="is ambiguous: it may be a module or a file") as caught:
        ProjectConfig(locator="pkg.mod.py")
    assert caught.value.help_text == "use pkg.mod for the module or ./pkg.mod.py for the file"
