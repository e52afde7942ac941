"""Searching in short lists."""

from __future__ import annotations

from typing import Any, cast

import pytest

from horsies_tui.keys import ScreenId
from horsies_tui.screens.lists import ListScreen
from tests.support.tui import eventually, running_app, screen_text


@pytest.mark.parametrize(
    ("screen_id", "typed", "shown", "hidden"),
    [
        (ScreenId.QUEUES, "mai", "mail", "scraping"),
        (ScreenId.WORKERS, "host-2", "host-2:877", "host-1:901"),
        (ScreenId.WORKERS, "lost host", "host-3:4121", "host-1:901"),
        (ScreenId.SCHEDULES, "etl", "nightly-etl", "digest"),
    ],
)
async def test_only_rows_with_every_word_are_shown(screen_id: ScreenId, typed: str, shown: str, hidden: str) -> None:
    async with running_app(screen_id=screen_id) as pilot:
        await eventually(pilot, lambda: shown in screen_text(pilot) and hidden in screen_text(pilot))
        screen = cast("ListScreen[Any]", pilot.app.screen)
        count = len(screen.list.rows)
        await pilot.press("slash", *typed, "enter")
        await eventually(pilot, lambda: 0 < len(screen.list.rows) < count)
        assert screen.list.has_focus
        assert shown in screen_text(pilot)
        assert hidden not in screen_text(pilot)
        await pilot.press("escape")
        await eventually(pilot, lambda: len(screen.list.rows) == count)
