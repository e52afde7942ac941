from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from horsies_tui.demo.source import DemoSource
from horsies_tui.widgets.plan_dialog import PlanDialog
from tests.support.screens import dialog, running, settled, still

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from horsies_ops.actions.plan import Plan
    from horsies_tui.source import Source


class Slow(DemoSource):
    """Takes its time to plan, until it may answer."""

    def __init__(self) -> None:
        super().__init__(still(), read_only=False, pace_s=None)
        self.may_answer = asyncio.Event()
        self.asked = 0

    async def plan(self, *args: Any, **options: Any) -> Plan:
        self.asked += 1
        await self.may_answer.wait()
        return await super().plan(*args, **options)

    @asynccontextmanager
    async def __call__(self, *, read_only: bool) -> AsyncGenerator[Source]:  # noqa: ARG002  # an opener's
        yield self


async def test_a_key_typed_twice_opens_one_preview() -> None:
    source = Slow()
    async with running(source) as pilot:
        await pilot.press("R", "R", "F")
        source.may_answer.set()
        await dialog(pilot)
        await settled(pilot)
        assert source.asked == 1
        assert [type(screen) for screen in pilot.app.screen_stack].count(PlanDialog) == 1


async def test_after_a_preview_is_closed_the_key_opens_the_next() -> None:
    source = Slow()
    source.may_answer.set()
    async with running(source) as pilot:
        for _ in range(2):
            await pilot.press("R")
            await dialog(pilot)
            await pilot.press("enter")
        assert source.asked == 2
