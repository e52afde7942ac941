"""The keys table in docs/tui.md matches the actions; UPDATE_KEYS=1 rewrites it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from horsies_tui.keys import ACTIONS, key_label

PAGE = Path(__file__).parents[2] / "docs" / "tui.md"


def _table() -> str:
    rows = [
        f"| {' '.join(f'`{key_label(key)}`' for key in action.keys)} | `{action.id}` | {action.help} |".replace(
            "`|`", "`\\|`"
        )
        for action in ACTIONS
    ]
    return "\n".join(["| keys | id | |", "|---|---|---|", *rows])


def test_keys_table_lists_every_action() -> None:
    page = PAGE.read_text(encoding="utf-8")
    wanted = f"<!-- keys -->\n{_table()}\n<!-- /keys -->"
    if os.environ.get("UPDATE_KEYS"):
        page = re.sub(r"<!-- keys -->.*<!-- /keys -->", lambda _: wanted, page, flags=re.DOTALL)
        PAGE.write_text(page, encoding="utf-8")
    assert wanted in page, "UPDATE_KEYS=1 writes the table anew"
