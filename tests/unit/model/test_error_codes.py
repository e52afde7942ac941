from __future__ import annotations

import pytest

from horsies.model.task_result import (
    BUILTIN_CODE_REGISTRY,
    NEVER_RETRIED,
    UPPER_SNAKE,
    ContractCode,
    OperationalErrorCode,
    OutcomeCode,
    RetrievalCode,
    parse_code,
)


def test_registry_contains_every_code_once() -> None:
    members = [*OperationalErrorCode, *ContractCode, *RetrievalCode, *OutcomeCode]

    assert list(BUILTIN_CODE_REGISTRY.values()) == members
    assert all(name == member.name == member.value for name, member in BUILTIN_CODE_REGISTRY.items())


def test_never_retried_codes() -> None:
    assert set(NEVER_RETRIED) == {
        "POISON_TASK",
        "WAIT_TIMEOUT",
        "TASK_NOT_FOUND",
        "WORKFLOW_NOT_FOUND",
        "RESULT_NOT_AVAILABLE",
        "RESULT_NOT_READY",
        "TASK_CANCELLED",
        "TASK_EXPIRED",
        "WORKFLOW_CANCELLED",
        "WORKFLOW_EXPIRED",
    }


@pytest.mark.parametrize("text", ["A", "CARD_DECLINED", "HTTP_503", "E2E"])
def test_upper_snake_text_is_a_code(text: str) -> None:
    assert UPPER_SNAKE.fullmatch(text)


@pytest.mark.parametrize("text", ["", "ValueError", "card_declined", "_A", "A_", "A__B", "5XX", "A B", "A\n", "É"])
def test_other_text_is_not_a_code(text: str) -> None:
    assert not UPPER_SNAKE.fullmatch(text)


def test_parse_code_returns_members_for_built_in_codes() -> None:
    assert parse_code("TASK_TIMEOUT") is OutcomeCode.TASK_TIMEOUT
    assert parse_code("CARD_DECLINED") == "CARD_DECLINED"
