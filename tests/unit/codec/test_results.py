from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.codec.canonical_json import canonical_json, find_json_fault
from horsies.codec.results import EncodedResult, decode_result, encode_result, validate_result
from horsies.codec.values import codec_for
from horsies.model.task_result import (
    ContractCode,
    OperationalErrorCode,
    OutcomeCode,
    SubWorkflowError,
    TaskError,
    TaskResult,
)

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden" / "results.json").read_text("utf-8"))

ANYTHING = codec_for(Any)
NUMBER = codec_for(int)

RESULTS: dict[str, TaskResult[Any, TaskError]] = {
    "a value": TaskResult(ok=5),
    "None": TaskResult(ok=None),
    "a code of the user's own": TaskResult(
        err=TaskError(error_code="CARD_DECLINED", message="no funds", data={"attempts": 2})
    ),
    "a built-in code": TaskResult(err=TaskError(error_code=OutcomeCode.TASK_TIMEOUT)),
    "an exception": TaskResult(
        err=TaskError(error_code=OperationalErrorCode.UNHANDLED_EXCEPTION, message="'sku'", exception=KeyError("sku"))
    ),
    "a sub-workflow": TaskResult(
        err=SubWorkflowError(
            error_code=OutcomeCode.SUBWORKFLOW_FAILED,
            sub_workflow_id="018f0000-0001-7004-8203-040506070809",
            sub_workflow_summary={"failed_tasks": 1},
        )
    ),
}


class FailingRepr:
    def __repr__(self) -> str:
        raise RuntimeError


def encoded(returned: object, annotation: Any = Any) -> EncodedResult:
    ok = codec_for(annotation)
    return encode_result(validate_result(returned, ok), ok)


def encoded_error(error: TaskError) -> dict[str, Any]:
    return json.loads(encoded(TaskResult(err=error)).document)["err"]


@pytest.mark.parametrize("name", RESULTS)
def test_result_is_encoded_in_its_pinned_form(name: str) -> None:
    assert encoded(RESULTS[name]).document == canonical_json(GOLDEN[name])


@pytest.mark.parametrize("name", [name for name in RESULTS if name != "an exception"])
def test_pinned_form_is_decoded_to_the_result(name: str) -> None:
    assert decode_result(json.dumps(GOLDEN[name]), ANYTHING) == RESULTS[name]


def test_stored_exception_is_decoded_as_a_record() -> None:
    error = decode_result(json.dumps(GOLDEN["an exception"])).err_value

    assert error.error_code is OperationalErrorCode.UNHANDLED_EXCEPTION
    assert error.exception == GOLDEN["an exception"]["err"]["exception"]


def test_ok_value_is_converted_to_the_declared_type() -> None:
    assert encoded(TaskResult(ok="5"), int) == EncodedResult(document='{"ok":5}', error=None)


@pytest.mark.parametrize(
    ("returned", "annotation", "code"),
    [
        (None, int, OperationalErrorCode.TASK_EXCEPTION),
        (5, int, OperationalErrorCode.TASK_EXCEPTION),
        (TaskResult(err=ValueError()), int, OperationalErrorCode.TASK_EXCEPTION),
        (TaskResult(ok="five"), int, ContractCode.RETURN_TYPE_MISMATCH),
        (TaskResult(ok=None), int, ContractCode.RETURN_TYPE_MISMATCH),
        (TaskResult(ok=object()), Any, OperationalErrorCode.WORKER_SERIALIZATION_ERROR),
        (TaskResult(ok=math.nan), float, OperationalErrorCode.WORKER_SERIALIZATION_ERROR),
        (TaskResult(ok="\0"), str, OperationalErrorCode.WORKER_SERIALIZATION_ERROR),
        (TaskResult(ok=["\ud800"]), list[str], OperationalErrorCode.WORKER_SERIALIZATION_ERROR),
    ],
)
def test_invalid_return_value_becomes_an_error_result(returned: object, annotation: Any, code: str) -> None:
    result = encoded(returned, annotation)

    assert result.error is not None
    assert result.error.error_code is code
    assert json.loads(result.document)["err"]["error_code"] == code


def test_type_mismatch_does_not_show_the_value() -> None:
    assert "hunter2" not in encoded(TaskResult(ok="hunter2"), int).document


@pytest.mark.parametrize("document", ["", "null", "5", "[]", "{}", '{"ok":1,"err":{}}', '{"err":5}', '{"value":1}'])
def test_invalid_document_is_a_deserialization_error(document: str) -> None:
    assert decode_result(document).err_value.error_code is OperationalErrorCode.RESULT_DESERIALIZATION_ERROR


def test_invalid_stored_error_is_a_deserialization_error() -> None:
    document = '{"err":{"message":[]}}'

    assert decode_result(document).err_value.error_code is OperationalErrorCode.RESULT_DESERIALIZATION_ERROR


def test_error_with_unknown_fields_is_decoded() -> None:
    assert decode_result('{"err":{"error_code":"CARD_DECLINED","severity":9}}').err_value == TaskError(
        error_code="CARD_DECLINED"
    )


def test_stored_value_of_another_type_is_a_hydration_error() -> None:
    assert decode_result('{"ok":"five"}', NUMBER).err_value.error_code is ContractCode.PYDANTIC_HYDRATION_ERROR


def test_value_without_declared_type_is_plain_json() -> None:
    assert decode_result('{"ok":{"a":[1]}}').ok_value == {"a": [1]}


@pytest.mark.parametrize("data", [object(), math.nan, {"a": "\0"}, {"a": "\ud800"}, [object()], {1: 2}])
def test_unstorable_error_data_becomes_its_repr(data: object) -> None:
    assert encoded_error(TaskError(error_code="BROKEN", data=data)) == {
        "error_code": "BROKEN",
        "message": None,
        "data": repr(data),
        "exception": None,
    }


def test_error_data_with_failing_repr_is_named_by_type() -> None:
    assert encoded_error(TaskError(data=FailingRepr()))["data"] == "<FailingRepr: repr raised RuntimeError>"
    assert encoded_error(TaskError(data=10**5000))["data"] == "<int: repr raised ValueError>"


def test_unstorable_characters_become_the_replacement_character() -> None:
    body = encoded_error(TaskError(message="a\0b\ud800", exception=ValueError("c\0d")))

    assert body["message"] == "a\ufffdb\ufffd"
    assert body["exception"]["message"] == "c\ufffdd"


@pytest.mark.parametrize("levels", [150, 198, 199, 200, 300, 100_000])
def test_deeply_nested_error_data_round_trips(levels: int) -> None:
    data: list[Any] = []
    for _ in range(levels - 1):
        data = [data]

    result = decode_result(encoded(TaskResult(err=TaskError(error_code="DEEP", data=data))).document)

    assert result.err_value.error_code == "DEEP"


@given(message=st.none() | st.text(), data=st.none() | st.text() | st.floats() | st.lists(st.text()))
def test_every_error_round_trips(message: str | None, data: object) -> None:
    document = encoded(TaskResult(err=TaskError(error_code="ANY", message=message, data=data))).document

    assert find_json_fault(json.loads(document)) is None
    assert decode_result(document).err_value.error_code == "ANY"
