"""Copying by the terminal itself (OSC 52), also through SSH; what was copied is shown, for not every one does it."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from textual.app import SuspendNotSupported
from textual.screen import Screen

from horsies_ops.cli.output import json_line, to_json
from horsies_tui.format import plural, sanitize
from horsies_tui.widgets.dialogs import PromptDialog

MAX_CLIPBOARD_BYTES: Final = 64_000
"""Bytes. Many terminals take no more than that, and of more nothing."""
MAX_NOTICE_CHARACTERS: Final = 200


def copy_text(screen: Screen[Any], text: str, what: str) -> None:
    """Copy `text`, and say that it is `what`. Lines stay lines; no other control goes along.

    What is pasted is typed into some other program, and a control would act there as it would here.
    """
    if len(text.encode()) > MAX_CLIPBOARD_BYTES:
        screen.notify("too much for the clipboard of a terminal", title=f"did not copy {what}", severity="warning")
        return
    harmless = "\n".join(sanitize(line) for line in text.split("\n"))
    screen.app.copy_to_clipboard(harmless)
    screen.notify(sanitize(text, limit=MAX_NOTICE_CHARACTERS), title=f"copied {what}", markup=False)


# Long documents in the user's own pager, for which the screens step aside.

DEFAULT_PAGER = "less"


def show_in_pager(screen: Screen[None], text: str, *, title: str) -> None:
    """Open `text` in $PAGER and come back when it is left; what cannot be done is said."""
    try:
        command = shlex.split(os.environ.get("PAGER", "")) or [DEFAULT_PAGER]
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


# Rows of a list as a file: comma-separated where its name says so, else one JSON document a line.

SAVE_PROMPT: Final = "Save as (.csv, or .jsonl for a JSON document a line). Esc saves nothing."
FORMULA_PREFIXES: Final = ("=", "+", "-", "@")
"""What a spreadsheet takes for a formula and carries out."""


async def save_rows(screen: Screen[Any], what: str, rows: Sequence[object], now: datetime) -> None:
    """Ask where to, write the rows there and say where they are. A file that exists is left as it is.

    To a browser they are given as a download: whoever sits there has no business in the files of this machine.
    """
    proposed = f"horsies-{what}-{now:%Y%m%d-%H%M%S}.jsonl"
    if screen.app.is_web:
        screen.app.deliver_text(io.StringIO(as_json_lines([to_json(row) for row in rows])), save_filename=proposed)
        return
    answer = await screen.app.push_screen_wait(PromptDialog(SAVE_PROMPT, proposed))
    if not answer:
        return
    try:
        path = await asyncio.to_thread(_write, Path(answer), [to_json(row) for row in rows])
    except (OSError, ValueError, RuntimeError) as error:
        # Names that no file can have, and the home of a user who does not exist, are not errors of the system.
        why = error.strerror if isinstance(error, OSError) else error
        screen.notify(sanitize(f"{answer}: {why}"), severity="error", markup=False)
    else:
        screen.notify(sanitize(f"{plural(len(rows), 'row')} in {path}"), markup=False)


def as_json_lines(documents: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json_line(document) + "\n" for document in documents)


def as_csv(documents: Sequence[Mapping[str, Any]]) -> str:
    """With a line of names on top; what is a document in a cell is JSON there."""
    names = list(dict.fromkeys(name for document in documents for name in document))
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(names)
    writer.writerows([_csv_cell(document.get(name)) for name in names] for document in documents)
    return text.getvalue()


def _write(wanted: Path, documents: Sequence[Mapping[str, Any]]) -> Path:
    """Where it was written, from the root."""
    path = wanted.expanduser().absolute()
    written = as_csv(documents) if path.suffix.lower() == ".csv" else as_json_lines(documents)
    with path.open("x", encoding="utf-8", newline="") as file:
        file.write(written)
    return path


def _csv_cell(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        return sanitize(json.dumps(value, ensure_ascii=False))
    shown = sanitize(value)
    return "'" + shown if shown.startswith(FORMULA_PREFIXES) else shown
