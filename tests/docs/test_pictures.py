"""Every screen has a self-contained picture; `make pictures` redraws them."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from horsies_tui.screens import SCREENS

ROOT = Path(__file__).parents[2]
PICTURES = sorted((ROOT / "docs" / "pictures").glob("*.svg"))


@pytest.mark.parametrize("screen_id", SCREENS)
def test_every_screen_has_a_picture(screen_id: str) -> None:
    assert f"{screen_id}.svg" in {picture.name for picture in PICTURES}


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.stem)
def test_pictures_are_valid_and_self_contained(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    ET.fromstring(text)  # noqa: S314  # our own
    assert "url(" not in re.sub(r"url\(#", "", text)
    assert "href" not in text


@pytest.mark.parametrize("page", ["README.md", "docs/tui.md"])
def test_pictures_in_pages_exist(page: str) -> None:
    shown = re.findall(r"!\[[^]]*\]\(([^)]+\.svg)\)", (ROOT / page).read_text(encoding="utf-8"))
    assert shown
    assert all(((ROOT / page).parent / path).exists() for path in shown)
