"""Task handles without a database."""

from __future__ import annotations

import pytest

from horsies import BrokerErrorCode, HorsiesError, OperationalErrorCode, TaskError, TaskHandle, TaskResult

KNOWN = TaskResult[object, TaskError](ok=5)


def test_a_known_result_needs_no_broker() -> None:
    assert TaskHandle[int]("id", None, known=KNOWN).get().ok_value == 5


async def test_a_known_result_is_available_inside_an_event_loop() -> None:
    handle = TaskHandle[int]("id", None, known=KNOWN)
    assert handle.get().ok_value == 5
    assert (await handle.get_async()).ok_value == 5


async def test_handle_without_a_broker_returns_errors() -> None:
    handle = TaskHandle[int]("id", None)
    assert (await handle.get_async(0)).err_value.error_code is OperationalErrorCode.BROKER_ERROR
    assert (await handle.info_async()).unwrap_err().code is BrokerErrorCode.NO_BROKER


async def test_handle_can_be_created_from_an_id() -> None:
    assert (await TaskHandle[int]("id").info_async()).unwrap_err().code is BrokerErrorCode.NO_BROKER


async def test_blocking_calls_inside_an_event_loop_are_rejected() -> None:
    handle = TaskHandle[int]("id", None)
    with pytest.raises(HorsiesError, match="_async"):
        handle.get()
    assert handle.info().unwrap_err().code is BrokerErrorCode.ASYNC_CONTEXT


def test_a_handle_shows_its_id() -> None:
    assert repr(TaskHandle[int]("some-id", None)) == "TaskHandle('some-id')"
