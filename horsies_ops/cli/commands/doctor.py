"""`horsies doctor`: whether everything is as it should be."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from horsies.errors import ExitCode
from horsies_ops.cli.output import print_json, print_table, talk
from horsies_ops.cli.session import GlobalOptions, Json, group, with_global_options
from horsies_ops.doctor import diagnose
from horsies_ops.ops import open_ops

if TYPE_CHECKING:
    from horsies_ops.doctor import Diagnosis

app = group("doctor")


@app.command()
@with_global_options
def doctor(options: GlobalOptions, *, json: Json = False) -> int:
    """Look at everything and say what to do; exit 1 when a check fails."""
    diagnosis = asyncio.run(diagnose(options.settings, partial(open_ops, read_only=True, via="cli")))
    if json:
        print_json({"ok": diagnosis.ok, "checks": diagnosis.checks})
    else:
        _show(diagnosis)
    return ExitCode.DONE if diagnosis.ok else ExitCode.FAILED


def _show(diagnosis: Diagnosis) -> None:
    print_table(("check", "status", "detail"), [(check.name, check.status, check.detail) for check in diagnosis.checks])
    for check in diagnosis.checks:
        if check.hint:
            talk(f"hint: {check.name}: {check.hint}")
