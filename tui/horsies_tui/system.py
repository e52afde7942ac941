"""Clipboard, pager and file export."""

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
"""Many terminals ignore a longer OSC 52 sequence completely."""
MAX_NOTICE_CHARACTERS: Final = 200
DEFAULT_PAGER: Final = "less"
SAVE_PROMPT: Final = "Save as (.csv, or .jsonl for JSON lines). Esc goes back."
FORMULA_PREFIXES: Final = ("=", "+", "-", "@")
"""Cells that start with one of these are executed by spreadsheets."""


def copy_text(screen: Screen[Any], text: str, what: str) -> None:
    """Copy `text` with OSC 52, which also works over SSH, and notify that `what` was copied.

    The notice shows the text, because not every terminal supports OSC 52. Control characters other than newlines are
    replaced: pasted into another program they would take effect there.
    """
    if len(text.encode()) > MAX_CLIPBOARD_BYTES:
        screen.notify("too long for the terminal's clipboard", title=f"cannot copy {what}", severity="warning")
        return
    screen.app.copy_to_clipboard("\n".join(sanitize(line) for line in text.split("\n")))
    screen.notify(sanitize(text, limit=MAX_NOTICE_CHARACTERS), title=f"copied {what}", markup=False)


def show_in_pager(screen: Screen[None], text: str, *, title: str) -> None:
    """Suspend the app and open `text` in $PAGER until it exits; failures are notified."""
    try:
        command = shlex.split(os.environ.get("PAGER", "")) or [DEFAULT_PAGER]
    except ValueError as error:
        screen.notify(f"invalid $PAGER: {error}", severity="error", markup=False)
        return
    with tempfile.NamedTemporaryFile("w", prefix=f"horsies-{title}-", suffix=".json", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        try:
            with screen.app.suspend():
                subprocess.run([*command, file.name], check=False)
        except SuspendNotSupported:
            screen.notify("cannot open a pager in this terminal", severity="warning")
        except OSError as error:
            screen.notify(f"{command[0]}: {error.strerror}", severity="error", markup=False)


async def save_rows(screen: Screen[Any], what: str, rows: Sequence[object], now: datetime) -> None:
    """Ask for a file name and write the rows there: CSV if it ends in .csv, else JSON lines. Never overwrites a file.

    In a browser the rows are a download: its user must not write files on the server.
    """
    default_name = f"horsies-{what}-{now:%Y%m%d-%H%M%S}.jsonl"
    if screen.app.is_web:
        screen.app.deliver_text(io.StringIO(as_json_lines([to_json(row) for row in rows])), save_filename=default_name)
        return
    answer = await screen.app.push_screen_wait(PromptDialog(SAVE_PROMPT, default_name))
    if not answer:
        return
    try:
        path = await asyncio.to_thread(_write_new_file, Path(answer), [to_json(row) for row in rows])
    except (OSError, ValueError, RuntimeError) as error:
        # ValueError: a null byte in the name. RuntimeError: `~user` of an unknown user.
        reason = error.strerror if isinstance(error, OSError) else error
        screen.notify(sanitize(f"{answer}: {reason}"), severity="error", markup=False)
    else:
        screen.notify(sanitize(f"saved {plural(len(rows), 'row')} to {path}"), markup=False)


def as_json_lines(documents: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json_line(document) + "\n" for document in documents)


def as_csv(documents: Sequence[Mapping[str, Any]]) -> str:
    """CSV with a header line; nested values are JSON."""
    names = list(dict.fromkeys(name for document in documents for name in document))
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(names)
    writer.writerows([_csv_cell(document.get(name)) for name in names] for document in documents)
    return text.getvalue()


def _write_new_file(path: Path, documents: Sequence[Mapping[str, Any]]) -> Path:
    """Write the documents and return the absolute path."""
    path = path.expanduser().absolute()
    text = as_csv(documents) if path.suffix.lower() == ".csv" else as_json_lines(documents)
    with path.open("x", encoding="utf-8", newline="") as file:
        file.write(text)
    return path


def _csv_cell(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        return sanitize(json.dumps(value, ensure_ascii=False))
    text = sanitize(value)
    return "'" + text if text.startswith(FORMULA_PREFIXES) else text
