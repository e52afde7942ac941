"""Themes, glyphs and charts, and the filter that draws everything in ASCII."""

from __future__ import annotations

import tomllib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from platformdirs import user_config_path
from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color, ColorParseError
from textual.filter import LineFilter
from textual.theme import Theme

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

THEME_CYCLE: Final = (DARK.name, LIGHT.name, "ansi-dark", "ansi-light")
"""Themes that the theme key cycles through; the palette offers all. The last two use the terminal's own colours."""

COLOURS: Final = (
    "primary",
    "secondary",
    "accent",
    "warning",
    "error",
    "success",
    "foreground",
    "background",
    "surface",
    "panel",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserThemes:
    """The user's themes and the faults of theme files that could not be loaded."""

    themes: tuple[Theme, ...] = ()
    faults: tuple[str, ...] = ()


NO_USER_THEMES: Final = UserThemes()


def default_themes_folder() -> Path:
    """Folder of the user's themes, one TOML file each."""
    return user_config_path("horsies", appauthor=False) / "themes"


def load_user_themes(folder: Path) -> UserThemes:
    """Load all themes of a folder. An invalid file becomes a fault and does not affect the others."""
    themes: list[Theme] = []
    faults: list[str] = []
    for path in sorted(folder.glob("*.toml")):
        try:
            themes.append(_parse_theme(path.stem, tomllib.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError) as error:
            faults.append(f"theme {path.name}: {error}")
    return UserThemes(themes=tuple(themes), faults=tuple(faults))


def _parse_theme(name: str, document: dict[str, Any]) -> Theme:
    """Raises ValueError for an invalid theme."""
    if "primary" not in document:
        raise ValueError("primary is missing")
    for key, value in document.items():
        if key == "dark" and isinstance(value, bool):
            continue
        if key not in COLOURS:
            raise ValueError(f"unknown key {key}")
        _check_colour(key, value)
    return Theme(name=name, **document)


def _check_colour(key: str, value: object) -> None:
    try:
        Color.parse(str(value))
    except ColorParseError:
        raise ValueError(f"{key}: {value} is not a colour") from None


# Glyphs


class Glyph:
    """Symbols of the screens, without emoji, whose width terminals disagree on; `AsciiFilter` replaces them.

    A state always has a glyph and a word, never only a colour.
    """

    CURSOR: Final = "▌"
    MARK: Final = "✓"
    RULE: Final = "─"
    BACK: Final = "‹"
    PROMPT: Final = "▸"
    ENTER: Final = "⏎"
    """The Enter key in the key line."""

    LIVE: Final = "●"
    POLLING: Final = "◐"
    SLOW: Final = "◑"
    LOST: Final = "○"
    CONNECTING: Final = "◌"
    BAD: Final = "✖"
    WARN: Final = "▲"
    PAUSED: Final = "‖"

    DONE: Final = "✓"
    FAILED: Final = "✗"
    RUNNING: Final = "▶"
    QUEUED: Final = "◎"
    WAITING: Final = "○"
    SKIPPED: Final = "⊘"
    OUTPUT: Final = "★"

    CLAIM: Final = "c"
    HEARTBEAT: Final = "●"
    SILENCE: Final = "┄"
    UNKNOWN: Final = "?"
    LIMIT: Final = "│"
    START: Final = "├"
    TICK: Final = "┬"
    NOT_LOADED: Final = "…"

    BRANCH: Final = "├─"
    LAST_BRANCH: Final = "└─"
    TRUNK: Final = "│"
    POINTER: Final = "↳"

    FULL: Final = "━"
    EMPTY: Final = "┄"


SPARKS: Final = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], *, top: float | None = None) -> str:
    """One character per value, scaled to `top` (default: the highest value)."""
    top = top or max(values, default=0) or 1
    last = len(SPARKS) - 1
    return "".join(SPARKS[round(min(max(value, 0) / top, 1) * last)] for value in values)


def area_chart(values: Sequence[float], height: int) -> list[str]:
    """Lines of a filled chart, the top one first; a value above zero is always visible."""
    levels = len(SPARKS)
    top = max(values, default=0) or 1
    filled = [max(round(value / top * height * levels), 1) if value > 0 else 0 for value in values]
    rows = [[min(max(level - row * levels, 0), levels) for level in filled] for row in reversed(range(height))]
    return ["".join(SPARKS[part - 1] if part else " " for part in row) for row in rows]


def downsample(values: Sequence[float], max_points: int) -> list[float]:
    """Reduce `values` to at most `max_points`, each the maximum of its interval."""
    count = min(len(values), max_points)
    edges = [index * len(values) // count for index in range(count + 1)] if count else []
    return [max(values[start:end]) for start, end in pairwise(edges)]


def bar(part: float, whole: float, width: int) -> str:
    """A horizontal bar that is filled to `part` of `whole`."""
    full = round(min(max(part / whole, 0.0), 1.0) * width) if whole else 0
    return Glyph.FULL * full + Glyph.EMPTY * (width - full)


# ASCII output (`tui.ascii`): the filter replaces our glyphs, Textual's borders and values from the database, keeping
# the width of each character.

_REPLACED_GLYPHS: Final = {
    "-": "─╌┈═—–‒−▔·▃",
    "|": "│┃┆┊║▏▕▎▍",
    "+": "┌┐└┘├┤┬┴┼╭╮╰╯╔╗╚╝╠╣╦╩╬┏┓┗┛✓✔▅",
    "#": "█▇▓▐▊▉▀━",
    ".": "▒░•∙┄◌▂",
    "~": "…◑",
    ">": "▌▶▸›→»↳",
    "<": "◀◂‹←«",
    "^": "↑△",
    "v": "▼↓▽",
    "*": "●★▆",
    "o": "○",
    "x": "✗×",
    "X": "✖",
    "!": "▲",
    "%": "◐",
    "@": "◎",
    "/": "⊘",
    "_": "▁",
    "$": "⏎↵",
    "'": "‘’",
    '"': "“”",
    "=": "‖≠≡▄",
}
_ASCII_REPLACEMENTS: Final = {glyph: plain for plain, glyphs in _REPLACED_GLYPHS.items() for glyph in glyphs}


class AsciiFilter(LineFilter):
    """Replaces all characters outside ASCII in the lines written to the terminal."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002  # Textual's
        return [Segment(to_ascii(text), style, control) for text, style, control in segments]


@lru_cache(maxsize=4096)
def to_ascii(text: str) -> str:
    """`text` in ASCII with the same width in columns."""
    if text.isascii():
        return text
    width = cell_len(text)
    return "".join(map(_ascii_character, text))[:width].ljust(width)


def _ascii_character(character: str) -> str:
    if character.isascii():
        return character
    width = cell_len(character)
    replacement = _ASCII_REPLACEMENTS.get(character) or unicodedata.normalize("NFKD", character)[0]
    return (replacement if replacement.isascii() and replacement.isprintable() else "?").ljust(width, "?")[:width]
