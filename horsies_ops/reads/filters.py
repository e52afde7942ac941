"""Which tasks are meant."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

from horsies.model.task import SHORT_FORM_DIGITS, TaskStatus, parse_id
from horsies.store.queries import Query, load_queries

if TYPE_CHECKING:
    from horsies.store.database import Database


# Globs with `*` and `?`, as operators write them.

_LIKE = str.maketrans({"*": "%", "?": "_", "%": r"\%", "_": r"\_", "\\": r"\\"})


def glob_to_like(glob: str) -> str:
    """The pattern by which LIKE finds what the glob means."""
    return glob.translate(_LIKE)


# Finding a task or a run by the short form of its id, which is what people see and type.

NEWEST_LOOKED_AT: Final = 10_000
"""How many of the newest tasks, or runs, are looked through, beside all that have not ended."""

MAX_MATCHES: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortIdMatch:
    """A task or a run that fits, with enough to tell it from the others."""

    id: UUID
    name: str
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupQueries:
    tasks_by_short_id: Query[ShortIdMatch]
    runs_by_short_id: Query[ShortIdMatch]


LOOKUP = load_queries(LookupQueries, "horsies_ops.reads", "lookup")


def is_short_id(text: str) -> bool:
    return len(text) == SHORT_FORM_DIGITS and all(digit in "0123456789abcdefABCDEF" for digit in text)


async def tasks_by_short_id(database: Database, short_id: str) -> tuple[ShortIdMatch, ...]:
    """The tasks whose id ends in these eight digits, newest first; older ones that have ended are not looked at."""
    return await _by_short_id(database, LOOKUP.tasks_by_short_id, short_id)


async def runs_by_short_id(database: Database, short_id: str) -> tuple[ShortIdMatch, ...]:
    """The same for runs of workflows."""
    return await _by_short_id(database, LOOKUP.runs_by_short_id, short_id)


async def _by_short_id(database: Database, query: Query[ShortIdMatch], short_id: str) -> tuple[ShortIdMatch, ...]:
    if not is_short_id(short_id):
        raise ValueError(f"{short_id!r} is no short form of an id")
    return tuple(await database.fetch(query, short_id.lower(), NEWEST_LOOKED_AT, MAX_MATCHES))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """Tasks for which every part that is given holds; a part with several values holds when one of them fits.

    `names` and `error_codes` are globs with `*` and `?`. An id may be whole or its last eight digits. Ages count from
    the send, `min_wait` from when the task was due, `min_silence` from the last beat of the claim that a live task is
    under. `text` is looked for in name, arguments and error, in upper and lower case. What `exclude`, or any filter of
    several, matches is left out. A filter that makes no sense is a `ValueError` at once.
    """

    ids: Sequence[str] = ()
    statuses: Sequence[TaskStatus | str] = ()
    queues: Sequence[str] = ()
    names: Sequence[str] = ()
    error_codes: Sequence[str] = ()
    worker_id: str | None = None
    workflow_id: str | None = None
    flag: str | None = None
    retried: bool | None = None
    older_than: timedelta | None = None
    newer_than: timedelta | None = None
    text: str | None = None
    min_wait: timedelta | None = None
    min_run: timedelta | None = None
    min_silence: timedelta | None = None
    min_attempts: int | None = None
    due_later: bool | None = None
    exclude: TaskFilter | Sequence[TaskFilter] | None = None

    def __post_init__(self) -> None:
        for status in self.statuses:
            TaskStatus(status)
        for identity in (*self.ids, self.worker_id, self.workflow_id):
            if identity is not None and not is_short_id(identity):
                parse_id(identity)
        if any(each.excluded for each in self.excluded):
            raise ValueError("a filter within exclude cannot exclude in turn")

    @property
    def excluded(self) -> tuple[TaskFilter, ...]:
        """The filters of `exclude`, however many; one without parts excludes nothing."""
        given = (self.exclude,) if isinstance(self.exclude, TaskFilter) else self.exclude or ()
        return tuple(each for each in given if _conditions(each) or each.exclude)

    @property
    def is_empty(self) -> bool:
        """Whether every task matches."""
        return not _conditions(self) and not self.excluded

    def to_json(self) -> str:
        """The filter, and those that it excludes, as the statements take them."""
        terms = [{"is_wanted": True, **_conditions(self)}]
        return json.dumps(terms + [{"is_wanted": False, **_conditions(each)} for each in self.excluded])


def _conditions(wanted: TaskFilter) -> dict[str, object]:
    """The parts that are given, as plain JSON."""
    given = {each.name: getattr(wanted, each.name) for each in fields(wanted) if each.name != "exclude"}
    return {name: _plain(name, value) for name, value in given.items() if value not in (None, (), [])}


def _plain(name: str, value: object) -> object:
    match name, value:
        case "names" | "error_codes", _:
            return [glob_to_like(glob) for glob in cast("Sequence[str]", value)]
        case "statuses" | "queues", _:
            return list(cast("Sequence[str]", value))
        case "ids", _:
            return [each.lower() for each in cast("Sequence[str]", value)]
        case "worker_id" | "workflow_id", str():
            return value.lower()
        case _, timedelta():
            return f"{value.total_seconds()} seconds"
        case _:
            return value


# The parts of a line that says a filter: words, keys with values, and what is negated.

_SPACE = re.compile(r"\s*")
_KEY = re.compile(r"([A-Za-z_]+)(:|<=|>=|<|>)")
_BARE = re.compile(r'[^\s,"()]+')
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


class FilterSyntaxError(ValueError):
    """Text that says no filter, from `position` on."""

    def __init__(self, position: int, message: str, hint: str) -> None:
        super().__init__(message)
        self.position = position
        self.message = message
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterValue:
    text: str
    position: int
    is_quoted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterTerm:
    """`key` and `operator` are empty for a bare word."""

    position: int
    is_negated: bool
    key: str
    operator: str
    values: tuple[FilterValue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NegatedGroup:
    """Parts in `-(…)`, of which not all may hold."""

    position: int
    terms: tuple[FilterTerm, ...]


class FilterParser:
    """Reads a line from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def parse(self) -> list[FilterTerm | NegatedGroup]:
        """Every part of the line; `Unreadable` at the first that makes no sense."""
        parts: list[FilterTerm | NegatedGroup] = []
        while not self._is_at_end():
            parts.append(self._group() if self._take("-(") else self._term())
        return parts

    def _group(self) -> NegatedGroup:
        began, parts = self._at - 2, list[FilterTerm]()
        while not self._take(")"):
            if self._is_at_end():
                raise FilterSyntaxError(began, "a group that is not closed", "close it with )")
            parts.append(self._term())
        return NegatedGroup(position=began, terms=tuple(parts))

    def _term(self) -> FilterTerm:
        self._skip_space()
        position, is_negated = self._at, self._take("-")
        head = _KEY.match(self._text, self._at)
        if head is None:
            return FilterTerm(position=position, is_negated=is_negated, key="", operator="", values=(self._value(),))
        self._at = head.end()
        values = [self._value()]
        while self._take(","):
            values.append(self._value())
        return FilterTerm(
            position=position,
            is_negated=is_negated,
            key=head[1].lower(),
            operator=head[2],
            values=tuple(values),
        )

    def _value(self) -> FilterValue:
        position = self._at
        if quoted := _QUOTED.match(self._text, position):
            self._at = quoted.end()
            return FilterValue(text=_ESCAPED.sub(r"\1", quoted[1]), position=position, is_quoted=True)
        if bare := _BARE.match(self._text, position):
            self._at = bare.end()
            return FilterValue(text=bare[0], position=position, is_quoted=False)
        if self._text.startswith('"', position):
            raise FilterSyntaxError(position, "a quotation that is not closed", 'close it with "')
        self._refuse_bracket()
        raise FilterSyntaxError(position, "a value is missing", "write it next to the sign, without a space")

    def _refuse_bracket(self) -> None:
        """Say what is wrong with a bracket that stands here, where none belongs."""
        rest = self._text[self._at :]
        hint = "-(…) negates what is in it; quotes keep a bracket as text"
        if rest.startswith(")"):
            raise FilterSyntaxError(self._at, "a bracket that was not opened", hint)
        if rest.startswith("("):
            fault = "brackets without a minus" if ")" in rest else "a bracket that is not closed"
            raise FilterSyntaxError(self._at, fault, hint)

    def _take(self, sign: str) -> bool:
        if sign != ",":  # which joins values only where nothing stands between
            self._skip_space()
        if not self._text.startswith(sign, self._at):
            return False
        self._at += len(sign)
        return True

    def _is_at_end(self) -> bool:
        self._skip_space()
        return self._at == len(self._text)

    def _skip_space(self) -> None:
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at


def quote_value(value: str) -> str:
    """A value as it stands in a line: in quotes where it would be taken apart otherwise."""
    if _BARE.fullmatch(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


# Durations as people write them: `5m`, `30s`, `2h`, `1d`, `250ms`, or plain seconds.

_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_WRITTEN = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(ms|s|m|h|d|)")


def parse_duration(text: str) -> timedelta:
    """What `text` says; a `ValueError` that says what to write where it makes no sense."""
    written = _WRITTEN.fullmatch(text.strip().lower())
    if written is None:
        raise ValueError(f"{text!r} is no duration; write 5m, 30s, 2h, 1d, 250ms or plain seconds")
    try:
        return float(written[1]) * _UNITS[written[2]]
    except OverflowError:
        raise ValueError(f"{text!r} is too long a time") from None


def format_duration(duration: timedelta) -> str:
    """The duration in the largest unit of which it is a whole number; to the millisecond."""
    for unit in ("d", "h", "m", "s"):
        if duration % _UNITS[unit] == timedelta(0):
            return f"{duration // _UNITS[unit]}{unit}"
    return f"{duration // _UNITS['ms']}ms"


# One line of text for a filter, as operators type it: `status:failed,expired queue:mail age<1h -name:mail.*`.
#
# All parts must hold, a comma means or, a leading `-` negates, and `-(…)` negates several parts together. A bare word
# is an id where it looks like one, else text to look for; quotes keep spaces, commas and words that look like ids.


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterFault:
    """What is wrong with a filter, and where: `position` counts characters from 0."""

    position: int
    message: str
    hint: str


LIST_KEYS: Final = {"status": "statuses", "queue": "queues", "name": "names", "err": "error_codes", "id": "ids"}
SINGLE_VALUE_KEYS: Final = {"worker": "worker_id", "wf": "workflow_id", "flag": "flag", "text": "text"}
CHOICE_KEYS: Final = {
    "due": ("due_later", {"later": True, "now": False}),
    "retried": ("retried", {"yes": True, "no": False}),
}
MINIMUM_KEYS: Final = {"wait": "min_wait", "run": "min_run", "hb": "min_silence"}
_COMPARED: Final = {
    "age>": "older_than",
    "age<": "newer_than",
    **{f"{key}>": field for key, field in MINIMUM_KEYS.items()},
    "att>=": "min_attempts",
}
FILTER_KEYS: Final = (*LIST_KEYS, *SINGLE_VALUE_KEYS, *CHOICE_KEYS, "age", *MINIMUM_KEYS, "att")
"""Every key of the language, in the order in which they are offered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Condition:
    """One field of a filter, and whether it must not hold."""

    field: str
    value: Any
    is_negated: bool = False


def parse_filter(text: str) -> TaskFilter | FilterFault:
    """The filter that `text` says, or the first thing wrong with it."""
    try:
        return _filter_of(FilterParser(text).parse())
    except FilterSyntaxError as fault:
        return FilterFault(position=fault.position, message=fault.message, hint=fault.hint)


def format_filter(wanted: TaskFilter) -> str:
    """The line from which `parse_filter` makes this filter; times to the millisecond."""
    excluded = (list(_format_conditions(each)) for each in wanted.excluded)
    negated = (f"-{parts[0]}" if len(parts) == 1 else f"-({' '.join(parts)})" for parts in excluded)
    return " ".join([*_format_conditions(wanted), *negated])


def _filter_of(parts: Sequence[FilterTerm | NegatedGroup]) -> TaskFilter:
    fields: dict[str, Any] = {}
    excluded: list[TaskFilter] = []
    for part in parts:
        if isinstance(part, NegatedGroup):
            excluded.append(_filter_within(part))
            continue
        meant = _condition_of(part)
        if meant.is_negated != part.is_negated:
            excluded.append(TaskFilter(**{meant.field: meant.value}))
        elif meant.field in fields:
            name = part.key or "text to look for"
            raise FilterSyntaxError(
                part.position, f"{name} is given twice", "put its values together, with commas between"
            )
        else:
            fields[meant.field] = meant.value
    return TaskFilter(**fields, exclude=tuple(excluded) or None)


def _filter_within(group: NegatedGroup) -> TaskFilter:
    inner = _filter_of(group.terms)
    if inner.excluded:
        raise FilterSyntaxError(
            group.position, "a negation within a negation", "write what must hold outside of the group"
        )
    return inner


def _condition_of(part: FilterTerm) -> _Condition:
    if not part.key:
        return _bare(part.values[0])
    if part.key not in FILTER_KEYS:
        raise FilterSyntaxError(part.position, f"there is no key {part.key!r}", _nearest(part.key))
    if part.key == "age" or part.key == "att" or part.key in MINIMUM_KEYS:
        return _compared(part)
    if part.operator != ":":
        raise FilterSyntaxError(part.position, f"{part.key} cannot be compared", f"write {part.key}:value")
    if part.key in LIST_KEYS:
        return _Condition(field=LIST_KEYS[part.key], value=tuple(_checked(part.key, value) for value in part.values))
    value = _only(part)
    if part.key in SINGLE_VALUE_KEYS:
        return _Condition(field=SINGLE_VALUE_KEYS[part.key], value=_checked(part.key, value))
    field, choices = CHOICE_KEYS[part.key]
    if value.text not in choices:
        raise FilterSyntaxError(
            value.position, f"{value.text!r} says nothing of {part.key}", f"write {' or '.join(choices)}"
        )
    return _Condition(field=field, value=choices[value.text])


def _bare(value: FilterValue) -> _Condition:
    if value.is_quoted or not _is_id(value.text):
        return _Condition(field="text", value=value.text)
    return _Condition(field="ids", value=(value.text,))


def _compared(part: FilterTerm) -> _Condition:
    if part.operator == ":":
        example = "att>=2" if part.key == "att" else f"{part.key}>5m"
        raise FilterSyntaxError(part.position, f"{part.key} is a number to compare with", f"write {example}")
    value = _only(part)
    is_below = part.operator.startswith("<")
    if part.key == "att":
        # Whole numbers: more than two is at least three, and fewer than two is not at least two.
        least = _number(value) + (part.operator in {">", "<="})
        return _Condition(field="min_attempts", value=least, is_negated=is_below)
    duration = _duration(value)
    if part.key == "age":
        return _Condition(field="newer_than" if is_below else "older_than", value=duration)
    if is_below:
        hint = f"-{part.key}>{value.text} is the opposite of {part.key}>{value.text}"
        raise FilterSyntaxError(part.position, f"{part.key} can only be asked to be more", hint)
    return _Condition(field=MINIMUM_KEYS[part.key], value=duration)


def _checked(key: str, value: FilterValue) -> str:
    """A value as the filter takes it."""
    if key == "status":
        return _status(value)
    if key in {"id", "worker", "wf"} and not _is_id(value.text):
        raise FilterSyntaxError(value.position, f"{value.text!r} is no id", "give it whole, or its last eight digits")
    return value.text


def _status(value: FilterValue) -> TaskStatus:
    try:
        return TaskStatus(value.text.upper())
    except ValueError:
        known = ", ".join(TaskStatus).lower()
        raise FilterSyntaxError(value.position, f"there is no status {value.text!r}", f"one of {known}") from None


def _only(part: FilterTerm) -> FilterValue:
    value, *more = part.values
    if more:
        raise FilterSyntaxError(more[0].position, f"{part.key} takes one value", "leave out what follows the comma")
    return value


def _duration(value: FilterValue) -> timedelta:
    try:
        return parse_duration(value.text)
    except ValueError as error:
        message, _, hint = str(error).partition("; ")
        raise FilterSyntaxError(value.position, message, hint or "write a shorter one") from None


def _number(value: FilterValue) -> int:
    if not (value.text.isascii() and value.text.isdigit() and len(value.text) < 10):
        raise FilterSyntaxError(
            value.position, f"{value.text!r} is no number of attempts", "write a whole number, as 2"
        )
    return int(value.text)


def _is_id(text: str) -> bool:
    if is_short_id(text):
        return True
    try:
        parse_id(text)
    except ValueError:
        return False
    return True


def _nearest(key: str) -> str:
    near = next(iter(difflib.get_close_matches(key, FILTER_KEYS, n=1)), None)
    return f"did you mean {near}?" if near else f"keys are {', '.join(FILTER_KEYS)}"


def _format_conditions(wanted: TaskFilter) -> Iterator[str]:
    """Each part of a filter that is given, without those it excludes."""
    for key, field in LIST_KEYS.items():
        if values := getattr(wanted, field):
            yield f"{key}:{','.join(_lower_status(key, value) for value in values)}"
    for key, field in SINGLE_VALUE_KEYS.items():
        if (value := getattr(wanted, field)) is not None:
            yield f"{key}:{quote_value(value)}"
    for key, (field, choices) in CHOICE_KEYS.items():
        yield from (f"{key}:{word}" for word, meant in choices.items() if getattr(wanted, field) is meant)
    for sign, field in _COMPARED.items():
        if (value := getattr(wanted, field)) is not None:
            yield sign + (format_duration(value) if isinstance(value, timedelta) else str(value))


def _lower_status(key: str, value: str) -> str:
    return value.lower() if key == "status" else quote_value(value)
