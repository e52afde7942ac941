"""The screens over a test's database, opened as `horsies tui` opens the configured one."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg

from horsies.model.settings import AppConfig, PostgresConfig, TuiConfig
from horsies_ops.ops import open_ops
from horsies_tui.app import HorsiesApp
from horsies_tui.keys import Place
from tests.support.screens import eventually, shown

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from textual.pilot import Pilot

    from horsies_tui.data.source import Source


class Real:
    """Opens the database in the hands of ana."""

    def __init__(self, url: str) -> None:
        self._settings = AppConfig(broker=PostgresConfig.model_validate({"database_url": url}))

    @asynccontextmanager
    async def __call__(self, *, read_only: bool) -> AsyncGenerator[Source]:
        async with open_ops(self._settings, read_only=read_only, actor="ana", via="tui") as ops:
            yield ops


@asynccontextmanager
async def screens(url: str, *, place: Place = Place.TASKS, read_only: bool = False) -> AsyncGenerator[Pilot[None]]:
    app = HorsiesApp(Real(url), TuiConfig(), database="test", read_only=read_only, start=place)
    async with app.run_test(size=(120, 36)) as pilot:
        await eventually(pilot, lambda: "LIVE" in shown(pilot))
        yield pilot


async def ask(url: str, sql: str, *values: object) -> list[Any]:
    connection: asyncpg.Connection[Any] = await asyncpg.connect(url)
    try:
        return await connection.fetch(sql, *values)
    finally:
        await connection.close()
