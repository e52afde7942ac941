from __future__ import annotations

from datetime import timedelta

import pytest
import typer

from horsies_ops.cli.option_types import parse_duration_option


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("5m", timedelta(minutes=5)),
        ("30s", timedelta(seconds=30)),
        ("2h", timedelta(hours=2)),
        ("1d", timedelta(days=1)),
        ("250ms", timedelta(milliseconds=250)),
        ("90", timedelta(seconds=90)),
        ("1.5h", timedelta(minutes=90)),
        ("0", timedelta(0)),
        (" 5 M ", timedelta(minutes=5)),
    ],
)
def test_durations_are_parsed(text: str, meant: timedelta) -> None:
    assert parse_duration_option(text) == meant


@pytest.mark.parametrize("text", ["", "m", "-5m", "5x", "5m30s", "1e3", "nan", "٥m", "5 minutes"])
def test_invalid_duration_is_rejected_with_examples(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="examples: 30s, 5m, 2h, 1d, 250ms"):
        parse_duration_option(text)


def test_too_long_duration_is_rejected() -> None:
    with pytest.raises(typer.BadParameter, match="is too long"):
        parse_duration_option("9" * 400 + "d")
