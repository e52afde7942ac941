"""Copying by the terminal itself (OSC 52), also through SSH; what was copied is shown, for not every one does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from horsies_tui.format import clean

if TYPE_CHECKING:
    from textual.screen import Screen

MOST: Final = 64_000
"""Bytes. Many terminals take no more than that, and of more nothing."""
SHOWN: Final = 200


def copy(screen: Screen[Any], text: str, what: str) -> None:
    """Copy `text`, and say that it is `what`. Lines stay lines; no other control goes along.

    What is pasted is typed into some other program, and a control would act there as it would here.
    """
    if len(text.encode()) > MOST:
        screen.notify("too much for the clipboard of a terminal", title=f"did not copy {what}", severity="warning")
        return
    harmless = "\n".join(clean(line) for line in text.split("\n"))
    screen.app.copy_to_clipboard(harmless)
    screen.notify(clean(text, limit=SHOWN), title=f"copied {what}", markup=False)
