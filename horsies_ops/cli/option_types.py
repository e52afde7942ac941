"""Options and option types that commands share: --reason and --as, durations, statuses, lists and ids."""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from horsies.errors import ErrorCode, NotFound, UsageError
from horsies.model.task import SHORT_FORM_DIGITS, parse_id
from horsies.model.text import sanitize_text
from horsies_ops.reads.filters import is_short_id, parse_duration

if TYPE_CHECKING:
    from horsies_ops.ops import Ops
    from horsies_ops.reads.search import ShortIdMatch

# Options with the same meaning in several commands

FullOption = Annotated[bool, typer.Option("--full", help="Show long values in full.")]
ReasonOption = Annotated[str | None, typer.Option(metavar="TEXT", help="Reason recorded in the audit log.")]
ActorOption = Annotated[
    str | None,
    typer.Option(
        "--as", metavar="NAME", help="Name recorded in the audit log [default: $HORSIES_ACTOR, else user@host]"
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would change without changing it.")]
ExitCodeOption = Annotated[
    bool, typer.Option("--exit-code", help="With --dry-run: exit with 3 if there is work to do.")
]
KillOption = Annotated[
    bool, typer.Option("--kill", help="Also kill the process of a running task; asks for confirmation.")
]
AppOption = Annotated[
    str | None,
    typer.Option(
        "--app", metavar="APP", help="App to load, for its recovery hooks and task signatures [default: app.locator]"
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


def require_terminal(subject: str, *, hint: str = "use --yes to confirm") -> None:
    """Raise UsageError if there is no terminal on which to ask for confirmation."""
    if not sys.stdin.isatty():
        message = f"{subject} needs confirmation, but stdin is not a terminal"
        raise UsageError(message, code=ErrorCode.CLI_INVALID_ARGS, hint=hint)


_WITHOUT_DASHES = re.compile("[0-9a-fA-F]{32}")


def parse_duration_option(text: str) -> timedelta:
    """Parse a duration; typer shows a BadParameter together with the option's name."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def to_uuid(text: str) -> UUID:
    """Parse an id with or without dashes; raises ValueError."""
    return UUID(text) if _WITHOUT_DASHES.fullmatch(text) else UUID(parse_id(text))


def parse_full_id(text: str) -> UUID:
    """Parse a full id; short ids are rejected."""
    try:
        return to_uuid(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}; --full and --json show full ids") from None


def parse_full_or_short_id(text: str) -> str:
    """Validate a full or short id and return it as text."""
    if is_short_id(text):
        return text
    try:
        return str(to_uuid(text))
    except ValueError as error:
        raise typer.BadParameter(f"{error}; the last {SHORT_FORM_DIGITS} digits are enough") from None


RunIdArgument = Annotated[
    str,
    typer.Argument(parser=parse_full_or_short_id, metavar="ID", help="Id of the run, or its last eight digits."),
]


def split_values(text: str) -> list[str]:
    """Split a comma-separated list."""
    return [value.strip() for value in text.split(",") if value.strip()]


def list_option(help_text: str, *, choices: Iterable[str] | None = None) -> Any:
    """Declare a repeatable option whose values are comma-separated lists; `flatten` joins them.

    With `choices`, values are compared with them in upper or lower case, and returned as they are there.
    """

    def parse(text: str) -> list[str]:
        values = split_values(text)
        if unknown := [value for value in values if by_lower_case and value.lower() not in by_lower_case]:
            raise typer.BadParameter(f"{unknown[0]!r} is not among {', '.join(by_lower_case)}")
        return [by_lower_case.get(value.lower(), value) for value in values]

    by_lower_case = {choice.lower(): choice for choice in choices or ()}
    return typer.Option(parser=parse, metavar="A,B", help=help_text)


def flatten(lists: Iterable[Iterable[Any]] | None) -> tuple[Any, ...]:
    return tuple(value for values in lists or () for value in values)


def full_id_option(help_text: str) -> Any:
    return typer.Option(parser=parse_full_id, metavar="ID", help=help_text)


def id_option(help_text: str) -> Any:
    return typer.Option(parser=parse_full_or_short_id, metavar="ID", help=help_text)


def duration_option(help_text: str) -> Any:
    return typer.Option(parser=parse_duration_option, metavar="TIME", help=help_text)


# Short ids, as lists show them


async def resolve_task_id(ops: Ops, id_text: str) -> UUID:
    """Return a full id as it is, or find the one task with this short id.

    Raises NotFound if no task has it and UsageError if several have it.
    """
    return await _resolve("task", id_text, ops.tasks_by_short_id, list_command="horsies task list --full")


async def resolve_run_id(ops: Ops, id_text: str) -> UUID:
    """Do the same for workflow runs."""
    return await _resolve("run", id_text, ops.runs_by_short_id, list_command="horsies workflow list")


async def resolve_worker_id(ops: Ops, id_text: str) -> UUID:
    """Do the same for workers; a stopped worker needs its full id."""
    if not is_short_id(id_text):
        return UUID(id_text)
    # Filtered here: unlike tasks and runs, workers are few.
    found = {
        worker.worker_id: f"{worker.state}  {sanitize_text(worker.hostname, limit=80)}:{worker.pid}"
        for worker in await ops.list_active_workers()
        if worker.worker_id.hex.endswith(id_text.lower())
    }
    if not found:
        raise NotFound(
            f"no worker with short id {id_text} (stopped workers are not searched)",
            hint="use the full id: horsies workers list --full shows it",
        )
    return _require_single("workers", id_text, found)


async def _resolve(
    noun: str,
    id_text: str,
    find: Callable[[str], Awaitable[Iterable[ShortIdMatch]]],
    *,
    list_command: str,
) -> UUID:
    # Imported here: it loads the driver, which --help does not need.
    from horsies_ops.reads.search import NEWEST_SEARCHED

    if not is_short_id(id_text):
        return UUID(id_text)
    matches = await find(id_text)
    found = {match.id: f"{match.status}  {sanitize_text(match.name, limit=80)}" for match in matches}
    if not found:
        raise NotFound(
            f"no {noun} with short id {id_text} (searched unfinished and the newest {NEWEST_SEARCHED:,})",
            hint=f"a short id is the last 8 digits; {list_command} shows full ids",
        )
    return _require_single(f"{noun}s", id_text, found)


def _require_single(noun: str, short_id: str, found: Mapping[UUID, str]) -> UUID:
    if len(found) > 1:
        raise UsageError(
            f"{len(found)} {noun} have the short id {short_id}",
            code=ErrorCode.CLI_INVALID_ARGS,
            notes=[f"{full_id}  {description}" for full_id, description in found.items()],
            hint="use the full id of one of them",
        )
    return next(iter(found))
