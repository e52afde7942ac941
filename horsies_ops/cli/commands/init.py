"""`horsies init`: write a commented horsies.toml."""

from __future__ import annotations

from typing import Annotated

import typer

from horsies.config import write_config_file
from horsies_ops.cli.options import GlobalOptions, group, with_global_options
from horsies_ops.cli.output import print_line

app = group("init")


@app.command()
@with_global_options
def init(
    options: GlobalOptions,
    *,
    path: Annotated[str, typer.Option("--path", help="File to write, or its folder.")] = "horsies.toml",
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented horsies.toml."""
    written = write_config_file(path, force=force)
    print_line(str(written))
    options.print_message("next: set locator in [app] to your app, then run horsies config validate")
