"""`horsies tui`: start the terminal UI."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from horsies.errors import UsageError
from horsies_ops.cli.option_types import ActorOption
from horsies_ops.cli.options import GlobalOptions, export_settings, group, with_global_options

tui_app = group("tui")


@tui_app.command()
@with_global_options
def tui(
    options: GlobalOptions,
    *,
    read_only: Annotated[bool, typer.Option("--read-only", help="Disable all actions.")] = False,
    actor: ActorOption = None,
    demo: Annotated[bool, typer.Option("--demo", help="Show a sample app on a temporary database.")] = False,
    slow: Annotated[bool, typer.Option("--slow", help="Refresh less often, for slow connections.")] = False,
    no_mouse: Annotated[bool, typer.Option("--no-mouse", help="Do not capture the mouse.")] = False,
    ascii: Annotated[bool, typer.Option("--ascii", help="Use ASCII characters only.")] = False,
    log_file: Annotated[
        Path | None, typer.Option("--log-file", metavar="FILE", help="Write logs to this file [default: no log]")
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve the UI to a browser; read-only and on loopback by default.")
    ] = False,
    host: Annotated[
        str, typer.Option("--host", metavar="HOST", help="With --serve: address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=1, max=65535, metavar="N", help="With --serve: port to listen on.")
    ] = 8000,
    caption_file: Annotated[Path | None, typer.Option("--caption-file", metavar="FILE", hidden=True)] = None,
    read_write: Annotated[
        bool, typer.Option("--read-write", help="With --serve: everyone who can open the page may act.")
    ] = False,
) -> int:
    """Open the terminal UI.

    Example: horsies tui --read-only
    """
    # Imported here: Textual takes long to import, and no other command needs it.
    from horsies_tui.launch import LaunchOptions, is_web_child, launch, serve_in_browser

    launch_options = LaunchOptions(
        actor=actor,
        is_read_only=read_only,
        is_slow=slow,
        has_mouse=not no_mouse,
        log_file=log_file,
        caption_file=caption_file,
        add_connection_options=options.add_connection_options,
    )
    settings = options.load_settings(**{"tui.ascii": ascii or None})
    if not (serve or is_web_child() or (sys.stdin.isatty() and sys.stderr.isatty())):
        # The TUI is drawn on stderr, which the user may have redirected to a file.
        raise UsageError(
            "the TUI needs a terminal", hint="do not redirect stdin or stderr; --log-file writes the log to a file"
        )
    if demo:
        from horsies_ops.cli.commands.demo import run_in_tui

        flags = [flag for flag, is_set in {"--serve": serve, "--read-write": read_write}.items() if is_set]
        address = ["--host", host, "--port", str(port)]
        return run_in_tui(options, tui=settings.tui, arguments=[*launch_options.cli_arguments, *flags, *address])
    if serve:
        can_act = read_write and not read_only
        access = "everyone who can open it may act" if can_act else "read-only"
        export_settings(options, tui__ascii=ascii, tui__read_only=not can_act)
        return serve_in_browser(
            launch_options,
            host=host,
            port=port,
            on_ready=lambda url: options.print_message(f"serving the TUI at {url} ({access})"),
        )
    return launch(settings, launch_options)
