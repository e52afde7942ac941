"""Entry point of `horsies`: the root of the commands, and the edge where errors become messages and exit codes."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated

import typer

from horsies.errors import ErrorCode, ExitCode, HorsiesError, UsageError
from horsies.version import __version__
from horsies_ops.cli.lazy import LazyGroup
from horsies_ops.cli.output import report
from horsies_ops.cli.session import GlobalOptions, with_global_options

app = typer.Typer(
    name="horsies",
    cls=LazyGroup,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A PostgreSQL task queue, workflow engine and operators' toolkit.",
)


def show_version(asked: bool) -> None:  # noqa: FBT001  # the framework calls it with the value alone
    if asked:
        typer.echo(f"horsies {__version__}")
        raise typer.Exit


@app.callback()
@with_global_options
def root(
    options: GlobalOptions,
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    del options, version  # kept in the context by the decorator; answered by its callback


def main() -> None:
    """Run the command line of this process and leave with its exit code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    try:
        code = app(args=arguments or ["--help"], prog_name="horsies", standalone_mode=False)
        sys.stdout.flush()
    except HorsiesError as error:
        return fail(error)
    except typer.TyperException as error:
        return fail(_usage_error(error))
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    except OSError as error:
        return _output_failed(error)
    return code if isinstance(code, int) else ExitCode.DONE


def _output_failed(error: OSError) -> int:
    """The reader has left, as `horsies … | head` does, or the disk is full: give the interpreter nothing to flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return ExitCode.FAILED
    return fail(HorsiesError(f"the output could not be written: {error.strerror}"))


def fail(error: HorsiesError) -> int:
    if os.environ.get("HORSIES_LOG__LEVEL", "").upper() == "DEBUG":
        traceback.print_exception(error)
    report(error)
    return error.exit_code


def _usage_error(error: typer.TyperException) -> UsageError:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "horsies"
    return UsageError(error.format_message(), code=ErrorCode.CLI_INVALID_ARGS, hint=f"{command} --help")
