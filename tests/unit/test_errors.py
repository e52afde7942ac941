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
def test_every_family_but_the_brokers_is_a_value_error(family: type[HorsiesError]) -> None:
    assert issubclass(family, ValueError)
    assert not issubclass(BrokerError, ValueError)


def test_an_error_prints_code_place_notes_and_help() -> None:
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


def test_an_error_in_a_log_is_one_line_with_its_notes_and_help_as_fields() -> None:
    error = BrokerError("gone", code=BrokerErrorCode.DB_PING_FAILED, hint="start it", notes=["it was there"])
    assert format_one_line(error) == "error[DB_PING_FAILED]: gone  note=it was there  hint=start it"
    assert format_one_line(RuntimeError("odd")) == "odd"


def test_the_location_of_the_caller_is_the_first_frame_outside_horsies() -> None:
    location = SourceLocation.of_caller()
    assert location is not None
    assert location.file == __file__
    assert "of_caller" in location.source


@pytest.mark.parametrize("line", ["url = 'postgresql://me:hunter2@db/app'", "connect(PASSWORD='hunter2')"])
def test_a_source_line_that_may_hold_a_password_is_not_repeated(tmp_path: Path, line: str) -> None:
    (tmp_path / "app.py").write_text(line)
    error = ConfigurationError("wrong", location=SourceLocation(str(tmp_path / "app.py"), 1))
    assert "hunter2" not in str(error)
    assert "app.py:1" in str(error)


def test_nothing_is_raised_for_no_error() -> None:
    raise_together("settings", [])


def test_one_error_is_raised_as_itself() -> None:
    error = TaskDefinitionError("one")
    with pytest.raises(TaskDefinitionError) as caught:
        raise_together("tasks", [error])
    assert caught.value is error


@pytest.mark.parametrize("family", [ConfigurationError, TaskDefinitionError, WorkflowValidationError])
def test_several_errors_are_one_object_of_their_family_with_a_report(family: type[HorsiesError]) -> None:
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
