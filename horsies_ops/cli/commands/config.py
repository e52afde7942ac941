"""`horsies config`: the settings in force."""

from __future__ import annotations

import json as json_text
from typing import Any

from horsies.config import Origin, describe, working_folder
from horsies.errors import ConfigurationError, ExitCode
from horsies_ops.cli.options import GlobalOptions, Json, group, with_global_options
from horsies_ops.cli.output import faults, print_json, print_line, print_table, report

app = group("config")


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
        print_table(("key", "value", "origin"), [(row.key, _shown(row.value), _short(row.origin)) for row in rows])


@app.command()
@with_global_options
def validate(options: GlobalOptions, *, json: Json = False) -> int:
    """Check the settings; every fault is reported at once. Exit 1 when there is one."""
    try:
        loaded = options.settings()
        loaded.worker_config()
    except ConfigurationError as error:
        if json:
            print_json({"ok": False, "file": None, "errors": faults(error)})
        report(error)
        return error.exit_code
    if json:
        print_json({"ok": True, "file": loaded.file, "errors": []})
    else:
        print_line(f"ok: {loaded.file or 'no file, defaults and environment only'}")
    return ExitCode.DONE


def _short(origin: Origin) -> str:
    """The origin, a file below the working folder by its relative path."""
    return str(origin).removeprefix(f"{working_folder()}/")


def _shown(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else json_text.dumps(value, ensure_ascii=False)
