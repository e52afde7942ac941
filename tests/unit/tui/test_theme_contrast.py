"""No theme makes text invisible, with or without NO_COLOR."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from rich.segment import Segment
from textual.pilot import Pilot

from horsies_tui.keys import ScreenId
from horsies_tui.theme import THEME_CYCLE
from tests.support.tui import eventually, rendered_segments, running_app, screen_text, until_plan_dialog, until_stable


def _is_invisible(segment: Segment) -> bool:
    """Whether the text has the colour of its background; the terminal's own two colours differ."""
    style = segment.style
    if not segment.text.strip() or style is None or style.color is None or style.bgcolor is None:
        return False
    if style.color.is_default and style.bgcolor.is_default:
        return False
    return style.color == style.bgcolor or style.color.get_truecolor() == style.bgcolor.get_truecolor(foreground=False)


async def _invisible_texts(pilot: Pilot[None], themes: Iterable[str] = THEME_CYCLE) -> dict[str, list[str]]:
    """The invisible texts of the screen by theme."""
    found: dict[str, list[str]] = {}
    for name in themes:
        pilot.app.theme = name
        await until_stable(pilot)
        found[name] = [segment.text for segment in rendered_segments(pilot) if _is_invisible(segment)]
    return {name: texts for name, texts in found.items() if texts}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("no_color", [False, True])
@pytest.mark.parametrize("screen_id", list(ScreenId))
async def test_no_text_has_the_colour_of_its_background(
    screen_id: ScreenId, no_color: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    caption_file = tmp_path / "caption.txt"
    caption_file.write_text("worker 2 killed {age} ago: watch Stale (4)")
    async with running_app(screen_id=screen_id, size=(120, 36), caption_file=caption_file) as pilot:
        await eventually(pilot, lambda: "watch Stale (4)" in screen_text(pilot))
        assert pilot.app.no_color is no_color
        # The dashboard has every colour, and the cursor on them; one screen in all themes is enough.
        themes = pilot.app.available_themes if screen_id is ScreenId.DASHBOARD else THEME_CYCLE
        assert await _invisible_texts(pilot, themes) == {}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("no_color", [False, True])
async def test_no_text_of_a_preview_is_invisible(no_color: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    async with running_app(screen_id=ScreenId.STALE) as pilot:
        await pilot.press("S")
        await until_plan_dialog(pilot)
        assert await _invisible_texts(pilot) == {}


async def test_monochrome_theme_of_the_terminal_uses_its_own_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with running_app() as pilot:
        pilot.app.theme = "ansi-dark"
        await eventually(pilot, lambda: pilot.app.theme == "ansi-dark")
        await until_stable(pilot)
        colours = {style.color for _, style, _ in rendered_segments(pilot) if style is not None and style.color}
        assert all(colour.is_default for colour in colours)
