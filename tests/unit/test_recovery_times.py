from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.support.recovery_times import Timing, main, print_series, series_of


def _timings(scenario: str, *seconds: float) -> list[Timing]:
    return [Timing(scenario=scenario, what="settled", seconds=value, bound_s=1.3) for value in seconds]


def _write_times(folder: Path, timings: Iterable[Timing]) -> Path:
    file = folder / "times"
    file.write_text("".join(json.dumps(asdict(timing)) + "\n" for timing in timings))
    return file


def test_times_are_printed_and_excesses_marked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    quick = (value / 100 for value in range(100, 0, -1))
    print_series(series_of([*_timings("F11", 0.5, 1.4), *_timings("F2", *quick)]))
    _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [
        ["F2", "settled", "100", "0.50", "0.99", "1.00", "1.30"],
        ["F11", "settled", "2", "0.50", "!1.40", "!1.40", "1.30"],
    ]


def test_p99_above_its_limit_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_write_times(tmp_path, [*_timings("F1", 0.5), *_timings("F2", 0.5, 1.4)])) == 1
    assert "F2, settled: p99 is 1.40 s, bound 1.30 s" in capsys.readouterr().err


def test_one_late_recovery_in_a_hundred_passes(tmp_path: Path) -> None:
    assert main(_write_times(tmp_path, _timings("F2", *[0.5] * 99, 1.4))) == 0
