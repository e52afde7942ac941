from __future__ import annotations

import pytest

from horsies.model.settings import TuiConfig
from horsies_tui.keys import KEY_RULES, ScreenId, SharedScope, actions_in
from horsies_tui.screens import SCREENS
from horsies_tui.widgets.dialogs import help_content
from tests.support.tui import eventually, running_app, screen_text


@pytest.mark.parametrize("screen_id", SCREENS)
def test_help_lists_every_action_of_screen(screen_id: ScreenId) -> None:
    text = help_content(screen_id, {}).plain
    assert all(rule in text for rule in KEY_RULES)
    for section in (screen_id, SharedScope.LIST, SharedScope.APP):
        assert all(action.id in text for action in actions_in(section))


def test_help_describes_a_key_by_its_screen() -> None:
    assert "R        op.requeue    retry the failed nodes of this run" in help_content(ScreenId.WORKFLOWS, {}).plain
    assert "R        op.requeue    run this schedule now" in help_content(ScreenId.SCHEDULES, {}).plain


def test_help_shows_changed_key() -> None:
    text = help_content(ScreenId.TASKS, {"op.fail": "K", "op.expire": ""}).plain
    assert any(line.split()[:2] == ["K", "op.fail"] for line in text.splitlines())
    assert any(line.split()[:2] == ["(off)", "op.expire"] for line in text.splitlines())


async def test_changed_key_replaces_default_in_app() -> None:
    async with running_app(settings=TuiConfig(keys={"app.help": "f2"})) as pilot:
        await pilot.press("question_mark")
        assert "Keys of" not in screen_text(pilot)
        await pilot.press("f2")
        await eventually(pilot, lambda: "Keys of" in screen_text(pilot))
