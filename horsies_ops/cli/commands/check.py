"""`horsies check`: whether an app would work, before a worker finds out."""

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
    """How many tasks were found, and the first phase that failed."""

    task_count: int
    failed_phase: ValidationReport | None

    @property
    def warnings(self) -> list[str]:
        """What is no error and yet seldom meant."""
        return [] if self.failed_phase or self.task_count else ["the app has no tasks"]


@app.command()
@with_global_options
def check(
    options: GlobalOptions,
    locator: AppArgument = None,
    *,
    live: Annotated[bool, typer.Option("--live", help="Ask the database too: schema and notifications.")] = False,
    json: JsonOption = False,
) -> int:
    """Check an app and its tasks; all errors of the first phase that fails."""
    with redirect_stdout(sys.stderr):  # what a module prints while it is imported is not our data
        verdict = _examine(options, locator, live=live)
    if json:
        print_json(_document(verdict))
    else:
        _say(verdict)
    return ExitCode.FAILED if verdict.failed_phase else ExitCode.DONE


def _examine(options: GlobalOptions, locator: str | None, *, live: bool) -> AppCheckResult:
    phase = "settings"
    try:
        settings = load_and_export_settings(options)
        phase = "imports"
        found = import_app(locator, settings)
    except HorsiesError as error:
        return AppCheckResult(task_count=0, failed_phase=ValidationReport(phase=phase, errors=error.faults))
    try:
        failed = first_failed_phase(found, live=live)
        for error in failed.errors if failed else ():
            complete_hint(error, options)
        return AppCheckResult(failed_phase=failed, task_count=len(found.tasks))
    finally:
        found.close()


def _document(verdict: AppCheckResult) -> dict[str, object]:
    failed = verdict.failed_phase
    return {
        "ok": failed is None,
        "phase": failed.phase if failed else None,
        "tasks": verdict.task_count,
        "errors": [error_document(error) for error in failed.errors] if failed else [],
        "warnings": verdict.warnings,
    }


def _say(verdict: AppCheckResult) -> None:
    if verdict.failed_phase:
        for error in verdict.failed_phase.errors:
            print_error(error)
        return
    print_line("ok: all validations passed")
    print_line(f"{verdict.task_count} task{'' if verdict.task_count == 1 else 's'}")
    for warning in verdict.warnings:
        print_warning(warning, hint="name their modules in app.modules, or with discover_tasks")
