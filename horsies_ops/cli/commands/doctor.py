"""`horsies doctor`: check the installation."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

from horsies.errors import ExitCode
from horsies_ops.cli.options import GlobalOptions, JsonOption, group, with_global_options
from horsies_ops.cli.output import print_json, print_message, print_table

app = group("doctor")


@app.command()
@with_global_options
def doctor(options: GlobalOptions, *, json: JsonOption = False) -> int:
    """Check the whole installation; exit 1 if a check fails."""
    # Imported here: the checks load the whole toolkit, which `--help` does not need.
    from horsies_ops.doctor import diagnose
    from horsies_ops.ops import open_ops

    diagnosis = asyncio.run(diagnose(options.load_settings, partial(open_ops, read_only=True, via="cli")))
    checks = [
        replace(check, hint=check.hint and options.add_connection_options(check.hint)) for check in diagnosis.checks
    ]
    if json:
        print_json({"ok": diagnosis.is_ok, "checks": checks})
    else:
        print_table(("check", "status", "detail"), [(check.name, check.status, check.detail) for check in checks])
        for check in checks:
            if check.hint:
                print_message(f"hint: {check.name}: {check.hint}")
    return ExitCode.DONE if diagnosis.is_ok else ExitCode.FAILED
