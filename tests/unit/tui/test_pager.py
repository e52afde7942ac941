from __future__ import annotations

import pytest

from horsies_tui.system import show_in_pager
from tests.support.tui import eventually, running_app, screen_text


async def test_invalid_pager_setting_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGER", "less '")
    async with running_app(notifies=True) as pilot:
        show_in_pager(pilot.app.screen_stack[0], "{}", title="args")
        await eventually(pilot, lambda: "invalid $PAGER" in screen_text(pilot))
