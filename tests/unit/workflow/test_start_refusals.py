"""Starts that are refused before the database is asked for anything."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from horsies import ErrorCode, WorkflowValidationError, start_workflow_async
from horsies.model.workflow.views import WorkflowStartError, WorkflowStartErrorCode, WorkflowStartResult
from horsies.task_modules import SUPPRESS_VARIABLE
from tests.support.workflows import add, app

SPEC = app.workflow("refused", [add.node()(a=1)], definition_key="refused")

Start = Callable[[str | None], Awaitable[WorkflowStartResult[Any]]]


async def on_a_broker(workflow_id: str | None) -> WorkflowStartResult[Any]:
    return await start_workflow_async(SPEC, app.get_broker(), workflow_id)


STARTS: list[Start] = [SPEC.start_async, on_a_broker]


@pytest.mark.parametrize("start", STARTS)
async def test_an_id_that_is_no_uuid_is_refused(start: Start) -> None:
    refused = (await start("monday")).unwrap_err()
    assert refused.code is WorkflowStartErrorCode.VALIDATION_FAILED
    assert isinstance(refused.exception, WorkflowValidationError)
    assert refused.exception.code is ErrorCode.WORKFLOW_INVALID_ID


@pytest.mark.parametrize("start", STARTS)
async def test_nothing_starts_while_sends_are_off(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SUPPRESS_VARIABLE.decode(), "1")
    refused = (await start(None)).unwrap_err()
    assert (refused.code, refused.retryable) == (WorkflowStartErrorCode.VALIDATION_FAILED, False)
    assert "suppressed" in refused.message


async def test_a_blocking_start_inside_an_event_loop_is_refused_as_a_value() -> None:
    assert "event loop" in SPEC.start().unwrap_err().message


@pytest.mark.parametrize(
    "error",
    [
        WorkflowStartError(code=WorkflowStartErrorCode.ENQUEUE_FAILED, message="", workflow_name="another"),
        WorkflowStartError(code=WorkflowStartErrorCode.VALIDATION_FAILED, message="", workflow_name="refused"),
    ],
)
async def test_only_a_start_of_this_workflow_that_may_succeed_is_repeated(error: WorkflowStartError) -> None:
    refused = (await SPEC.retry_start_async(error)).unwrap_err()
    assert refused.code is WorkflowStartErrorCode.VALIDATION_FAILED
