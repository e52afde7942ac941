"""`horsies tui`: the screens that operators keep open."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from horsies.errors import UsageError
from horsies_ops.cli.session import GlobalOptions, group, with_global_options

app = group("tui")


@app.command()
@with_global_options
def tui(
    options: GlobalOptions,
    *,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Offer no actions; the database refuses them too.")
    ] = False,
    actor: Annotated[str | None, typer.Option("--as", metavar="NAME", help="Who acts, for the operator log.")] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Show an invented busy system, without a database.")] = False,
    slow: Annotated[bool, typer.Option("--slow", help="For slow links: fewer repaints, no animation.")] = False,
    no_mouse: Annotated[bool, typer.Option("--no-mouse", help="Leave the mouse to the terminal.")] = False,
    ascii: Annotated[bool, typer.Option("--ascii", help="Draw with plain characters.")] = False,
    log_file: Annotated[
        Path | None, typer.Option("--log-file", metavar="FILE", help="Append the log here; else there is none.")
    ] = None,
) -> int:
    """Look at queues, tasks, workers and workflows as they change, and act on them."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        # The screens are drawn on stderr, which may be the log of somebody who redirected it.
        raise UsageError("the screens need a terminal", hint="leave stdin and stderr alone; --log-file keeps the log")
    from horsies_tui.launch import Options, launch

    settings = options.settings(**{"tui.read_only": read_only or None, "tui.ascii": ascii or None})
    return launch(settings, Options(actor=actor, is_demo=demo, is_slow=slow, has_mouse=not no_mouse, log_file=log_file))
