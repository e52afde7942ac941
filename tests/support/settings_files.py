"""The files made from the settings models: `python -m tests.support.settings_files` writes them again."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from horsies.config import SAMPLE_VALUES, SECTION_KEYS, SettingKey, render_toml
from horsies.model.settings.base import describe_rule

ROOT = Path(__file__).parents[2]
EXAMPLE_FILE = ROOT / "horsies.toml.example"
SETTINGS_PAGE = ROOT / "docs" / "settings.md"
_MARKER = "by `make settings`; a test compares it. -->\n"


def expected_files() -> dict[Path, str]:
    """Return the files and the text that they should have; the prose of the page is kept."""
    prose, marker, _ = SETTINGS_PAGE.read_text(encoding="utf-8").partition(_MARKER)
    return {EXAMPLE_FILE: render_toml(SAMPLE_VALUES), SETTINGS_PAGE: prose + marker + "".join(_tables())}


def _tables() -> Iterator[str]:
    for section, keys in SECTION_KEYS.items():
        header = f"[[{section}]]" if section == "schedule.entries" else f"[{section}]"
        yield f"\n### `{header}`\n\n| key | default | values | meaning |\n|---|---|---|---|\n"
        yield from map(_row, keys.values())


def _row(key: SettingKey) -> str:
    has_default = key.example is None and not key.field.is_required()
    default = f"`{json.dumps(key.default, default=str)}`" if has_default else ""
    cells = (f"`{key.name}`", default, describe_rule(key.field), key.comment)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def main() -> None:
    for path, text in expected_files().items():
        path.write_text(text, encoding="utf-8")
        sys.stderr.write(f"wrote {path.name}\n")


if __name__ == "__main__":
    main()
