"""The progress line of a test run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.progress import LOG_INTERVAL_S, Progress


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Run:
    """A run of `total` tests, whose ends are reported by number."""

    def __init__(self, total: int, *, is_terminal: bool = False) -> None:
        self.clock = Clock()
        self.written: list[str] = []
        self._progress = Progress(self.written.append, is_terminal=is_terminal, clock=self.clock)
        self._progress.pytest_xdist_node_collection_finished([str(number) for number in range(total)])

    def end(self, number: int, *, failed_in: str | None = None) -> None:
        for when in ("setup", "call", "teardown"):
            report = SimpleNamespace(nodeid=f"test_{number}", when=when, failed=when == failed_in)
            self._progress.pytest_runtest_logreport(cast("Any", report))


def test_log_gets_a_line_at_intervals_and_at_the_end() -> None:
    run = Run(5_000)
    for number in range(5_000):
        run.clock.now_s = LOG_INTERVAL_S * number // 2_000
        run.end(number)
    assert run.written == [
        " 40 %  0:10  2,001 of 5,000 tests  0 failed\n",
        " 80 %  0:20  4,001 of 5,000 tests  0 failed\n",
        "100 %  0:24  5,000 of 5,000 tests  0 failed\n",
    ]


def test_terminal_line_is_rewritten_in_place() -> None:
    run = Run(2, is_terminal=True)
    for number in range(2):
        run.clock.now_s += 61
        run.end(number)
    assert run.written == [
        "\r\x1b[K 50 %  1:01  1 of 2 tests  0 failed",
        "\r\x1b[K100 %  2:02  2 of 2 tests  0 failed\n",
    ]


@pytest.mark.parametrize("phase", ["setup", "call", "teardown"])
def test_failed_test_is_named_at_once(phase: str) -> None:
    run = Run(2)
    run.end(0, failed_in=phase)
    assert run.written == ["FAILED test_0\n"]
    run.end(1)
    assert run.written[1:] == ["100 %  0:00  2 of 2 tests  1 failed\n"]
