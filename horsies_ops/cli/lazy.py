"""A group of commands whose modules are imported only when one of them is run, so that `--help` answers at once."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from horsies_ops.cli.table import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Sequence


class LazyGroup(TyperGroup):
    """Lists the commands from their table; loads the module of the one that is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # Stand-ins with name and help, enough to be listed, completed or suggested.
        self.commands = {name: TyperCommand(name=name, help=line) for name, line in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: Sequence[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, list(args))
        return name, load(name) if name else None, rest


def load(name: str) -> Any:
    """The real command called `name`."""
    module = importlib.import_module(f"horsies_ops.cli.commands.{name}")
    command = get_command(module.app)
    command.name = name
    return command
