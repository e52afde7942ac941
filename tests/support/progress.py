"""Progress of a test run in one line, instead of a dot for each test; `make test` loads it with `-p`.

On a terminal the line is rewritten in place. In a file or the log of CI a new one is written at most every ten seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from typing import Any

import pytest

TERMINAL_INTERVAL_S = 0.2
LOG_INTERVAL_S = 10.0


class Progress:
    """Counts the tests that have ended and writes the line; failures are named at once."""

    def __init__(
        self, write: Callable[[str], object], *, is_terminal: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write
        self._is_terminal = is_terminal
        self._clock = clock
        self._interval_s = TERMINAL_INTERVAL_S if is_terminal else LOG_INTERVAL_S
        self._began_at = self._written_at = clock()
        self._failed: set[str] = set()
        self._done: set[str] = set()
        self._total = 0
        self._is_over = False

    @property
    def line(self) -> str:
        minutes, seconds = divmod(round(self._clock() - self._began_at), 60)
        share = len(self._done) * 100 // self._total if self._total else 0
        counts = f"{len(self._done):,} of {self._total:,} tests"
        return f"{share:3d} %  {minutes}:{seconds:02d}  {counts}  {len(self._failed)} failed"

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._total = max(self._total, len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._total = len(ids)

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self) -> Generator[None, tuple[str, str, object], tuple[str, str, object]]:
        """Print no letter for a test; the summary at the end counts it by its category."""
        category, letter, word = yield
        return (category, letter, word) if self._is_over else (category, "", "")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self._is_over = True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)
            self._write_line(f"FAILED {report.nodeid}", end="\n")
        if report.when == "teardown":
            self._done.add(report.nodeid)
            is_last = len(self._done) == self._total
            if is_last or self._clock() - self._written_at >= self._interval_s:
                self._written_at = self._clock()
                self._write_line(self.line, end="\n" if is_last or not self._is_terminal else "")

    def _write_line(self, text: str, *, end: str) -> None:
        # Clear the line that is rewritten: what replaces it may be shorter.
        self._write(f"\r\x1b[K{text}{end}" if self._is_terminal else f"{text}{end}")


@pytest.hookimpl(trylast=True)  # after pytest has made its reporter
def pytest_configure(config: pytest.Config) -> None:
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not hasattr(config, "workerinput"):

        def write(text: str) -> None:
            reporter.write(text, flush=True)

        config.pluginmanager.register(Progress(write, is_terminal=sys.stdout.isatty()))
