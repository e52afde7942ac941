"""One-line summaries of error values, as used by `unwrap()`."""

from __future__ import annotations

import pytest

from horsies import Err, Ok, TaskError, TaskResult, TaskSendError, TaskSendErrorCode, UnwrapError
from horsies.model.result import summarize_error
from horsies.model.task_result import OperationalErrorCode


def raised(exception: Exception) -> Exception:
    """Return the exception with a traceback."""
    try:
        raise exception
    except Exception as caught:  # noqa: BLE001
        return caught


def test_task_error_summary_is_code_and_message() -> None:
    assert (
        summarize_error(TaskError(error_code="CARD_DECLINED", message="no funds", data={"pin": 1}))
        == "CARD_DECLINED: no funds"
    )


def test_summary_names_the_exception_class() -> None:
    lost = raised(KeyError("name"))
    error = TaskError(error_code=OperationalErrorCode.UNHANDLED_EXCEPTION, message=str(lost), exception=lost)
    assert summarize_error(error) == "UNHANDLED_EXCEPTION: 'name' (KeyError)"
    assert summarize_error(TaskError.model_validate_json(error.model_dump_json())) == summarize_error(error)


def test_class_in_the_message_is_not_repeated() -> None:
    error = TaskError(error_code="DOWN", message="KeyError: 'name'", exception=raised(KeyError("name")))
    assert summarize_error(error) == "DOWN: KeyError: 'name'"


def test_printed_results_and_errors_are_short() -> None:
    error = TaskError(error_code="DOWN", message="no answer", data={"long": "x" * 1000}, exception=raised(OSError()))
    assert str(error) == "DOWN: no answer (OSError)"
    assert str(TaskResult(err=error)) == "failed: DOWN: no answer (OSError)"
    assert [str(TaskResult(ok=value)) for value in (5, None, "Ada")] == ["ok: 5", "ok: None", "ok: 'Ada'"]
    assert (str(Ok("Ada")), str(Err(error))) == ("Ok('Ada')", "Err(DOWN: no answer (OSError))")


def test_error_without_code_and_message_shows_its_class() -> None:
    assert summarize_error(TaskError(data="long")) == "TaskError"


def test_other_values_show_their_repr() -> None:
    assert summarize_error("no number") == "'no number'"


def test_unwrap_message_contains_no_traceback() -> None:
    result = TaskResult(err=TaskError(error_code="CARD_DECLINED", exception=raised(ValueError("boom"))))
    with pytest.raises(ValueError, match=r"the task failed: CARD_DECLINED \(ValueError\)$"):
        result.unwrap()


def test_send_error_summary_is_code_and_message() -> None:
    failed = Err(TaskSendError(code=TaskSendErrorCode.ENQUEUE_FAILED, message="no server", exception=OSError("x")))
    with pytest.raises(UnwrapError) as caught:
        failed.unwrap()
    assert caught.value.message == "unwrap() called on an Err: ENQUEUE_FAILED: no server"
