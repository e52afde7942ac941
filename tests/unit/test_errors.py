from __future__ import annotations

import re
from pathlib import Path

import pytest

from horsies.errors import (
    BrokerError,
    BrokerErrorCode,
    ConfigurationError,
    ErrorCode,
    HorsiesError,
    MultipleValidationErrors,
    RegistryError,
    SourceLocation,
    TaskDefinitionError,
    WorkflowValidationError,
    format_one_line,
    raise_together,
)


@pytest.mark.parametrize("family", [ConfigurationError, TaskDefinitionError, WorkflowValidationError, RegistryError])
def test_all_errors_except_broker_errors_are_value_errors(family: type[HorsiesError]) -> None:
    assert issubclass(family, ValueError)
    assert not issubclass(BrokerError, ValueError)


def test_error_prints_code_location_notes_and_help() -> None:
    error = ConfigurationError(
        "too small",
        code=ErrorCode.CONFIG_INVALID_RECOVERY,
        hint="raise it",
        notes=["it was 1"],
        location=SourceLocation(__file__, 1),
    )
    assert str(error).splitlines() == [
        "error[HRS-204]: too small",
        f"  --> {__file__}:1",
        "   | from __future__ import annotations",
        "   = note: it was 1",
        "   = help: raise it",
    ]


def test_one_line_format_has_notes_and_hint_as_fields() -> None:
    error = BrokerError("gone", code=BrokerErrorCode.DB_PING_FAILED, hint="start it", notes=["it was there"])
    assert format_one_line(error) == "error[DB_PING_FAILED]: gone  note=it was there  hint=start it"
    assert format_one_line(RuntimeError("odd")) == "odd"


def test_caller_location_is_outside_horsies() -> None:
    location = SourceLocation.of_caller()
    assert location is not None
    assert location.file == __file__
    assert "of_caller" in location.source


@pytest.mark.parametrize("line", ["url = 'postgresql://me:hunter2@db/app'", "connect(PASSWORD='hunter2')"])
def test_source_lines_with_secrets_are_hidden(tmp_path: Path, line: str) -> None:
    (tmp_path / "app.py").write_text(line)
    error = ConfigurationError("wrong", location=SourceLocation(str(tmp_path / "app.py"), 1))
    assert "hunter2" not in str(error)
    assert "app.py:1" in str(error)


def test_raise_together_returns_without_errors() -> None:
    raise_together("settings", [])


def test_single_error_is_raised_unchanged() -> None:
    error = TaskDefinitionError("one")
    with pytest.raises(TaskDefinitionError) as caught:
        raise_together("tasks", [error])
    assert caught.value is error


@pytest.mark.parametrize("family", [ConfigurationError, TaskDefinitionError, WorkflowValidationError])
def test_several_errors_are_raised_as_their_common_class(family: type[HorsiesError]) -> None:
    errors = [family("one", code=ErrorCode.CONFIG_INVALID_WORKER), family("two")]
    with pytest.raises(MultipleValidationErrors) as caught:
        raise_together("phase", errors)
    assert isinstance(caught.value, family)
    assert isinstance(caught.value, ValueError)
    assert caught.value.report.errors == tuple(errors)
    assert "one" in str(caught.value)
    assert "two" in str(caught.value)


def test_codes_are_unique_and_well_formed() -> None:
    values = [code.value for code in ErrorCode]
    assert len(set(values)) == len(values)
    assert all(re.fullmatch(r"HRS-[0-3]\d\d", value) for value in values)
    assert all(code.name == code.value for code in BrokerErrorCode)
