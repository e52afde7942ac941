"""`horsies doctor`: whether everything is as it should be."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from horsies.errors import ExitCode
from horsies_ops.cli.options import GlobalOptions, Json, group, with_global_options
from horsies_ops.cli.output import print_json, print_table, talk
from horsies_ops.doctor import diagnose
from horsies_ops.ops import open_ops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horsies_ops.doctor import Check

app = group("doctor")


@app.command()
@with_global_options
def doctor(options: GlobalOptions, *, json: Json = False) -> int:
    """Look at everything and say what to do; exit 1 when a check fails."""
    diagnosis = asyncio.run(diagnose(options.settings, partial(open_ops, read_only=True, via="cli")))
    checks = [replace(check, hint=check.hint and options.there(check.hint)) for check in diagnosis.checks]
    if json:
        print_json({"ok": diagnosis.ok, "checks": checks})
    else:
        _show(checks)
    return ExitCode.DONE if diagnosis.ok else ExitCode.FAILED


def _show(checks: Sequence[Check]) -> None:
    print_table(("check", "status", "detail"), [(check.name, check.status, check.detail) for check in checks])
    for check in checks:
        if check.hint:
            talk(f"hint: {check.name}: {check.hint}")
