"""The codes that horsies itself puts into a `TaskError`, by family."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TypeAlias


class OperationalErrorCode(StrEnum):
    """Something broke: the task's code, its process, or the machinery around it."""

    UNHANDLED_EXCEPTION = "UNHANDLED_EXCEPTION"
    TASK_EXCEPTION = "TASK_EXCEPTION"
    WORKER_CRASHED = "WORKER_CRASHED"
    POISON_TASK = "POISON_TASK"
    SHUTDOWN = "SHUTDOWN"
    BROKER_ERROR = "BROKER_ERROR"
    WORKER_RESOLUTION_ERROR = "WORKER_RESOLUTION_ERROR"
    WORKER_SERIALIZATION_ERROR = "WORKER_SERIALIZATION_ERROR"
    RESULT_DESERIALIZATION_ERROR = "RESULT_DESERIALIZATION_ERROR"
    WORKFLOW_ENQUEUE_FAILED = "WORKFLOW_ENQUEUE_FAILED"
    SUBWORKFLOW_LOAD_FAILED = "SUBWORKFLOW_LOAD_FAILED"


class ContractCode(StrEnum):
    """A value is not what a declaration says it is."""

    RETURN_TYPE_MISMATCH = "RETURN_TYPE_MISMATCH"
    PYDANTIC_HYDRATION_ERROR = "PYDANTIC_HYDRATION_ERROR"
    WORKFLOW_CTX_MISSING_ID = "WORKFLOW_CTX_MISSING_ID"


class RetrievalCode(StrEnum):
    """Asking for a result brought none; the task itself is not touched by that."""

    WAIT_TIMEOUT = "WAIT_TIMEOUT"
    TASK_NOT_FOUND = "TASK_NOT_FOUND"
    WORKFLOW_NOT_FOUND = "WORKFLOW_NOT_FOUND"
    RESULT_NOT_AVAILABLE = "RESULT_NOT_AVAILABLE"
    RESULT_NOT_READY = "RESULT_NOT_READY"


class OutcomeCode(StrEnum):
    """A task or a run was brought to an end without its own doing."""

    TASK_CANCELLED = "TASK_CANCELLED"
    TASK_EXPIRED = "TASK_EXPIRED"
    TASK_TIMEOUT = "TASK_TIMEOUT"
    OPERATOR_FAILED = "OPERATOR_FAILED"
    OPERATOR_REQUEUED = "OPERATOR_REQUEUED"
    WORKFLOW_PAUSED = "WORKFLOW_PAUSED"
    WORKFLOW_FAILED = "WORKFLOW_FAILED"
    WORKFLOW_CANCELLED = "WORKFLOW_CANCELLED"
    WORKFLOW_EXPIRED = "WORKFLOW_EXPIRED"
    UPSTREAM_SKIPPED = "UPSTREAM_SKIPPED"
    SUBWORKFLOW_FAILED = "SUBWORKFLOW_FAILED"
    WORKFLOW_SUCCESS_CASE_NOT_MET = "WORKFLOW_SUCCESS_CASE_NOT_MET"


BuiltInTaskCode: TypeAlias = OperationalErrorCode | ContractCode | RetrievalCode | OutcomeCode

BUILTIN_CODE_REGISTRY: dict[str, BuiltInTaskCode] = {
    member.value: member
    for family in (OperationalErrorCode, ContractCode, RetrievalCode, OutcomeCode)
    for member in family
}

NEVER_RETRIED: frozenset[BuiltInTaskCode] = frozenset(
    {
        OperationalErrorCode.POISON_TASK,
        *RetrievalCode,
        OutcomeCode.TASK_CANCELLED,
        OutcomeCode.TASK_EXPIRED,
        OutcomeCode.WORKFLOW_CANCELLED,
        OutcomeCode.WORKFLOW_EXPIRED,
    }
)
"""Codes that no retry policy may list: running again could not help, or somebody has said no."""

_UPPER_SNAKE = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*")


def is_upper_snake(text: str) -> bool:
    """Whether text has the form of a code, built-in or not: `CARD_DECLINED`, `HTTP_503`."""
    return _UPPER_SNAKE.fullmatch(text) is not None


def known_code(text: str) -> BuiltInTaskCode | str:
    """The enum member that text names, or text itself where it is a code of the user's own."""
    return BUILTIN_CODE_REGISTRY.get(text, text)
