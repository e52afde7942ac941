"""What can go wrong when a run is started or spoken to from outside; failures are values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias, TypeVar

from horsies.model.result import Result

T = TypeVar("T")


class WorkflowStartErrorCode(StrEnum):
    """Why a run was not started."""

    BROKER_NOT_CONFIGURED = "BROKER_NOT_CONFIGURED"
    VALIDATION_FAILED = "VALIDATION_FAILED"
    ENQUEUE_FAILED = "ENQUEUE_FAILED"
    INTERNAL_FAILED = "INTERNAL_FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowStartError:
    """A start that stored nothing that is known of; a retry under the same id stores the run at most once."""

    code: WorkflowStartErrorCode
    message: str
    retryable: bool = False
    workflow_name: str | None = None
    workflow_id: str | None = None
    exception: BaseException | None = None


WorkflowStartResult: TypeAlias = Result[T, WorkflowStartError]


class HandleErrorCode(StrEnum):
    """Why a handle could not do what it was asked."""

    WORKFLOW_NOT_FOUND = "WORKFLOW_NOT_FOUND"
    WORKFLOW_NOT_TERMINAL = "WORKFLOW_NOT_TERMINAL"
    WORKFLOW_NOT_ROOT = "WORKFLOW_NOT_ROOT"
    DB_OPERATION_FAILED = "DB_OPERATION_FAILED"
    LOOP_RUNNER_FAILED = "LOOP_RUNNER_FAILED"
    INTERNAL_FAILED = "INTERNAL_FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandleOperationError:
    """Something that a handle was asked and did not do."""

    code: HandleErrorCode
    message: str
    retryable: bool = False
    workflow_id: str | None = None
    exception: BaseException | None = None


HandleResult: TypeAlias = Result[T, HandleOperationError]
