"""Our two themes, and those of the user. States take their colours from names that every theme of Textual has."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from platformdirs import user_config_path
from textual.color import Color, ColorParseError
from textual.theme import Theme

if TYPE_CHECKING:
    from pathlib import Path

DARK: Final = Theme(
    name="horsies-dark",
    primary="#7aa2f7",
    secondary="#9d7cd8",
    accent="#e0af68",
    warning="#e0af68",
    error="#f7768e",
    success="#9ece6a",
    foreground="#c8d0e8",
    background="#14161f",
    surface="#1b1e2b",
    panel="#262a3b",
    dark=True,
)

LIGHT: Final = Theme(
    name="horsies-light",
    primary="#2e5cc5",
    secondary="#7847bd",
    accent="#8f5e15",
    warning="#8f5e15",
    error="#b3261e",
    success="#33691e",
    foreground="#23262f",
    background="#f7f7f4",
    surface="#eeeeea",
    panel="#dfdfd9",
    dark=False,
)

OFFERED: Final = (DARK.name, LIGHT.name, "ansi-dark", "ansi-light")
"""What the theme key goes through; the palette offers every one. The last two are the terminal's own colours."""

COLOURS: Final = (
    "primary", "secondary", "accent", "warning", "error", "success", "foreground", "background", "surface", "panel",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class UserThemes:
    """The themes that could be read, and what is wrong with the files of the others."""

    themes: tuple[Theme, ...] = ()
    faults: tuple[str, ...] = ()


NO_OTHERS: Final = UserThemes()


def usual_folder() -> Path:
    """Where a user puts themes of their own, one a file."""
    return user_config_path("horsies", appauthor=False) / "themes"


def user_themes(folder: Path) -> UserThemes:
    """A file that is no theme is a fault, and never the end of the others."""
    themes: list[Theme] = []
    faults: list[str] = []
    for path in sorted(folder.glob("*.toml")):
        try:
            themes.append(_theme(path.stem, tomllib.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError) as error:
            faults.append(f"theme {path.name}: {error}")
    return UserThemes(themes=tuple(themes), faults=tuple(faults))


def _theme(name: str, document: dict[str, Any]) -> Theme:
    """`ValueError` where the document is no theme."""
    if "primary" not in document:
        raise ValueError("primary is missing")
    for key, value in document.items():
        if key == "dark" and isinstance(value, bool):
            continue
        if key not in COLOURS:
            raise ValueError(f"{key} is no colour of a theme")
        _check_colour(key, value)
    return Theme(name=name, **document)


def _check_colour(key: str, value: object) -> None:
    try:
        Color.parse(str(value))
    except ColorParseError:
        raise ValueError(f"{key}: {value} is no colour") from None
