"""With `tui.ascii`, every screen and dialog is drawn in ASCII."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from horsies.model.settings import TuiConfig
from horsies_tui.keys import ScreenId
from horsies_tui.screens import SCREENS
from horsies_tui.theme import SPARKS, Glyph, to_ascii
from tests.support.fake_system import FakeOpener
from tests.support.fake_system.catalog import KINDS
from tests.support.tui import eventually, frozen_system, running_app, screen_text, until_stable

OPENING_KEYS = {
    "help": ("question_mark",),
    "palette": ("colon",),
    "preview": ("C",),
    "facets": ("f",),
    "detail": ("enter",),
    "sort": ("s",),
    "save": ("ctrl+s",),
    "copied": ("y",),
}
"""Keys that open something over the Tasks screen."""


def test_every_glyph_has_an_ascii_version() -> None:
    glyphs = [text for name, text in vars(Glyph).items() if name.isupper()] + list(SPARKS)
    assert not [glyph for glyph in glyphs if glyph != "?" and "?" in to_ascii(glyph)]
    levels = [to_ascii(spark) for spark in SPARKS[:-1]]
    assert len(set(levels)) == len(levels)


@given(st.text(st.characters(exclude_categories=("C",))))
def test_ascii_text_keeps_its_width(text: str) -> None:
    assert to_ascii(text).isascii()
    assert len(to_ascii(text)) == cell_len(text)


@pytest.mark.parametrize("size", [(80, 24), (150, 40)], ids=["small", "large"])
@pytest.mark.parametrize("screen_id", SCREENS)
async def test_screen_is_drawn_in_ascii(screen_id: ScreenId, size: tuple[int, int]) -> None:
    system = frozen_system()
    system.send(KINDS[0], kwargs_json='{"to": "Zoë 漢字 \U0001f40e"}')
    async with running_app(FakeOpener(system), settings=TuiConfig(ascii=True), size=size, screen_id=screen_id) as pilot:
        assert {character for character in screen_text(pilot) if not character.isascii()} == set()


@pytest.mark.parametrize("keys", OPENING_KEYS.values(), ids=OPENING_KEYS)
async def test_dialogs_are_drawn_in_ascii(keys: tuple[str, ...]) -> None:
    async with running_app(settings=TuiConfig(ascii=True), notifies=True) as pilot:
        before = screen_text(pilot)
        await pilot.press(*keys)
        await eventually(pilot, lambda: screen_text(pilot) != before)
        await until_stable(pilot)
        assert {character for character in screen_text(pilot) if not character.isascii()} == set()


async def test_too_small_notice_is_drawn_in_ascii() -> None:
    async with running_app(settings=TuiConfig(ascii=True), size=(50, 12), until="needs 60") as pilot:
        assert screen_text(pilot).isascii()
