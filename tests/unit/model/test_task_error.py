from __future__ import annotations

import pytest
from pydantic import ValidationError

from horsies.model.task_result import (
    BUILTIN_CODE_REGISTRY,
    OutcomeCode,
    SubWorkflowError,
    TaskError,
    exception_to_record,
)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__


def raised(exception: BaseException) -> BaseException:
    try:
        raise exception
    except BaseException as caught:  # noqa: BLE001 - the point is the traceback
        return caught


def test_all_fields_are_optional() -> None:
    assert TaskError().model_dump() == {"error_code": None, "message": None, "data": None, "exception": None}


@pytest.mark.parametrize("name", BUILTIN_CODE_REGISTRY)
def test_a_reserved_code_is_taken_as_member_and_refused_as_text(name: str) -> None:
    assert TaskError(error_code=BUILTIN_CODE_REGISTRY[name]).error_code is BUILTIN_CODE_REGISTRY[name]
    with pytest.raises(ValueError, match=f"{name} is reserved; pass .*Code.{name}"):
        TaskError(error_code=name)


@pytest.mark.parametrize("code", ["cardDeclined", "card declined", "", 5])
def test_a_code_that_is_not_upper_snake_text_is_refused(code: str) -> None:
    with pytest.raises(ValidationError):
        TaskError(error_code=code)


def test_unknown_fields_are_refused_and_errors_are_frozen() -> None:
    with pytest.raises(ValidationError):
        TaskError(mesage="typo")  # pyright: ignore[reportCallIssue]
    with pytest.raises(ValidationError):
        TaskError().message = "changed"  # pyright: ignore[reportAttributeAccessIssue]


def test_a_stored_code_is_plain_text_and_comes_back_as_its_member() -> None:
    stored = TaskError(error_code=OutcomeCode.TASK_TIMEOUT).model_dump_json()

    assert '"error_code":"TASK_TIMEOUT"' in stored
    assert TaskError.model_validate_json(stored).error_code is OutcomeCode.TASK_TIMEOUT


def test_a_stored_code_is_read_even_when_we_would_not_take_it_today() -> None:
    assert (
        TaskError.model_validate_json('{"error_code": "from an older version"}').error_code == "from an older version"
    )


def test_a_live_exception_stays_live_here_and_is_stored_as_text() -> None:
    exception = raised(KeyError("sku"))
    error = TaskError(exception=exception)

    stored = error.model_dump(mode="json")["exception"]

    assert error.exception is exception
    assert stored.pop("traceback").startswith("Traceback (most recent call last)")
    assert stored == {"type": "KeyError", "module": "builtins", "message": "'sku'", "repr": "KeyError('sku')"}


def test_an_exception_that_cannot_speak_is_still_recorded() -> None:
    record = exception_to_record(raised(Mute()))

    assert record["type"] == "Mute"
    assert record["message"] == "<Mute: str raised RuntimeError>"
    assert record["repr"] == "<Mute: repr raised RuntimeError>"


def test_a_sub_workflow_error_says_which_run_failed() -> None:
    error = SubWorkflowError(
        error_code=OutcomeCode.SUBWORKFLOW_FAILED, sub_workflow_id="id", sub_workflow_summary={"failed_tasks": 1}
    )

    assert isinstance(error, TaskError)
    assert SubWorkflowError.model_validate_json(error.model_dump_json()) == error
