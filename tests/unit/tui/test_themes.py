from __future__ import annotations

from pathlib import Path

import pytest

from horsies.model.settings import TuiConfig
from horsies_tui.theme import THEME_CYCLE, load_user_themes
from tests.support.tui import eventually, running_app, screen_text

FAULTY = {
    "blurple is not a colour": "primary = 'blurple'",
    "unknown key secundary": "primary = '#112233'\nsecundary = '#112233'",
    "primary is missing": "dark = true",
    "Expected": "primary",
}


def test_a_theme_of_the_user_is_a_file_with_colours(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("primary = '#112233'\nbackground = 'black'\ndark = true\n")
    found = load_user_themes(tmp_path)
    assert not found.faults
    assert [(theme.name, theme.primary) for theme in found.themes] == [("mine", "#112233")]


@pytest.mark.parametrize(("fault", "content"), FAULTY.items(), ids=[*FAULTY])
def test_a_file_that_is_no_theme_is_told_and_the_others_are_there(tmp_path: Path, fault: str, content: str) -> None:
    (tmp_path / "bad.toml").write_text(content)
    (tmp_path / "good.toml").write_text("primary = '#112233'")
    found = load_user_themes(tmp_path)
    assert [theme.name for theme in found.themes] == ["good"]
    assert len(found.faults) == 1
    assert "bad.toml" in found.faults[0]
    assert fault in found.faults[0]


def test_no_folder_is_no_themes(tmp_path: Path) -> None:
    assert load_user_themes(tmp_path / "nowhere").themes == ()


async def test_a_faulty_theme_is_a_notice_and_the_default_is_put_on(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("primary = 'blurple'")
    settings, themes = TuiConfig(theme="mine"), load_user_themes(tmp_path)
    async with running_app(settings=settings, themes=themes, notifies=True, size=(100, 30)) as pilot:
        await eventually(pilot, lambda: "blurple is not" in screen_text(pilot))
        assert "unknown theme mine" in screen_text(pilot)
        assert pilot.app.theme == "horsies-dark"


@pytest.mark.parametrize("theme", THEME_CYCLE)
async def test_each_theme_that_is_offered_can_be_put_on(theme: str) -> None:
    async with running_app(settings=TuiConfig(theme=theme)) as pilot:
        assert pilot.app.theme == theme
        assert "mail.send" in screen_text(pilot)
