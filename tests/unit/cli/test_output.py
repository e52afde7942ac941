from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from uuid import UUID

import pytest

from horsies.errors import BrokerErrorCode, ConfigurationError, ErrorCode, raise_together
from horsies_ops.cli.output import Colour, format_value, print_error, program_name, to_json

# As asyncpg returns infinity.
INFINITY, INFINITELY_LONG_AGO = datetime.max, datetime.min  # noqa: DTZ901


@pytest.mark.parametrize(("is_on_path", "expected"), [(True, "horsies"), (False, "venv/bin/horsies")])
def test_program_is_named_as_it_can_be_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_on_path: bool, expected: str
) -> None:
    program = tmp_path / "venv" / "bin" / "horsies"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["venv/bin/horsies"])
    monkeypatch.setenv("PATH", str(program.parent) if is_on_path else "/nowhere")
    assert program_name() == expected


@dataclass(frozen=True, slots=True)
class Row:
    at: datetime
    took: timedelta | None


@pytest.mark.parametrize(
    ("value", "document"),
    [
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2))), "2026-01-02T01:04:05Z"),
        (INFINITY, "9999-12-31T23:59:59.999999Z"),
        (INFINITELY_LONG_AGO, "0001-01-01T00:00:00Z"),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=2))), "0001-01-01T00:00:00+02:00"),
        (timedelta(minutes=1, milliseconds=5), 60.005),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Path("a/b"), "a/b"),
        (BrokerErrorCode.NO_BROKER, "NO_BROKER"),
        (Row(datetime(2026, 1, 1, tzinfo=UTC), None), {"at": "2026-01-01T00:00:00Z", "took": None}),
        ({"rows": (1, "x", None)}, {"rows": [1, "x", None]}),
    ],
)
def test_json_documents_contain_plain_values(value: object, document: object) -> None:
    assert to_json(value) == document


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=timezone(timedelta(hours=2))), "2026-01-02 01:04:05Z"),
        (INFINITY, "9999-12-31 23:59:59Z"),
        (timedelta(minutes=2, seconds=1), "2m01s"),
        ("text", "text"),
        ({"delay": None}, '{"delay": null}'),
    ],
)
def test_text_output_has_one_format_for_times_and_ages(value: object, text: str) -> None:
    assert format_value(value) == text


def test_error_shows_code_message_and_hint(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(
        ConfigurationError("worker.processes must be at least 1", code=ErrorCode.CONFIG_INVALID_WORKER, hint="use 1")
    )
    assert capsys.readouterr().err == "error[HRS-218]: worker.processes must be at least 1\nhint: use 1\n"


def test_all_faults_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        raise_together("settings", [ConfigurationError("first"), ConfigurationError("second")])
    print_error(caught.value)
    assert capsys.readouterr().err == "error: first\nerror: second\n"


def test_control_characters_in_errors_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(ConfigurationError("bad \x1b[31mname\x07"))
    assert capsys.readouterr().err == "error: bad \\x1b[31mname\\x07\n"


def test_environment_forces_and_disables_colour(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HORSIES_FORCE_COLOR", "1")
    print_error(ConfigurationError("x"))
    monkeypatch.setenv("NO_COLOR", "1")
    print_error(ConfigurationError("x"))
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setattr(Colour, "is_disabled", True)
    print_error(ConfigurationError("x"))
    assert capsys.readouterr().err.splitlines() == ["\x1b[1;31merror\x1b[0m: x", "error: x", "error: x"]
