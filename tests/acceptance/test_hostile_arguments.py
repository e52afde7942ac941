"""Arguments that no command can use: numbers out of range, and bytes that are not UTF-8."""

from __future__ import annotations

import pytest

from horsies.errors import ExitCode
from tests.support.cli import Executable

NOT_UTF8 = "\udcff\udcfe"  # how Python gives the bytes FF FE to a program
HUGE = "9" * 20


@pytest.fixture
def horsies(horsies: Executable, database_url: str) -> Executable:
    horsies.environment["HORSIES_BROKER__DATABASE_URL"] = database_url
    return horsies


@pytest.mark.parametrize("command", ["task list", "workflow list", "events", "audit"])
def test_limit_out_of_range_is_a_usage_error(horsies: Executable, command: str) -> None:
    answer = horsies(*command.split(), "--limit", HUGE)
    assert answer.code == ExitCode.USAGE
    assert "error[HRS-206]: --limit: must be at most 1000000000" in answer.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("task", "list", "--filter", f"queue:{NOT_UTF8}"),
        ("task", "cancel", "--filter", f"queue:{NOT_UTF8}", "--dry-run"),
        ("queue", "pause", "default", "--as", NOT_UTF8),
        ("events", "--kind", NOT_UTF8),
        ("schedule", "show", NOT_UTF8),
    ],
    ids=lambda arguments: f"{arguments[0]} {arguments[1]}",
)
def test_argument_that_is_not_utf8_is_a_usage_error(horsies: Executable, arguments: tuple[str, ...]) -> None:
    answer = horsies(*arguments)
    assert answer.code == ExitCode.USAGE
    assert "error[HRS-206]: an argument is not UTF-8: '" in answer.stderr
