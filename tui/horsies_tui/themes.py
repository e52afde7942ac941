"""Our two themes. States take their colours from names that every theme of Textual has, so all are readable."""

from __future__ import annotations

from typing import Final

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

OFFERED: Final = (DARK.name, LIGHT.name, "ansi-dark", "ansi-light")
"""What the theme key goes through; the palette offers every one. The last two are the terminal's own colours."""
