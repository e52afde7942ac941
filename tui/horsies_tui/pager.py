"""Long documents in the user's own pager, for which the screens step aside."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from typing import TYPE_CHECKING

from textual.app import SuspendNotSupported

if TYPE_CHECKING:
    from textual.screen import Screen

USUAL = "less"


def show_in_pager(screen: Screen[None], text: str, *, title: str) -> None:
    """Open `text` in $PAGER and come back when it is left; what cannot be done is said."""
    try:
        command = shlex.split(os.environ.get("PAGER", "")) or [USUAL]
    except ValueError as error:
        screen.notify(f"$PAGER cannot be read: {error}", severity="error", markup=False)
        return
    with tempfile.NamedTemporaryFile("w", prefix=f"horsies-{title}-", suffix=".json", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        try:
            with screen.app.suspend():
                subprocess.run([*command, file.name], check=False)
        except SuspendNotSupported:
            screen.notify("this terminal cannot be lent to a pager", severity="warning")
        except OSError as error:
            screen.notify(f"{command[0]}: {error.strerror}", severity="error", markup=False)
