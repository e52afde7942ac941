"""`horsies check`: validate an app before a worker runs it."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import Annotated

import typer

from horsies.check import first_failed_phase
from horsies.discover import import_app
from horsies.errors import ExitCode, HorsiesError, ValidationReport
from horsies_ops.cli.options import (
    AppArgument,
    GlobalOptions,
    JsonOption,
    complete_hint,
    group,
    load_and_export_settings,
    with_global_options,
)
from horsies_ops.cli.output import error_document, print_error, print_json, print_line, print_warning

app = group("check")


@app.command()
@with_global_options
def check(
    options: GlobalOptions,
    locator: AppArgument = None,
    *,
    live: Annotated[bool, typer.Option("--live", help="Also check the database: schema and notifications.")] = False,
    json: JsonOption = False,
) -> int:
    """Validate an app; lists every error of the first failing phase."""
    with redirect_stdout(sys.stderr):  # keep what user modules print on import out of our data
        failed, task_count = _check_app(options, locator, live=live)
    warnings = [] if failed or task_count else ["the app has no tasks"]
    if json:
        errors = [error_document(error) for error in failed.errors] if failed else []
        phase = failed.phase if failed else None
        print_json({"ok": not failed, "phase": phase, "tasks": task_count, "errors": errors, "warnings": warnings})
    elif failed:
        for error in failed.errors:
            print_error(error)
    else:
        print_line("ok: all validations passed")
        print_line(f"{task_count} task{'' if task_count == 1 else 's'}")
        for warning in warnings:
            print_warning(warning, hint="list the task modules in app.modules, or call discover_tasks")
    return ExitCode.FAILED if failed else ExitCode.DONE


def _check_app(options: GlobalOptions, locator: str | None, *, live: bool) -> tuple[ValidationReport | None, int]:
    """Return the first phase that failed, and the number of tasks found."""
    phase = "settings"
    try:
        settings = load_and_export_settings(options)
        phase = "imports"
        user_app = import_app(locator, settings)
    except HorsiesError as error:
        return ValidationReport(phase=phase, errors=error.faults), 0
    try:
        failed = first_failed_phase(user_app, live=live)
        for error in failed.errors if failed else ():
            complete_hint(error, options)
        return failed, len(user_app.tasks)
    finally:
        user_app.close()
