"""`horsies check`: whether an app would work, before a worker finds out."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Annotated

import typer

from horsies.check import first_failed_phase
from horsies.discover import locate_app
from horsies.errors import ExitCode, HorsiesError, ValidationReport
from horsies_ops.cli.options import (
    AppArgument,
    GlobalOptions,
    Json,
    group,
    point_there,
    settings_for_app,
    with_global_options,
)
from horsies_ops.cli.output import fault, print_json, print_line, report, warn

app = group("check")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How many tasks were found, and the first phase that failed."""

    tasks: int
    failed: ValidationReport | None

    @property
    def warnings(self) -> list[str]:
        """What is no error and yet seldom meant."""
        return [] if self.failed or self.tasks else ["the app has no tasks"]


@app.command()
@with_global_options
def check(
    options: GlobalOptions,
    locator: AppArgument = None,
    *,
    live: Annotated[bool, typer.Option("--live", help="Ask the database too: schema and notifications.")] = False,
    json: Json = False,
) -> int:
    """Check an app and its tasks; all errors of the first phase that fails."""
    with redirect_stdout(sys.stderr):  # what a module prints while it is imported is not our data
        verdict = _examine(options, locator, live=live)
    if json:
        print_json(_document(verdict))
    else:
        _say(verdict)
    return ExitCode.FAILED if verdict.failed else ExitCode.DONE


def _examine(options: GlobalOptions, locator: str | None, *, live: bool) -> Verdict:
    phase = "settings"
    try:
        settings = settings_for_app(options)
        phase = "imports"
        found = locate_app(locator, settings)
    except HorsiesError as error:
        return Verdict(tasks=0, failed=ValidationReport(phase=phase, errors=error.faults))
    try:
        failed = first_failed_phase(found, live=live)
        for error in failed.errors if failed else ():
            point_there(error, options)
        return Verdict(failed=failed, tasks=len(found.tasks))
    finally:
        found.close()


def _document(verdict: Verdict) -> dict[str, object]:
    failed = verdict.failed
    return {
        "ok": failed is None,
        "phase": failed.phase if failed else None,
        "tasks": verdict.tasks,
        "errors": [fault(error) for error in failed.errors] if failed else [],
        "warnings": verdict.warnings,
    }


def _say(verdict: Verdict) -> None:
    if verdict.failed:
        for error in verdict.failed.errors:
            report(error)
        return
    print_line("ok: all validations passed")
    print_line(f"{verdict.tasks} task{'' if verdict.tasks == 1 else 's'}")
    for warning in verdict.warnings:
        warn(warning, hint="name their modules in app.modules, or with discover_tasks")
