from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from horsies.model.task_result import (
    BUILTIN_CODE_REGISTRY,
    OutcomeCode,
    SubWorkflowError,
    TaskError,
    exception_to_record,
)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__


def raised(exception: BaseException) -> BaseException:
    try:
        raise exception
    except BaseException as caught:  # noqa: BLE001 - only to get a traceback
        return caught


def test_all_fields_are_optional() -> None:
    assert TaskError().model_dump() == {"error_code": None, "message": None, "data": None, "exception": None}


@pytest.mark.parametrize("name", BUILTIN_CODE_REGISTRY)
def test_built_in_code_is_accepted_only_as_enum_member(name: str) -> None:
    assert TaskError(error_code=BUILTIN_CODE_REGISTRY[name]).error_code is BUILTIN_CODE_REGISTRY[name]
    with pytest.raises(ValueError, match=f"{name} is reserved; pass .*Code.{name}"):
        TaskError(error_code=name)


@pytest.mark.parametrize("code", ["cardDeclined", "card declined", "", 5])
def test_code_must_be_upper_snake(code: str) -> None:
    with pytest.raises(ValidationError):
        TaskError(error_code=code)


def test_unknown_fields_are_rejected_and_errors_are_frozen() -> None:
    with pytest.raises(ValidationError):
        TaskError(mesage="typo")  # pyright: ignore[reportCallIssue]
    with pytest.raises(ValidationError):
        TaskError().message = "changed"  # pyright: ignore[reportAttributeAccessIssue]


def test_stored_built_in_code_is_read_as_enum_member() -> None:
    stored = TaskError(error_code=OutcomeCode.TASK_TIMEOUT).model_dump_json()

    assert '"error_code":"TASK_TIMEOUT"' in stored
    assert TaskError.model_validate_json(stored).error_code is OutcomeCode.TASK_TIMEOUT


def test_invalid_stored_code_is_still_read() -> None:
    assert (
        TaskError.model_validate_json('{"error_code": "from an older version"}').error_code == "from an older version"
    )


def test_exception_is_kept_in_memory_and_stored_as_text() -> None:
    exception = raised(KeyError("sku"))
    error = TaskError(exception=exception)

    stored = error.model_dump(mode="json")["exception"]

    assert error.exception is exception
    assert stored.pop("traceback").startswith("Traceback (most recent call last)")
    assert stored == {"type": "KeyError", "module": "builtins", "message": "'sku'", "repr": "KeyError('sku')"}


def test_exception_with_failing_str_is_recorded() -> None:
    record = exception_to_record(raised(Unprintable()))

    assert record["type"] == "Unprintable"
    assert record["message"] == "<Unprintable: str raised RuntimeError>"
    assert record["repr"] == "<Unprintable: repr raised RuntimeError>"


def test_sub_workflow_error_round_trip() -> None:
    error = SubWorkflowError(
        error_code=OutcomeCode.SUBWORKFLOW_FAILED, sub_workflow_id="id", sub_workflow_summary={"failed_tasks": 1}
    )

    assert isinstance(error, TaskError)
    assert SubWorkflowError.model_validate_json(error.model_dump_json()) == error


@pytest.mark.parametrize("code", [*BUILTIN_CODE_REGISTRY.values(), "CARD_DECLINED", None])
def test_dump_of_an_error_can_be_read_back(code: Any) -> None:
    error = TaskError(error_code=code, message="failed", data={"a": [1]})
    for mode in ("json", "python"):
        again = TaskError.model_validate(error.model_dump(mode=mode))
        assert again == error
        assert type(again.error_code) is type(code)
    assert TaskError.model_validate_json(error.model_dump_json()) == error


def test_dump_with_an_invalid_code_is_rejected() -> None:
    with pytest.raises(ValidationError):
        TaskError.model_validate({"error_code": "card declined"})
