"""Rows of a list as a file: one JSON document a line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

from horsies_ops.cli.output import to_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime


async def save(rows: Sequence[object], what: str, now: datetime) -> Path:
    """Write the rows into a new file in the working folder, and tell its name."""
    path = Path(f"horsies-{what}-{now:%Y%m%d-%H%M%S}.jsonl")
    lines = "".join(json.dumps(to_json(row), ensure_ascii=False) + "\n" for row in rows)
    await asyncio.to_thread(path.write_text, lines, encoding="utf-8")
    return path
