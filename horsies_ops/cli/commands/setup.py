"""`horsies init`, `config`, `check` and `doctor`: write, show and check the settings, the app and the installation."""

from __future__ import annotations

import asyncio
import json as json_text
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from horsies.errors import ConfigurationError, ExitCode, HorsiesError, ValidationReport
from horsies_ops.cli.options import (
    AppArgument,
    GlobalOptions,
    JsonOption,
    complete_hint,
    group,
    load_and_export_settings,
    with_global_options,
)
from horsies_ops.cli.output import (
    error_document,
    print_error,
    print_json,
    print_line,
    print_message,
    print_table,
    print_warning,
)

if TYPE_CHECKING:
    from horsies.config import Origin
    from horsies_ops.doctor import Finding

# The bodies import what loads settings, the app or the toolkit: `--help` needs none of it.
init_app, config_app, check_app, doctor_app = map(group, ("init", "config", "check", "doctor"))


@init_app.command()
@with_global_options
def init(
    options: GlobalOptions,
    *,
    path: Annotated[str, typer.Option("--path", metavar="FILE", help="File to write, or its folder.")] = "horsies.toml",
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented horsies.toml.

    Example: horsies init --path config/horsies.toml
    """
    from horsies.config import write_config_file

    written = write_config_file(path, force=force)
    print_line(str(written))
    options.print_message("next: set locator in [app] to your app, then run horsies config validate")


@config_app.command()
@with_global_options
def show(options: GlobalOptions, *, json: JsonOption = False) -> None:
    """Show every setting and where it comes from.

    Example: horsies config show --json
    """
    from horsies.config import describe_settings

    loaded = options.load_settings()
    rows = describe_settings(loaded)
    if json:
        settings = [{"key": row.key, "value": row.value, "origin": str(row.origin)} for row in rows]
        print_json({"file": loaded.file, "settings": settings})
    else:
        cells = [(row.key, _format_value(row.value), _format_origin(row.origin)) for row in rows]
        print_table(("key", "value", "origin"), cells)


@config_app.command()
@with_global_options
def validate(options: GlobalOptions, *, json: JsonOption = False) -> int:
    """Check the configuration and list all errors.

    Example: horsies config validate --config horsies.toml
    """
    try:
        loaded = options.load_settings()
        loaded.worker_config()
    except ConfigurationError as error:
        if json:
            print_json({"ok": False, "file": None, "errors": [error_document(fault) for fault in error.faults]})
        print_error(error)
        return error.exit_code
    if json:
        print_json({"ok": True, "file": loaded.file, "errors": []})
    else:
        print_line(f"ok: {loaded.file or 'no file; defaults and environment only'}")
    return ExitCode.DONE


def _format_origin(origin: Origin) -> str:
    """Return the origin; files below the working folder get relative paths."""
    from horsies.config import working_folder

    return str(origin).removeprefix(f"{working_folder()}/")


def _format_value(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else json_text.dumps(value, ensure_ascii=False)


@check_app.command()
@with_global_options
def check(
    options: GlobalOptions,
    locator: AppArgument = None,
    *,
    live: Annotated[
        bool, typer.Option("--live", help="Also test the database connection, schema version and notifications.")
    ] = False,
    json: JsonOption = False,
) -> int:
    """Validate an app; lists every error of the first failing phase.

    Example: horsies check shop.tasks:app --live
    """
    with redirect_stdout(sys.stderr):  # keep what user modules print on import out of our data
        failed, task_count, warnings = _check_app(options, locator, live=live)
    if json:
        errors = [error_document(error) for error in failed.errors] if failed else []
        phase = failed.phase if failed else None
        print_json(
            {"ok": not failed, "phase": phase, "tasks": task_count, "errors": errors, "warnings": list(warnings)}
        )
    elif failed:
        for error in failed.errors:
            print_error(error)
    else:
        print_line("ok: all validations passed")
        print_line(f"{task_count} task{'' if task_count == 1 else 's'}")
        for warning, hint in warnings.items():
            print_warning(warning, hint=hint)
    return ExitCode.FAILED if failed else ExitCode.DONE


def _print_findings(options: GlobalOptions, checks: Sequence[Finding]) -> None:
    """Print the findings; those of several checks that were skipped for the same reason are only counted."""
    skipped = Counter(check.detail for check in checks if check.status == "skip")
    shown = [check for check in checks if skipped[check.detail] < 2]
    print_table(("check", "status", "detail"), [(check.name, check.status, check.detail) for check in shown])
    for detail, number in skipped.items():
        if number > 1:
            options.print_message(f"{number} checks skipped: {detail}")
    for check in checks:
        if check.hint:
            print_message(f"hint: {check.name}: {check.hint}")


def _check_app(
    options: GlobalOptions, locator: str | None, *, live: bool
) -> tuple[ValidationReport | None, int, dict[str, str | None]]:
    """Return the first phase that failed, the number of tasks found, and warnings with their hints."""
    from horsies.check import first_failed_phase, schedule_warnings
    from horsies.discover import import_app

    phase = "settings"
    try:
        settings = load_and_export_settings(options)
        phase = "imports"
        user_app = import_app(locator, settings)
    except HorsiesError as error:
        return ValidationReport(phase=phase, errors=error.faults), 0, {}
    try:
        failed = first_failed_phase(user_app, live=live)
        for error in failed.errors if failed else ():
            complete_hint(error, options)
        warnings: dict[str, str | None] = {}
        if not failed:
            warnings.update(dict.fromkeys(schedule_warnings(user_app)))
            if not user_app.tasks:
                warnings["the app has no tasks"] = "list the task modules in app.modules, or call discover_tasks"
        return failed, len(user_app.tasks), warnings
    finally:
        user_app.close()


@doctor_app.command()
@with_global_options
def doctor(options: GlobalOptions, *, json: JsonOption = False) -> int:
    """Check configuration, database and workers, with a hint for each problem.

    Example: horsies doctor --json
    """
    from horsies_ops.doctor import diagnose
    from horsies_ops.ops import open_ops

    diagnosis = asyncio.run(diagnose(options.load_settings, partial(open_ops, read_only=True, via="cli")))
    checks = [
        replace(check, hint=check.hint and options.add_connection_options(check.hint)) for check in diagnosis.checks
    ]
    if json:
        print_json({"ok": diagnosis.is_ok, "checks": checks})
    else:
        _print_findings(options, checks)
    return ExitCode.DONE if diagnosis.is_ok else ExitCode.FAILED
