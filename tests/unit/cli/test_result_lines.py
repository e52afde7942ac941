"""Results on a terminal."""

from __future__ import annotations

from typing import Any

import pytest

from horsies_ops.cli.task_detail import result_lines


@pytest.mark.parametrize(
    ("document", "lines"),
    [
        ({"ok": "hello"}, ["hello"]),
        ({"ok": {"n": 1}}, ['{"n": 1}']),
        ({"err": {"error_code": "LIMIT", "message": "too much", "data": None}}, ["failed: LIMIT: too much"]),
        ({"err": {"error_code": "LIMIT", "data": {"n": 1}}}, ["failed: LIMIT", 'data: {"n": 1}']),
        (
            {"err": {"message": "boom", "exception": {"traceback": "Traceback:\n  x\nValueError: boom"}}},
            ["failed: boom", "Traceback:", "  x", "ValueError: boom"],
        ),
    ],
)
def test_value_or_error_is_shown_for_people(document: dict[str, Any], lines: list[str]) -> None:
    assert list(result_lines(document)) == lines
