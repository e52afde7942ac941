"""An invented busy system for `horsies tui --demo`: for a first look, for pictures, and for tests without a server.

It has what an operator meets: queues under load, storms, failures that come in bunches, and a worker that is gone with
its tasks. What is done to it has its effect. The same seed and clock make the same system.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from horsies_tui.data.source import DataSource
from horsies_tui.demo.source import DemoSource
from horsies_tui.demo.system import DemoSystem

DATABASE_NAME = "demo"


class DemoOpener:
    """An opener over one system, which lives as long as this does."""

    def __init__(self, system: DemoSystem | None = None, *, pace_s: float | None = 0.25) -> None:
        self.system = system or DemoSystem.with_history()
        self._pace_s = pace_s

    @asynccontextmanager
    async def __call__(self, *, read_only: bool) -> AsyncGenerator[DataSource]:
        yield DemoSource(self.system, read_only=read_only, pace_s=self._pace_s)
