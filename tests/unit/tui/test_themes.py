from __future__ import annotations

from pathlib import Path

import pytest

from horsies.model.settings import TuiConfig
from horsies_tui.theme import THEME_CYCLE, load_user_themes
from tests.support.tui import eventually, running_app, screen_text

INVALID_THEMES = {
    "blurple is not a colour": "primary = 'blurple'",
    "unknown key secundary": "primary = '#112233'\nsecundary = '#112233'",
    "primary is missing": "dark = true",
    "Expected": "primary",
}


def test_user_theme_is_toml_file_with_colours(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("primary = '#112233'\nbackground = 'black'\ndark = true\n")
    found = load_user_themes(tmp_path)
    assert not found.faults
    assert [(theme.name, theme.primary) for theme in found.themes] == [("mine", "#112233")]


@pytest.mark.parametrize(("fault", "content"), INVALID_THEMES.items(), ids=[*INVALID_THEMES])
def test_invalid_theme_file_is_fault_and_others_load(tmp_path: Path, fault: str, content: str) -> None:
    (tmp_path / "bad.toml").write_text(content)
    (tmp_path / "good.toml").write_text("primary = '#112233'")
    found = load_user_themes(tmp_path)
    assert [theme.name for theme in found.themes] == ["good"]
    assert len(found.faults) == 1
    assert "bad.toml" in found.faults[0]
    assert fault in found.faults[0]


def test_missing_folder_has_no_themes(tmp_path: Path) -> None:
    assert load_user_themes(tmp_path / "nowhere").themes == ()


async def test_invalid_theme_is_notified_and_default_is_used(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("primary = 'blurple'")
    settings, themes = TuiConfig(theme="mine"), load_user_themes(tmp_path)
    async with running_app(settings=settings, themes=themes, notifies=True, size=(100, 30)) as pilot:
        await eventually(pilot, lambda: "blurple is not" in screen_text(pilot))
        assert "unknown theme mine" in screen_text(pilot)
        assert pilot.app.theme == "horsies-dark"


@pytest.mark.parametrize("theme", THEME_CYCLE)
async def test_every_theme_of_cycle_can_be_used(theme: str) -> None:
    async with running_app(settings=TuiConfig(theme=theme)) as pilot:
        assert pilot.app.theme == theme
        assert "mail.send" in screen_text(pilot)
