"""A busy system in memory, for tests and pictures of the TUI: the same clock gives the same rows.

It has what an operator meets: busy queues, failures, workflow runs, a lost worker with its tasks. Actions take effect.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from horsies_ops.source import DataSource
from tests.support.fake_system.source import FakeSource
from tests.support.fake_system.system import FakeSystem


class FakeOpener:
    """Opens data sources over one fake system."""

    def __init__(self, system: FakeSystem) -> None:
        self._system = system

    @asynccontextmanager
    async def __call__(self, *, read_only: bool) -> AsyncGenerator[DataSource]:
        yield FakeSource(self._system, read_only=read_only)
