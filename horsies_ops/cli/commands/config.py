"""`horsies config`: show and validate settings."""

from __future__ import annotations

import json as json_text
from typing import Any

from horsies.config import Origin, describe_settings, working_folder
from horsies.errors import ConfigurationError, ExitCode
from horsies_ops.cli.options import GlobalOptions, JsonOption, group, with_global_options
from horsies_ops.cli.output import error_documents, print_error, print_json, print_line, print_table

app = group("config")


@app.command()
@with_global_options
def show(options: GlobalOptions, *, json: JsonOption = False) -> None:
    """Show every setting with its value and origin; passwords are masked."""
    loaded = options.load_settings()
    rows = describe_settings(loaded)
    if json:
        settings = [{"key": row.key, "value": row.value, "origin": str(row.origin)} for row in rows]
        print_json({"file": loaded.file, "settings": settings})
    else:
        cells = [(row.key, _format_value(row.value), _format_origin(row.origin)) for row in rows]
        print_table(("key", "value", "origin"), cells)


@app.command()
@with_global_options
def validate(options: GlobalOptions, *, json: JsonOption = False) -> int:
    """Validate the settings; reports all errors, not just the first. Exit 1 on errors."""
    try:
        loaded = options.load_settings()
        loaded.worker_config()
    except ConfigurationError as error:
        if json:
            print_json({"ok": False, "file": None, "errors": error_documents(error)})
        print_error(error)
        return error.exit_code
    if json:
        print_json({"ok": True, "file": loaded.file, "errors": []})
    else:
        print_line(f"ok: {loaded.file or 'no file; defaults and environment only'}")
    return ExitCode.DONE


def _format_origin(origin: Origin) -> str:
    """Return the origin; files below the working folder get relative paths."""
    return str(origin).removeprefix(f"{working_folder()}/")


def _format_value(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else json_text.dumps(value, ensure_ascii=False)
