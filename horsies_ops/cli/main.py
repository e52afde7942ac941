"""Entry point of `horsies`: the root of the commands, and the edge where errors become messages and exit codes."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from horsies.errors import ErrorCode, ExitCode, HorsiesError, UsageError
from horsies_ops.cli import json_log
from horsies_ops.cli.options import COMMANDS, SERVICES, GlobalOptions, with_global_options
from horsies_ops.cli.output import Colour, error_document, print_error, print_json

# A group of commands whose modules are imported only when one of them is run, so that `--help` answers at once.


class LazyGroup(TyperGroup):
    """Lists the commands from their table; loads the module of the one that is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # Stand-ins with name and help, enough to be listed, completed or suggested.
        self.commands = {name: TyperCommand(name=name, help=line) for name, line in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: Sequence[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, list(args))
        return name, load_command(name) if name else None, rest


def load_command(name: str) -> Any:
    """The real command called `name`."""
    module = importlib.import_module(f"horsies_ops.cli.commands.{name}")
    command = get_command(module.app)
    command.name = name
    return command


# One paragraph: the formatter joins what stands on lines of their own.
EXIT_CODES = (
    "Exit codes: 0 done, or nothing to do; 1 failure; 2 wrong command line; 3 with --exit-code, a dry run found work; "
    "4 busy; 5 not found; 6 refused; 7 database not reachable; 130 interrupted."
)

app = typer.Typer(
    name="horsies",
    cls=LazyGroup,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A PostgreSQL task queue, workflow engine and operators' toolkit.",
    epilog=EXIT_CODES,
)


@app.callback()
@with_global_options
def root(options: GlobalOptions) -> None:
    del options  # the decorator keeps them for the command


def main() -> None:
    """Run the command line of this process and leave with its exit code."""
    signal.signal(signal.SIGTERM, _end_by_signal)
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """The exit code of a command line. A service that was told to stop has done so, also before it had come up."""
    code = _run(arguments)
    return ExitCode.DONE if _command(arguments) in SERVICES and code == ExitCode.INTERRUPTED else code


def _command(arguments: list[str]) -> str | None:
    return next((each for each in arguments if each in COMMANDS), None)


def _run(arguments: list[str]) -> int:
    _replace_closed_streams()
    Colour.is_disabled = "--no-color" in arguments
    try:
        code = app(args=arguments or ["--help"], prog_name="horsies", standalone_mode=False)
        sys.stdout.flush()
    except HorsiesError as error:
        return handle_error(error, arguments)
    except typer.TyperException as error:
        return handle_error(_usage_error(error), arguments)
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        return _on_broken_pipe()
    except Exception as error:  # noqa: BLE001  # the edge: a person gets a message, whatever happened
        return handle_error(_unexpected(error), arguments)
    return code if isinstance(code, int) else ExitCode.DONE


def _on_broken_pipe() -> int:
    """The reader has gone, as `horsies … | head` does: give the interpreter nothing more to flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitCode.FAILED


def _unexpected(error: Exception) -> HorsiesError:
    text = str(error).partition("\n")[0]
    if isinstance(error, OSError):
        return HorsiesError(text, hint="see that the disk has room and the files may be used")
    hint = "this is a fault in horsies; --loglevel DEBUG shows where"
    wrapped = HorsiesError(f"{type(error).__name__}: {text}", hint=hint)
    wrapped.__cause__ = error
    return wrapped


def handle_error(error: HorsiesError, arguments: list[str]) -> int:
    """Say what went wrong to the person and, where a document was asked for, to the program that reads it."""
    if json_log.is_on() or (_command(arguments) == "worker" and json_log.is_asked_for(arguments)):
        json_log.log_error(error)
        return error.exit_code
    if logging.getLogger("horsies").isEnabledFor(logging.DEBUG):
        traceback.print_exception(error)
    if "--json" in arguments:
        print_json({"error": error_document(error)})
    print_error(error)
    return error.exit_code


def _replace_closed_streams() -> None:
    """A standard stream that the caller closed is None here; write into nothing instead."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123  # as long as the process


def _end_by_signal(_number: int, _frame: object) -> NoReturn:
    # As an ordinary exit it lets go of the embedded server, which a killed process would leave running.
    raise KeyboardInterrupt


def _usage_error(error: typer.TyperException) -> UsageError:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "horsies"
    return UsageError(error.format_message(), code=ErrorCode.CLI_INVALID_ARGS, hint=f"{command} --help")
