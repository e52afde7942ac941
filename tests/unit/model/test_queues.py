from __future__ import annotations

import pytest

from horsies.errors import ErrorCode
from horsies.model.task import effective_priority, is_priority, queue_fault


@pytest.mark.parametrize(
    ("queue_name", "configured", "code"),
    [
        (None, None, None),
        ("mail", None, ErrorCode.CONFIG_INVALID_QUEUE_MODE),
        (None, {"mail": 1}, ErrorCode.CONFIG_INVALID_QUEUE_MODE),
        ("mail", {"mail": 1}, None),
        ("post", {"mail": 1}, ErrorCode.TASK_INVALID_QUEUE),
    ],
)
def test_queue_name_is_required_only_with_custom_queues(
    queue_name: str | None, configured: dict[str, int] | None, code: ErrorCode | None
) -> None:
    fault = queue_fault(queue_name, configured)

    assert (fault and fault.code) == code


def test_hint_shows_how_to_configure_the_queue() -> None:
    fault = queue_fault("mail", None)
    assert fault is not None
    assert "[queues.mail] in horsies.toml or custom_queues in AppConfig" in str(fault.help_text)


@pytest.mark.parametrize(
    ("sent_with", "task", "queue", "expected"),
    [(5, 6, 7, 5), (None, 6, 7, 6), (None, None, 7, 7), (None, None, None, 100)],
)
def test_most_specific_priority_wins(sent_with: int | None, task: int | None, queue: int | None, expected: int) -> None:
    assert effective_priority(sent_with=sent_with, task=task, queue=queue) == expected


@pytest.mark.parametrize("value", [0, 101, -1, True, 5.0, "5", None])
def test_priority_is_a_whole_number_from_1_to_100(value: object) -> None:
    assert not is_priority(value)
    assert is_priority(1)
    assert is_priority(100)
