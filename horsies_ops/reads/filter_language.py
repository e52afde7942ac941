"""One line of text for a filter, as operators type it: `status:failed,expired queue:mail age<1h -name:mail.*`.

All parts must hold, a comma means or, a leading `-` negates, and `-(…)` negates several parts together. A bare word is
an id where it looks like one, else text to look for; quotes keep spaces, commas and words that look like ids.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from horsies.model.ids import parse_id
from horsies.model.task import TaskStatus
from horsies_ops.reads.durations import duration_text, parse_duration
from horsies_ops.reads.filter import TaskFilter
from horsies_ops.reads.filter_parts import Group, Part, Reader, Unreadable, Value, written
from horsies_ops.reads.lookup import is_short_form

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterFault:
    """What is wrong with a filter, and where: `position` counts characters from 0."""

    position: int
    message: str
    hint: str


LISTS: Final = {"status": "statuses", "queue": "queues", "name": "names", "err": "error_codes", "id": "ids"}
SINGLES: Final = {"worker": "worker_id", "wf": "workflow_id", "flag": "flag", "text": "text"}
CHOICES: Final = {
    "due": ("due_later", {"later": True, "now": False}),
    "retried": ("retried", {"yes": True, "no": False}),
}
AT_LEAST: Final = {"wait": "min_wait", "run": "min_run", "hb": "min_silence"}
_COMPARED: Final = {
    "age>": "older_than",
    "age<": "newer_than",
    **{f"{key}>": field for key, field in AT_LEAST.items()},
    "att>=": "min_attempts",
}
KEYS: Final = (*LISTS, *SINGLES, *CHOICES, "age", *AT_LEAST, "att")
"""Every key of the language, in the order in which they are offered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meant:
    """One field of a filter, and whether it must not hold."""

    field: str
    value: Any
    is_negated: bool = False


def parse_filter(text: str) -> TaskFilter | FilterFault:
    """The filter that `text` says, or the first thing wrong with it."""
    try:
        return _filter_of(Reader(text).read())
    except Unreadable as fault:
        return FilterFault(position=fault.position, message=fault.message, hint=fault.hint)


def filter_text(wanted: TaskFilter) -> str:
    """The line from which `parse_filter` makes this filter; times to the millisecond."""
    excluded = (list(_said(each)) for each in wanted.excluded)
    negated = (f"-{parts[0]}" if len(parts) == 1 else f"-({' '.join(parts)})" for parts in excluded)
    return " ".join([*_said(wanted), *negated])


def _filter_of(parts: Sequence[Part | Group]) -> TaskFilter:
    fields: dict[str, Any] = {}
    excluded: list[TaskFilter] = []
    for part in parts:
        if isinstance(part, Group):
            excluded.append(_filter_within(part))
            continue
        meant = _meaning(part)
        if meant.is_negated != part.is_negated:
            excluded.append(TaskFilter(**{meant.field: meant.value}))
        elif meant.field in fields:
            name = part.key or "text to look for"
            raise Unreadable(part.position, f"{name} is given twice", "put its values together, with commas between")
        else:
            fields[meant.field] = meant.value
    return TaskFilter(**fields, exclude=tuple(excluded) or None)


def _filter_within(group: Group) -> TaskFilter:
    inner = _filter_of(group.parts)
    if inner.excluded:
        raise Unreadable(group.position, "a negation within a negation", "write what must hold outside of the group")
    return inner


def _meaning(part: Part) -> _Meant:
    if not part.key:
        return _bare(part.values[0])
    if part.key not in KEYS:
        raise Unreadable(part.position, f"there is no key {part.key!r}", _nearest(part.key))
    if part.key == "age" or part.key == "att" or part.key in AT_LEAST:
        return _compared(part)
    if part.operator != ":":
        raise Unreadable(part.position, f"{part.key} cannot be compared", f"write {part.key}:value")
    if part.key in LISTS:
        return _Meant(field=LISTS[part.key], value=tuple(_checked(part.key, value) for value in part.values))
    value = _only(part)
    if part.key in SINGLES:
        return _Meant(field=SINGLES[part.key], value=_checked(part.key, value))
    field, choices = CHOICES[part.key]
    if value.text not in choices:
        raise Unreadable(value.position, f"{value.text!r} says nothing of {part.key}", f"write {' or '.join(choices)}")
    return _Meant(field=field, value=choices[value.text])


def _bare(value: Value) -> _Meant:
    if value.is_quoted or not _is_id(value.text):
        return _Meant(field="text", value=value.text)
    return _Meant(field="ids", value=(value.text,))


def _compared(part: Part) -> _Meant:
    if part.operator == ":":
        example = "att>=2" if part.key == "att" else f"{part.key}>5m"
        raise Unreadable(part.position, f"{part.key} is a number to compare with", f"write {example}")
    value = _only(part)
    is_below = part.operator.startswith("<")
    if part.key == "att":
        # Whole numbers: more than two is at least three, and fewer than two is not at least two.
        least = _number(value) + (part.operator in {">", "<="})
        return _Meant(field="min_attempts", value=least, is_negated=is_below)
    duration = _duration(value)
    if part.key == "age":
        return _Meant(field="newer_than" if is_below else "older_than", value=duration)
    if is_below:
        hint = f"-{part.key}>{value.text} is the opposite of {part.key}>{value.text}"
        raise Unreadable(part.position, f"{part.key} can only be asked to be more", hint)
    return _Meant(field=AT_LEAST[part.key], value=duration)


def _checked(key: str, value: Value) -> str:
    """A value as the filter takes it."""
    if key == "status":
        return _status(value)
    if key in {"id", "worker", "wf"} and not _is_id(value.text):
        raise Unreadable(value.position, f"{value.text!r} is no id", "give it whole, or its last eight digits")
    return value.text


def _status(value: Value) -> TaskStatus:
    try:
        return TaskStatus(value.text.upper())
    except ValueError:
        known = ", ".join(TaskStatus).lower()
        raise Unreadable(value.position, f"there is no status {value.text!r}", f"one of {known}") from None


def _only(part: Part) -> Value:
    value, *more = part.values
    if more:
        raise Unreadable(more[0].position, f"{part.key} takes one value", "leave out what follows the comma")
    return value


def _duration(value: Value) -> timedelta:
    try:
        return parse_duration(value.text)
    except ValueError as error:
        message, _, hint = str(error).partition("; ")
        raise Unreadable(value.position, message, hint or "write a shorter one") from None


def _number(value: Value) -> int:
    if not (value.text.isascii() and value.text.isdigit() and len(value.text) < 10):
        raise Unreadable(value.position, f"{value.text!r} is no number of attempts", "write a whole number, as 2")
    return int(value.text)


def _is_id(text: str) -> bool:
    if is_short_form(text):
        return True
    try:
        parse_id(text)
    except ValueError:
        return False
    return True


def _nearest(key: str) -> str:
    near = next(iter(difflib.get_close_matches(key, KEYS, n=1)), None)
    return f"did you mean {near}?" if near else f"keys are {', '.join(KEYS)}"


def _said(wanted: TaskFilter) -> Iterator[str]:
    """Each part of a filter that is given, without those it excludes."""
    for key, field in LISTS.items():
        if values := getattr(wanted, field):
            yield f"{key}:{','.join(_lower_status(key, value) for value in values)}"
    for key, field in SINGLES.items():
        if (value := getattr(wanted, field)) is not None:
            yield f"{key}:{written(value)}"
    for key, (field, choices) in CHOICES.items():
        yield from (f"{key}:{word}" for word, meant in choices.items() if getattr(wanted, field) is meant)
    for sign, field in _COMPARED.items():
        if (value := getattr(wanted, field)) is not None:
            yield sign + (duration_text(value) if isinstance(value, timedelta) else str(value))


def _lower_status(key: str, value: str) -> str:
    return value.lower() if key == "status" else written(value)
