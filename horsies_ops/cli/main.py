"""Entry point of the `horsies` executable: the root command; errors become messages and exit codes here."""

from __future__ import annotations

import importlib
import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise
from types import FrameType
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from horsies.errors import ErrorCode, ExitCode, HorsiesError, UsageError
from horsies_ops.cli import json_log
from horsies_ops.cli.options import COMMANDS, SERVICES, GlobalOptions, with_global_options
from horsies_ops.cli.output import Colour, error_document, print_error, print_json


class LazyGroup(TyperGroup):
    """Lists commands from the COMMANDS table and imports a command's module only when it runs.

    This keeps `horsies --help` free of asyncpg, pydantic and Textual.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # Placeholders with name and help: enough for listing, completion and suggestions.
        self.commands = {
            name: TyperCommand(name=name, help=info.summary, short_help=info.summary) for name, info in COMMANDS.items()
        }

    def resolve_command(self, ctx: Any, args: Sequence[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, list(args))
        return name, load_command(name) if name else None, rest


def load_command(name: str) -> Any:
    """Import the module of a command and return the command."""
    module = importlib.import_module(f"horsies_ops.cli.commands.{COMMANDS[name].module}")
    command = get_command(getattr(module, f"{name}_app"))
    command.name = name
    commands: list[Any] = [command, *getattr(command, "commands", {}).values()]
    for each in commands:
        # A short help that is set is never cut.
        each.short_help = each.help.partition("\n")[0]
        each.epilog = GLOBAL_OPTIONS_NOTE
        for parameter in each.params:
            if parameter.name in GLOBAL_OPTION_NAMES:
                parameter.hidden = True
            if parameter.param_type_name == "argument":
                _simplify_argument(parameter)
    return command


def _simplify_argument(argument: Any) -> None:
    """Show `NAME` in usage and help, where typer shows `{NAME}` and `NAME <str>`."""
    pieces = argument.get_usage_pieces

    def plain_pieces(ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in pieces(ctx)]

    def no_type(ctx: Any) -> None:
        del ctx

    argument.get_usage_pieces, argument.display_type_rich = plain_pieces, no_type


GLOBAL_OPTION_NAMES = frozenset(field.name for field in fields(GlobalOptions))
GLOBAL_OPTIONS_NOTE = "Options of every command, such as --config: see horsies --help"

# One paragraph, because the help formatter joins separate lines.
EXIT_CODES = (
    "Exit codes: 0 success or nothing to do; 1 failure; 2 usage error; 3 work found by a dry run with --exit-code; "
    "4 busy; 5 not found; 6 refused; 7 database unreachable; 130 interrupted."
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
    del options  # with_global_options stores them in the context for the command


def main() -> None:
    """Run the command line of this process and exit with its code."""
    install_interrupt()
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run a command line and return its exit code.

    A service that is interrupted returns 0, even during start-up: stopping it is the normal way to end it.
    """
    code = _run(arguments)
    return ExitCode.DONE if _command_name(arguments) in SERVICES and code == ExitCode.INTERRUPTED else code


def _run(arguments: list[str]) -> int:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the caller closed it
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123  # open until the process exits
    # Read from the raw arguments, because parsing them may already print an error.
    Colour.is_disabled = "--no-color" in arguments
    try:
        _reject_other_encodings(arguments)
        # Not standalone: typer would print errors in its own form and exit with its own codes.
        code = app(args=arguments or ["--help"], prog_name="horsies", standalone_mode=False)
        sys.stdout.flush()  # here, where a broken pipe is still handled
    except HorsiesError as error:
        return handle_error(error, arguments)
    except typer.TyperException as error:
        return handle_error(_usage_error(error, arguments), arguments)
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of `horsies … | head` is gone. Without this, the interpreter fails when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
    except Exception as error:  # noqa: BLE001  # last resort: print a message instead of a traceback
        return handle_error(_unexpected_error(error), arguments)
    return code if isinstance(code, int) else ExitCode.DONE


def handle_error(error: HorsiesError, arguments: list[str]) -> int:
    """Print an error to stderr, and to stdout as JSON with --json; return its exit code."""
    if json_log.is_on() or (_command_name(arguments) in {"worker", "scheduler"} and json_log.is_asked_for(arguments)):
        json_log.log_error(error)
        return error.exit_code
    if logging.getLogger("horsies").isEnabledFor(logging.DEBUG):
        traceback.print_exception(error)
    # In the raw arguments, because the error may be that they cannot be parsed.
    if "--json" in arguments:
        print_json({"error": error_document(error)})
    print_error(error)
    return error.exit_code


def _command_name(arguments: list[str]) -> str | None:
    return next((argument for argument in arguments if argument in COMMANDS), None)


def _reject_other_encodings(arguments: list[str]) -> None:
    """Raise for bytes that are not UTF-8: the database stores none, and its error would not name the argument."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UsageError(f"an argument is not UTF-8: {argument!r}", code=ErrorCode.CLI_INVALID_ARGS) from None


def install_interrupt() -> None:
    """Let SIGTERM end this process like SIGINT: exit handlers must run, which release the embedded server.

    An event loop has its own handler, which cancels the main task. An error raised in the middle of the loop could lose
    an answer of the server, and the command would wait for it forever.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        on_sigint = signal.getsignal(signal.SIGINT)
        if not callable(on_sigint):  # SIGINT is ignored
            raise KeyboardInterrupt
        on_sigint(number, frame)

    signal.signal(signal.SIGTERM, interrupt)


def _unexpected_error(error: Exception) -> HorsiesError:
    text = str(error).partition("\n")[0]
    if isinstance(error, OSError):
        return HorsiesError(text, hint="check free disk space and file permissions")
    hint = "this is a bug in horsies; --loglevel DEBUG prints the traceback"
    wrapped = HorsiesError(f"{type(error).__name__}: {text}", hint=hint)
    wrapped.__cause__ = error
    return wrapped


def _usage_error(error: typer.TyperException, arguments: list[str]) -> UsageError:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "horsies"
    message = reword_usage_error(error.format_message(), arguments)
    return UsageError(message, code=ErrorCode.CLI_INVALID_ARGS, hint=f"see {command} --help")


_REWORDED = {
    "Input should be a valid integer.*": "must be a whole number",
    "Input should be a valid number.*": "must be a number",
    r"Input should be greater than or equal to (\S+)": r"must be at least \1",
    r"Input should be less than or equal to (\S+)": r"must be at most \1",
}
"""Reasons that the parser of the command line gives, and the words of our settings for them."""


def reword_usage_error(message: str, arguments: list[str]) -> str:
    """Return a message of the parser in the form of our own: the option, what is wrong, and the value."""
    if found := re.fullmatch("Invalid value for '([^']+)': (.*)", message, re.DOTALL):
        name, reason = found.groups()
        for pattern, words in _REWORDED.items():
            if match := re.fullmatch(pattern, reason, re.DOTALL):
                given = [value for option, value in pairwise(arguments) if option == name]
                given += [text.partition("=")[2] for text in arguments if text.startswith(f"{name}=")]
                return f"{name}: {match.expand(words)}" + (f", got {given[-1]!r}" if given else "")
        return f"{name}: {reason}"
    message = message.replace(". Did you mean", "; did you mean").replace("(Possible options:", "(similar:")
    return message[:1].lower() + message[1:].removesuffix(".")
