"""The result that `get` returns for a stored row or a failure."""

from __future__ import annotations

from typing import cast
from uuid import UUID

import pytest

from horsies import OperationalErrorCode, TaskError, TaskResult
from horsies.client.results import (
    TaskReader,
    WaitTimeout,
    broker_error_result,
    error_result,
    is_final,
    stored_task_result,
    wait_timeout_result,
)
from horsies.client.task import TaskHandle
from horsies.codec.values import codec_for
from horsies.errors import DatabaseUnreachable
from horsies.model.task_result import BuiltInTaskCode, ContractCode, OutcomeCode, RetrievalCode
from horsies.store.tasks import TaskResultRow

ID = str(UUID(int=7))


def timed_out(status: str, *, seen_s_ago: float = 0) -> TaskResult[object, TaskError]:
    return wait_timeout_result(f"task {ID}", WaitTimeout(status, seen_s_ago=seen_s_ago))


def row(status: str, document: str | None) -> TaskResultRow:
    return TaskResultRow(id=ID, task_name="t", status=status, document=document)


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (None, RetrievalCode.TASK_NOT_FOUND),
        (row("CANCELLED", None), OutcomeCode.TASK_CANCELLED),
        (row("CANCELLED", '{"ok":1}'), OutcomeCode.TASK_CANCELLED),
        (row("CANCELLED", '{"err":{"error_code":"CARD_DECLINED"}}'), OutcomeCode.TASK_CANCELLED),
        (row("COMPLETED", None), RetrievalCode.RESULT_NOT_AVAILABLE),
        (row("FAILED", None), RetrievalCode.RESULT_NOT_AVAILABLE),
        (row("EXPIRED", None), RetrievalCode.RESULT_NOT_AVAILABLE),
        (row("EXPIRED", '{"err":{"error_code":"TASK_EXPIRED"}}'), OutcomeCode.TASK_EXPIRED),
        (row("FAILED", '{"err":{"error_code":"WORKER_CRASHED"}}'), OperationalErrorCode.WORKER_CRASHED),
        (row("COMPLETED", "5"), OperationalErrorCode.RESULT_DESERIALIZATION_ERROR),
        (row("COMPLETED", '{"ok":1,"err":{}}'), OperationalErrorCode.RESULT_DESERIALIZATION_ERROR),
        (row("COMPLETED", '{"err":"text"}'), OperationalErrorCode.RESULT_DESERIALIZATION_ERROR),
        (row("COMPLETED", '{"ok":"no number"}'), ContractCode.PYDANTIC_HYDRATION_ERROR),
    ],
)
def test_stored_row_maps_to_an_error_code(found: TaskResultRow | None, code: BuiltInTaskCode) -> None:
    assert stored_task_result(str(ID), found, codec_for(int)).err_value.error_code is code


def test_user_error_code_stays_a_string() -> None:
    found = row("FAILED", '{"err":{"error_code":"CARD_DECLINED","data":{"card":1}}}')
    error = stored_task_result(str(ID), found, None).err_value
    assert (error.error_code, error.data) == ("CARD_DECLINED", {"card": 1})


def test_stored_cancellation_message_is_kept() -> None:
    found = row("CANCELLED", '{"err":{"error_code":"TASK_CANCELLED","message":"by ann"}}')
    assert stored_task_result(str(ID), found, None).err_value.message == "by ann"


def test_value_is_decoded_if_the_codec_is_known() -> None:
    found = row("COMPLETED", '{"ok":["a","b"]}')
    assert stored_task_result(str(ID), found, codec_for(frozenset[str])).ok_value == frozenset({"a", "b"})
    assert stored_task_result(str(ID), found, None).ok_value == ["a", "b"]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (TaskResult[object, TaskError](ok=None), True),
        (stored_task_result(str(ID), None, None), False),
        (timed_out("RUNNING"), False),
        (error_result(RetrievalCode.WAIT_TIMEOUT, "stored: the task waited for another one"), True),
        (broker_error_result(DatabaseUnreachable("gone")), False),
        (stored_task_result(str(ID), row("CANCELLED", None), None), True),
        (stored_task_result(str(ID), row("COMPLETED", "5"), None), True),
        (TaskResult[object, TaskError](err=TaskError(message="no code at all")), True),
    ],
)
def test_transient_errors_are_not_final(result: TaskResult[object, TaskError], expected: bool) -> None:
    assert is_final(result) is expected


def test_cancelled_task_without_a_document_names_the_task() -> None:
    error = stored_task_result(str(ID), row("CANCELLED", None), None).err_value
    assert error.data == {"task_id": str(ID)}


@pytest.mark.parametrize(
    ("result", "status_text"),
    [
        (timed_out("PENDING"), "it is PENDING and not claimed by any worker"),
        (timed_out("CLAIMED"), "it is CLAIMED but not started"),
        (timed_out("RUNNING", seen_s_ago=0.5), "it was RUNNING 500 ms ago"),
    ],
)
def test_wait_timeout_reports_the_last_status(result: TaskResult[object, TaskError], status_text: str) -> None:
    assert result.err_value.message == f"task {ID} did not finish in time; {status_text}"


async def test_value_after_a_timeout_says_how_to_go_on() -> None:
    class Reader:
        async def result(self, _: str, timeout_ms: float | None) -> TaskResult[object, TaskError]:
            return timed_out("RUNNING", seen_s_ago=(timeout_ms or 0) / 1000)

    handle = TaskHandle[int](str(ID), cast("TaskReader", Reader()))
    with pytest.raises(TimeoutError) as raised:
        await handle.value_async(timeout_ms=500)
    assert str(raised.value) == (
        f"task {ID} did not finish in time; it was RUNNING 500 ms ago; call value() again to keep waiting"
    )
    with pytest.raises(ValueError, match=r"^no result: WAIT_TIMEOUT: task"):
        (await handle.get_async(timeout_ms=500)).unwrap()


async def test_task_that_failed_because_it_waited_in_vain_has_ended() -> None:
    class Reader:
        async def result(self, *_: object) -> TaskResult[object, TaskError]:
            document = '{"err": {"error_code": "WAIT_TIMEOUT", "message": "no"}}'
            return stored_task_result(str(ID), row("FAILED", document), None)

    with pytest.raises(ValueError, match=r"WAIT_TIMEOUT: no$"):
        await TaskHandle[int](str(ID), cast("TaskReader", Reader())).value_async(timeout_ms=500)
