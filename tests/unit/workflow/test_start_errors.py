"""Starts that fail before the database is used."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from horsies import ErrorCode, WorkflowValidationError, start_workflow_async
from horsies.client.task import SUPPRESS_VARIABLE
from horsies.model.workflow.views import WorkflowStartError, WorkflowStartErrorCode, WorkflowStartResult
from tests.support.workflows import add, app

SPEC = app.workflow("refused", [add.node()(a=1)], definition_key="refused")

Start = Callable[[str | None], Awaitable[WorkflowStartResult[Any]]]


async def start_on_broker(workflow_id: str | None) -> WorkflowStartResult[Any]:
    return await start_workflow_async(SPEC, app.get_broker(), workflow_id)


STARTS: list[Start] = [SPEC.start_async, start_on_broker]


@pytest.mark.parametrize("start", STARTS)
async def test_malformed_workflow_id_is_rejected(start: Start) -> None:
    error = (await start("monday")).unwrap_err()
    assert error.code is WorkflowStartErrorCode.VALIDATION_FAILED
    assert isinstance(error.exception, WorkflowValidationError)
    assert error.exception.code is ErrorCode.WORKFLOW_INVALID_ID


@pytest.mark.parametrize("start", STARTS)
async def test_start_fails_while_sends_are_suppressed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SUPPRESS_VARIABLE, "1")
    error = (await start(None)).unwrap_err()
    assert (error.code, error.retryable) == (WorkflowStartErrorCode.VALIDATION_FAILED, False)
    assert "suppressed" in error.message


async def test_blocking_start_inside_an_event_loop_returns_an_error() -> None:
    assert "event loop" in SPEC.start().unwrap_err().message


@pytest.mark.parametrize(
    "error",
    [
        WorkflowStartError(code=WorkflowStartErrorCode.ENQUEUE_FAILED, message="", workflow_name="another"),
        WorkflowStartError(code=WorkflowStartErrorCode.VALIDATION_FAILED, message="", workflow_name="refused"),
    ],
)
async def test_retry_start_rejects_errors_that_cannot_be_retried(error: WorkflowStartError) -> None:
    result = (await SPEC.retry_start_async(error)).unwrap_err()
    assert result.code is WorkflowStartErrorCode.VALIDATION_FAILED
