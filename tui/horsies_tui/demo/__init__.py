"""The demo system of `horsies tui --demo`, for a first look, screenshots and tests without a database.

It simulates what an operator meets: busy queues, bursts, failures, a lost worker with its tasks. Actions take effect.
The random seed is fixed, so the same clock gives the same system.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from horsies_ops.source import DataSource
from horsies_tui.demo.source import DemoSource
from horsies_tui.demo.system import DemoSystem

DATABASE_NAME = "demo"


class DemoOpener:
    """Opens data sources over one demo system; it advances every `pace_s` seconds, or never if None."""

    def __init__(self, system: DemoSystem | None = None, *, pace_s: float | None = 0.25) -> None:
        self._system = system
        self._pace_s = pace_s

    @asynccontextmanager
    async def __call__(self, *, read_only: bool) -> AsyncGenerator[DataSource]:
        # Created when it is opened, not before: the screen is painted first.
        self._system = self._system or DemoSystem.with_history()
        yield DemoSource(self._system, read_only=read_only, pace_s=self._pace_s)
