from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.recovery_times import Timing, print_timings

if TYPE_CHECKING:
    import pytest


def _timings(scenario: str, *seconds: float) -> list[Timing]:
    return [Timing(scenario=scenario, what="settled", seconds=each, bound_s=1.3) for each in seconds]


def test_times_are_shown_by_scenario_beside_their_bound_and_what_exceeds_it_is_marked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_timings([*_timings("F11", 0.5, 1.4), *_timings("F2", *(each / 100 for each in range(100, 0, -1)))])
    _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [
        ["F2", "settled", "100", "0.50", "0.99", "1.00", "1.30"],
        ["F11", "settled", "2", "0.50", "1.40", "!1.40", "1.30"],
    ]
