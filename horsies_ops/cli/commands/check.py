"""`horsies check`: validate an app before a worker runs it."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AppCheckResult:
    """The number of tasks found, and the first phase that failed."""

    task_count: int
    failed_phase: ValidationReport | None

    @property
    def warnings(self) -> list[str]:
        return [] if self.failed_phase or self.task_count else ["the app has no tasks"]


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
        result = _check_app(options, locator, live=live)
    if json:
        print_json(_document(result))
    else:
        _print_result(result)
    return ExitCode.FAILED if result.failed_phase else ExitCode.DONE


def _check_app(options: GlobalOptions, locator: str | None, *, live: bool) -> AppCheckResult:
    phase = "settings"
    try:
        settings = load_and_export_settings(options)
        phase = "imports"
        user_app = import_app(locator, settings)
    except HorsiesError as error:
        return AppCheckResult(task_count=0, failed_phase=ValidationReport(phase=phase, errors=error.faults))
    try:
        failed = first_failed_phase(user_app, live=live)
        for error in failed.errors if failed else ():
            complete_hint(error, options)
        return AppCheckResult(failed_phase=failed, task_count=len(user_app.tasks))
    finally:
        user_app.close()


def _document(result: AppCheckResult) -> dict[str, object]:
    failed = result.failed_phase
    return {
        "ok": failed is None,
        "phase": failed.phase if failed else None,
        "tasks": result.task_count,
        "errors": [error_document(error) for error in failed.errors] if failed else [],
        "warnings": result.warnings,
    }


def _print_result(result: AppCheckResult) -> None:
    if result.failed_phase:
        for error in result.failed_phase.errors:
            print_error(error)
        return
    print_line("ok: all validations passed")
    print_line(f"{result.task_count} task{'' if result.task_count == 1 else 's'}")
    for warning in result.warnings:
        print_warning(warning, hint="list the task modules in app.modules, or call discover_tasks")
