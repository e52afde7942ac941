"""Messages for command lines that cannot be parsed."""

from __future__ import annotations

import pytest

from horsies_ops.cli.main import run


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("wroker", "no such command 'wroker'; did you mean 'worker', 'workers'?"),
        ("doctor --jsn", "no such option: --jsn (similar: --json)"),
        ("task show", "missing argument 'ID'"),
        ("task list --limit 0", "--limit: must be at least 1, got '0'"),
        ("task list --limit=x", "--limit: must be a whole number, got 'x'"),
        ("metrics --port 99999", "--port: must be at most 65535, got '99999'"),
        ("demo --seconds soon", "--seconds: must be a number, got 'soon'"),
        ("task list --older-than 5x", "--older-than: invalid duration '5x' (examples: 30s, 5m, 2h, 1d, 250ms)"),
    ],
)
def test_message_names_the_option_the_fault_and_the_value(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(line.split()) == 2
    assert capsys.readouterr().err.splitlines()[0] == f"error[HRS-206]: {message}"
