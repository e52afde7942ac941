"""One line of text for a filter of runs: `status:running,failed name:etl-*`; with `sub:yes` steps of other runs too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from horsies.model.workflow.status import WorkflowStatus
from horsies_ops.reads.filter_language import FilterFault
from horsies_ops.reads.filter_parts import Group, Part, Reader, Unreadable, Value, written
from horsies_ops.reads.workflows import WorkflowFilter

if TYPE_CHECKING:
    from collections.abc import Iterator

KEYS: Final = ("status", "name", "sub")
ROOTS: Final = WorkflowFilter(root_only=True)
"""What no text at all says: every run that is not a step of another."""

_SUB: Final = {"yes": False, "no": True}


def parse_workflow_filter(text: str) -> WorkflowFilter | FilterFault:
    """The filter that `text` says, or the first thing wrong with it."""
    try:
        return _filter_of(Reader(text).read())
    except Unreadable as fault:
        return FilterFault(position=fault.position, message=fault.message, hint=fault.hint)


def workflow_filter_text(wanted: WorkflowFilter) -> str:
    """The line from which `parse_workflow_filter` makes this filter."""
    return " ".join(_said(wanted))


def _filter_of(parts: list[Part | Group]) -> WorkflowFilter:
    statuses: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    root_only = True
    for part in parts:
        if isinstance(part, Group) or part.is_negated:
            raise Unreadable(part.position, "runs cannot be excluded", "name those that are wanted")
        match part.key:
            case "status":
                statuses += tuple(_status(value) for value in part.values)
            case "name":
                names += tuple(value.text for value in part.values)
            case "sub":
                root_only = _root_only(part)
            case "":
                names += tuple(f"*{value.text}*" for value in part.values)
            case _:
                raise Unreadable(part.position, f"there is no key {part.key!r}", f"keys are {', '.join(KEYS)}")
    return WorkflowFilter(statuses=statuses, names=names, root_only=root_only)


def _status(value: Value) -> str:
    try:
        return WorkflowStatus(value.text.upper())
    except ValueError:
        known = ", ".join(WorkflowStatus).lower()
        raise Unreadable(value.position, f"there is no status {value.text!r}", f"one of {known}") from None


def _root_only(part: Part) -> bool:
    value = part.values[0]
    if value.text not in _SUB:
        raise Unreadable(value.position, f"{value.text!r} says nothing of sub", f"write {' or '.join(_SUB)}")
    return _SUB[value.text]


def _said(wanted: WorkflowFilter) -> Iterator[str]:
    if wanted.statuses:
        yield f"status:{','.join(status.lower() for status in wanted.statuses)}"
    if wanted.names:
        yield f"name:{','.join(map(written, wanted.names))}"
    if not wanted.root_only:
        yield "sub:yes"
