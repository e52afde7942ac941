from __future__ import annotations

import pytest

from horsies import BrokerErrorCode, HorsiesError, OperationalErrorCode, TaskError, TaskHandle, TaskResult

KNOWN = TaskResult[object, TaskError](ok=5)


def test_a_known_result_needs_no_broker() -> None:
    assert TaskHandle[int]("id", None, known=KNOWN).get().ok_value == 5


async def test_a_known_result_can_be_had_inside_an_event_loop() -> None:
    handle = TaskHandle[int]("id", None, known=KNOWN)
    assert handle.get().ok_value == 5
    assert (await handle.get_async()).ok_value == 5


async def test_without_a_broker_a_handle_says_so() -> None:
    handle = TaskHandle[int]("id", None)
    assert (await handle.get_async(0)).err_value.error_code is OperationalErrorCode.BROKER_ERROR
    assert (await handle.info_async()).unwrap_err().code is BrokerErrorCode.NO_BROKER


async def test_a_handle_may_be_made_of_an_id_alone() -> None:
    assert (await TaskHandle[int]("id").info_async()).unwrap_err().code is BrokerErrorCode.NO_BROKER


async def test_waiting_inside_an_event_loop_is_refused() -> None:
    handle = TaskHandle[int]("id", None)
    with pytest.raises(HorsiesError, match="_async"):
        handle.get()
    assert handle.info().unwrap_err().code is BrokerErrorCode.ASYNC_CONTEXT


def test_a_handle_shows_its_id() -> None:
    assert repr(TaskHandle[int]("some-id", None)) == "TaskHandle('some-id')"
