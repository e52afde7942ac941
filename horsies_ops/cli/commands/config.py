"""`horsies config`: the settings in force."""

from __future__ import annotations

import json as json_text
from typing import Any

import typer

from horsies.config import describe
from horsies_ops.cli.output import print_json, print_line, print_table
from horsies_ops.cli.session import GlobalOptions, Json, with_global_options

app = typer.Typer(
    name="config", rich_markup_mode=None, help="Show the settings and where each comes from, or check them."
)


@app.command()
@with_global_options
def show(options: GlobalOptions, *, json: Json = False) -> None:
    """Show every setting, its value and where it comes from; passwords are masked."""
    loaded = options.settings()
    rows = describe(loaded)
    if json:
        settings = [{"key": row.key, "value": row.value, "origin": str(row.origin)} for row in rows]
        print_json({"file": loaded.file, "settings": settings})
    else:
        print_table(("key", "value", "origin"), [(row.key, _shown(row.value), str(row.origin)) for row in rows])


@app.command()
@with_global_options
def validate(options: GlobalOptions, *, json: Json = False) -> None:
    """Check the settings; every fault is reported at once. Exit 1 when there is one."""
    loaded = options.settings()
    loaded.worker_config()
    if json:
        print_json({"ok": True, "file": loaded.file})
    else:
        print_line(f"ok: {loaded.file or 'no file, defaults and environment only'}")


def _shown(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else json_text.dumps(value, ensure_ascii=False)
