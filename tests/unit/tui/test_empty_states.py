"""A list without rows says what is missing and what healthy looks like."""

from __future__ import annotations

import pytest

from horsies_tui.keys import ScreenId
from tests.support.fake_system import FakeOpener
from tests.support.fake_system.system import FakeSystem
from tests.support.tui import NOON, eventually, running_app, screen_text


@pytest.mark.parametrize(
    ("screen_id", "text"),
    [
        (ScreenId.TASKS, "No tasks yet."),
        (ScreenId.STALE, "✓ No stale tasks, and none that missed a heartbeat."),
        (ScreenId.WORKFLOWS, "No workflow runs yet."),
    ],
)
async def test_empty_list_describes_the_healthy_state(screen_id: ScreenId, text: str) -> None:
    opener = FakeOpener(FakeSystem(lambda: NOON))
    async with running_app(opener, screen_id=screen_id, until="Healthy: ") as pilot:
        assert text in screen_text(pilot)


async def test_hint_of_an_empty_list_is_wrapped_not_cut() -> None:
    opener = FakeOpener(FakeSystem(lambda: NOON))
    async with running_app(opener, screen_id=ScreenId.STALE, until="Healthy: ") as pilot:
        text = " ".join(screen_text(pilot).split())
        assert "names workers that are silent and what they hold." in text
        assert "a claimed task after 2m00s; a sweep then recovers it." in text


async def test_filter_without_matches_says_how_to_clear_it() -> None:
    async with running_app(screen_id=ScreenId.WORKERS) as pilot:
        await pilot.press("slash", *"nowhere", "enter")
        await eventually(pilot, lambda: "Nothing matches the filter." in screen_text(pilot))
        await pilot.press("escape")
        await eventually(pilot, lambda: "Nothing matches" not in screen_text(pilot))
