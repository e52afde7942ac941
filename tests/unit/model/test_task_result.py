from __future__ import annotations

import copy
import pickle

import pytest

from horsies.model.task_result import TaskError, TaskResult

FAILED = TaskResult(err=TaskError(error_code="CARD_DECLINED"))


def test_ok_may_be_none() -> None:
    result = TaskResult(ok=None)

    assert result.is_ok()
    assert result.ok_value is None
    assert result.unwrap() is None


@pytest.mark.parametrize("sides", [{}, {"ok": 1, "err": TaskError()}, {"err": None}])
def test_exactly_one_of_ok_and_err_is_required(sides: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="err"):
        TaskResult(**sides)  # pyright: ignore[reportCallIssue, reportArgumentType]


def test_ok_and_err_never_raise() -> None:
    assert (TaskResult(ok=5).ok, TaskResult(ok=5).err) == (5, None)
    assert FAILED.ok is None
    assert FAILED.err == TaskError(error_code="CARD_DECLINED")


def test_reading_the_wrong_side_raises_value_error() -> None:
    with pytest.raises(ValueError, match="CARD_DECLINED"):
        FAILED.unwrap()
    with pytest.raises(ValueError, match="CARD_DECLINED"):
        _ = FAILED.ok_value
    with pytest.raises(ValueError, match="no error"):
        TaskResult(ok=5).unwrap_err()
    with pytest.raises(ValueError, match="no error"):
        _ = TaskResult(ok=5).err_value


def test_results_compare_by_value() -> None:
    assert TaskResult(ok=5) == TaskResult(ok=5)
    assert TaskResult(ok=5) != TaskResult(ok=6)
    assert TaskResult(ok=None) != FAILED
    assert hash(TaskResult(ok=5)) == hash(TaskResult(ok=5))


def test_copies_and_pickles_are_equal() -> None:
    assert copy.deepcopy(FAILED) == pickle.loads(pickle.dumps(FAILED)) == FAILED  # noqa: S301


def test_results_can_be_matched() -> None:
    match FAILED:
        case TaskResult(err=TaskError(error_code=code)):
            assert code == "CARD_DECLINED"
        case _:
            pytest.fail("not matched")


def test_value_of_a_failure_raises_from_its_exception() -> None:
    cause = KeyError("sku")
    with pytest.raises(ValueError, match="the task failed") as raised:
        TaskResult[int, TaskError](err=TaskError(message="failed", exception=cause)).unwrap()
    assert raised.value.__cause__ is cause
