"""`horsies init`: a horsies.toml to start from."""

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
    path: Annotated[str, typer.Option("--path", help="The file, or the folder to put it in.")] = "horsies.toml",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a commented horsies.toml to start from."""
    written = write_config_file(path, force=force)
    print_line(str(written))
    options.print_message("next: name your app in [app] locator, then horsies config validate")
