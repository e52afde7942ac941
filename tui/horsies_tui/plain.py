"""Everything that is drawn, in ASCII: for terminals and fonts that have nothing else.

The signs of our own have stand-ins that were chosen (`glyphs`). This is for all the rest, which comes from borders,
from the framework and from the database: each character becomes as many plain ones as it takes columns.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len
from rich.segment import Segment
from textual.filter import LineFilter

if TYPE_CHECKING:
    from textual.color import Color

_DRAWN: Final = {
    "-": "─━╌┄┈═—–‒−▔▁·",
    "|": "│┃┆┊║▏▕▎▍",
    "+": "┌┐└┘├┤┬┴┼╭╮╰╯╔╗╚╝╠╣╦╩╬┏┓┗┛",
    "#": "█▇▆▓▌▐▊▉▄▀",
    ".": "▒░•∙",
    "~": "…",
    ">": "▶▸›→»",
    "<": "◀◂‹←«",
    "^": "▲↑△",
    "v": "▼↓▽",
    "*": "●★◎✓✔⊘",
    "o": "○◌◐◑",
    "x": "✖✗×",
    "$": "⏎↵",
    "'": "‘’",
    '"': "“”",
    "=": "‖≠≡",
}
_STAND_INS: Final = {sign: plain for plain, signs in _DRAWN.items() for sign in signs}


class Plain(LineFilter):
    """What a line of the screen goes through on its way to the terminal."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002  # Textual's
        return [Segment(plain(text), style, control) for text, style, control in segments]


@lru_cache(maxsize=4096)
def plain(text: str) -> str:
    """`text` in ASCII and in as many columns."""
    if text.isascii():
        return text
    width = cell_len(text)
    return "".join(map(_plain_character, text))[:width].ljust(width)


def _plain_character(character: str) -> str:
    if character.isascii():
        return character
    width = cell_len(character)
    known = _STAND_INS.get(character) or unicodedata.normalize("NFKD", character)[0]
    return (known if known.isascii() and known.isprintable() else "?").ljust(width, "?")[:width]
