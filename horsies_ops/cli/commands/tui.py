"""`horsies tui`: the screens that operators keep open."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from horsies.errors import UsageError
from horsies_ops.cli.options import GlobalOptions, export_settings, group, with_global_options

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
    serve: Annotated[bool, typer.Option("--serve", help="Show the screens in a browser, to look only.")] = False,
    host: Annotated[str, typer.Option("--host", metavar="HOST", help="With --serve: the address.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, metavar="N", help="With --serve: the port.")] = 8000,
    read_write: Annotated[
        bool, typer.Option("--read-write", help="With --serve: whoever reaches the page may act.")
    ] = False,
) -> int:
    """Look at queues, tasks, workers and workflows as they change, and act on them."""
    from horsies_tui.launch import LaunchOptions, is_web_child, launch, serve_in_browser

    shown = LaunchOptions(
        actor=actor,
        is_read_only=read_only,
        is_demo=demo,
        is_slow=slow,
        has_mouse=not no_mouse,
        log_file=log_file,
        add_connection_options=options.add_connection_options,
    )
    settings = options.load_settings(**{"tui.ascii": ascii or None})
    if serve:
        rights = "whoever reaches it may act" if read_write and not read_only else "read-only"
        export_settings(options, tui__ascii=ascii, tui__read_only=rights == "read-only")
        say = options.print_message
        return serve_in_browser(shown, host=host, port=port, on_ready=lambda url: say(f"the screens: {url} ({rights})"))
    if not (is_web_child() or (sys.stdin.isatty() and sys.stderr.isatty())):
        # The screens are drawn on stderr, which may be the log of somebody who redirected it.
        raise UsageError("the screens need a terminal", hint="leave stdin and stderr alone; --log-file keeps the log")
    return launch(settings, shown)
