"""Task filters, and the one-line text that operators type for them.

Example: `status:failed,expired queue:mail age<1h -name:mail.*`. All terms must match, a comma means "or", a leading `-`
negates a term and `-(…)` a group of terms. A bare word is an id if it looks like one, otherwise text to search for.
Quotes keep spaces, commas and words that look like ids.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast

from horsies.model.task import SHORT_FORM_DIGITS, TaskStatus, parse_id

F = TypeVar("F")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """Selects tasks that meet every condition that is set; a condition with several values needs one of them.

    `names` and `error_codes` are globs with `*` and `?`. Ids are full ids or short ids. Ages count from `sent_at`,
    `min_wait` from when the task was due, `min_silence` from the last heartbeat of the current claim. `text` is
    searched in name, arguments and error, ignoring case. Tasks that match `exclude`, or any filter in it, are left out.
    Raises ValueError for an unknown status, a malformed id or a nested `exclude`.
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
        for id_text in (*self.ids, self.worker_id, self.workflow_id):
            if id_text is not None and not is_short_id(id_text):
                parse_id(id_text)
        if any(excluded.excluded for excluded in self.excluded):
            raise ValueError("a filter in exclude cannot have an exclude itself")

    @property
    def excluded(self) -> tuple[TaskFilter, ...]:
        """The filters in `exclude`, without empty ones, which exclude nothing."""
        excludes = (self.exclude,) if isinstance(self.exclude, TaskFilter) else self.exclude or ()
        return tuple(excluded for excluded in excludes if _conditions(excluded) or excluded.exclude)

    @property
    def is_empty(self) -> bool:
        """Whether every task matches."""
        return not _conditions(self) and not self.excluded

    def to_json(self) -> str:
        """Return the filter and its excluded filters as the SQL statements take them."""
        filters = [{"is_wanted": True, **_conditions(self)}]
        return json.dumps(filters + [{"is_wanted": False, **_conditions(excluded)} for excluded in self.excluded])


def _set_fields(task_filter: TaskFilter) -> dict[str, Any]:
    """Return the conditions that are set, by field name."""
    values = {field.name: getattr(task_filter, field.name) for field in fields(task_filter) if field.name != "exclude"}
    # No test for truth: False and 0 are conditions too.
    return {name: value for name, value in values.items() if value not in (None, (), [])}


def _conditions(task_filter: TaskFilter) -> dict[str, object]:
    """Return the conditions that are set, as JSON values."""
    return {name: _json_value(name, value) for name, value in _set_fields(task_filter).items()}


RowT = TypeVar("RowT")
ConditionTests: TypeAlias = Mapping[str, Callable[[RowT, Any, datetime], bool]]
"""Whether a row in memory meets a condition at an instant, by the name of the filter's field."""


def is_match(row: RowT, task_filter: TaskFilter, tests: ConditionTests[RowT], now: datetime) -> bool:
    """Whether a row in memory matches a filter; a condition without a test is never met."""
    is_wanted = all(name in tests and tests[name](row, value, now) for name, value in _set_fields(task_filter).items())
    return is_wanted and not any(is_match(row, excluded, tests, now) for excluded in task_filter.excluded)


def matches_any_glob(text: str, globs: Iterable[str]) -> bool:
    """Whether a text in memory matches one of the globs with `*` and `?`."""
    # In `fnmatch` a bracket opens a set of characters.
    return any(fnmatchcase(text, glob.replace("[", "[[]")) for glob in globs)


GLOB_FIELDS: Final = frozenset({"names", "error_codes"})
"""The conditions whose values are globs."""


def _json_value(name: str, value: object) -> object:
    match name, value:
        case _ if name in GLOB_FIELDS:
            return [glob_to_like(glob) for glob in cast("Sequence[str]", value)]
        case "statuses" | "queues", _:
            return list(cast("Sequence[str]", value))
        case "ids", _:
            return [id_text.lower() for id_text in cast("Sequence[str]", value)]
        case "worker_id" | "workflow_id", str():
            return value.lower()
        case _, timedelta():
            return f"{value.total_seconds()} seconds"
        case _:
            return value


_GLOB_TO_LIKE = str.maketrans({"*": "%", "?": "_", "%": r"\%", "_": r"\_", "\\": r"\\"})


def glob_to_like(glob: str) -> str:
    """Return the LIKE pattern for a glob with `*` and `?`."""
    return glob.translate(_GLOB_TO_LIKE)


_LIKE_TOKEN = re.compile(r"\\(.)|[%_]", re.DOTALL)
_LIKE_TO_GLOB = {"%": "*", "_": "?"}


def like_to_glob(pattern: str) -> str:
    """Return the glob that `glob_to_like` turned into this LIKE pattern."""
    return _LIKE_TOKEN.sub(lambda token: token[1] or _LIKE_TO_GLOB[token[0]], pattern)


def is_short_id(text: str) -> bool:
    # Not int(text, 16), which accepts signs, spaces and underscores.
    return len(text) == SHORT_FORM_DIGITS and all(digit in "0123456789abcdefABCDEF" for digit in text)


# Filters as text


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterFault:
    """What is wrong with a filter text, and where: `position` counts characters from 0."""

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
_COMPARISONS: Final = {
    "age>": "older_than",
    "age<": "newer_than",
    **{f"{key}>": field for key, field in MINIMUM_KEYS.items()},
    "att>=": "min_attempts",
}
FILTER_KEYS: Final = (*LIST_KEYS, *SINGLE_VALUE_KEYS, *CHOICE_KEYS, "age", *MINIMUM_KEYS, "att")
"""All keys, in the order in which they are suggested."""


def parse_filter(text: str) -> TaskFilter | FilterFault:
    """Return the filter that `text` describes, or the first fault in it."""
    return build_from_text(text, _build_filter)


def build_from_text(text: str, build: Callable[[Sequence[FilterTerm | NegatedGroup]], F]) -> F | FilterFault:
    """Return what `build` makes of the terms of a text, or the first fault in it."""
    try:
        return build(FilterParser(text).parse())
    except FilterSyntaxError as error:
        return FilterFault(position=error.position, message=error.message, hint=error.hint)


def format_filter(task_filter: TaskFilter) -> str:
    """Return the text that `parse_filter` turns into this filter; durations are rounded down to milliseconds."""
    excluded = (list(_format_conditions(excluded_filter)) for excluded_filter in task_filter.excluded)
    negated = (f"-{terms[0]}" if len(terms) == 1 else f"-({' '.join(terms)})" for terms in excluded)
    return " ".join([*_format_conditions(task_filter), *negated])


def _format_conditions(task_filter: TaskFilter) -> Iterator[str]:
    """Yield a term for each condition that is set, without the excluded filters."""
    for key, field in LIST_KEYS.items():
        if values := getattr(task_filter, field):
            yield f"{key}:{','.join(value.lower() if key == 'status' else quote_value(value) for value in values)}"
    for key, field in SINGLE_VALUE_KEYS.items():
        if (value := getattr(task_filter, field)) is not None:
            yield f"{key}:{quote_value(value)}"
    for key, (field, choices) in CHOICE_KEYS.items():
        yield from (f"{key}:{word}" for word, value in choices.items() if getattr(task_filter, field) is value)
    for comparison, field in _COMPARISONS.items():
        if (value := getattr(task_filter, field)) is not None:
            yield comparison + (format_duration(value) if isinstance(value, timedelta) else str(value))


def _build_filter(terms: Sequence[FilterTerm | NegatedGroup]) -> TaskFilter:
    conditions: dict[str, Any] = {}
    excluded: list[TaskFilter] = []
    for term in terms:
        if isinstance(term, NegatedGroup):
            excluded.append(_build_group(term))
            continue
        condition = _build_condition(term)
        # Two negations cancel out: `-att<2` is `att>=2`.
        if condition.is_negated != term.is_negated:
            excluded.append(TaskFilter(**{condition.field: condition.value}))
        elif condition.field in conditions:
            hint = "join its values with commas" if term.key else 'put several words in quotes: "one two"'
            raise FilterSyntaxError(term.position, f"{term.key or 'search text'} is given twice", hint)
        else:
            conditions[condition.field] = condition.value
    return TaskFilter(**conditions, exclude=tuple(excluded) or None)


def _build_group(group: NegatedGroup) -> TaskFilter:
    task_filter = _build_filter(group.terms)
    if task_filter.excluded:
        raise FilterSyntaxError(group.position, "nested negation", "move the inner condition out of the group")
    return task_filter


@dataclass(frozen=True, slots=True, kw_only=True)
class _Condition:
    """A field of `TaskFilter` and its value. `att<2` is the negation of `att>=2`."""

    field: str
    value: Any
    is_negated: bool = False


def _build_condition(term: FilterTerm) -> _Condition:
    key = term.key
    if not key:
        return _bare_word_condition(term.values[0])
    if key not in FILTER_KEYS:
        nearest = difflib.get_close_matches(key, FILTER_KEYS, n=1)
        hint = f"did you mean {nearest[0]}?" if nearest else f"keys: {', '.join(FILTER_KEYS)}"
        raise FilterSyntaxError(term.position, f"unknown key {key!r}", hint)
    if key == "age" or key == "att" or key in MINIMUM_KEYS:
        return _comparison(term)
    if term.operator != ":":
        raise FilterSyntaxError(term.position, f"{key} cannot be compared", f"write {key}:value")
    if key in LIST_KEYS:
        return _Condition(field=LIST_KEYS[key], value=tuple(_validated(key, value) for value in term.values))
    value = _single_value(term)
    if key in SINGLE_VALUE_KEYS:
        return _Condition(field=SINGLE_VALUE_KEYS[key], value=_validated(key, value))
    field, choices = CHOICE_KEYS[key]
    if value.text not in choices:
        hint = f"write {' or '.join(choices)}"
        raise FilterSyntaxError(value.position, f"invalid value {value.text!r} for {key}", hint)
    return _Condition(field=field, value=choices[value.text])


def _bare_word_condition(value: FilterValue) -> _Condition:
    if value.is_quoted or not _is_id(value.text):
        return _Condition(field="text", value=value.text)
    return _Condition(field="ids", value=(value.text,))


def _comparison(term: FilterTerm) -> _Condition:
    key = term.key
    if term.operator == ":":
        example = "att>=2" if key == "att" else f"{key}>5m"
        raise FilterSyntaxError(term.position, f"{key} needs a comparison", f"write {example}")
    value = _single_value(term)
    is_below = term.operator.startswith("<")
    if key == "att":
        # Attempts are whole numbers: `>2` is `>=3`, and `<2` is "not >=2".
        minimum = _attempts(value) + (term.operator in {">", "<="})
        return _Condition(field="min_attempts", value=minimum, is_negated=is_below)
    duration = _duration(value)
    if key == "age":
        return _Condition(field="newer_than" if is_below else "older_than", value=duration)
    if is_below:
        hint = f"for the opposite of {key}>{value.text} write -{key}>{value.text}"
        raise FilterSyntaxError(term.position, f"{key} supports only >", hint)
    return _Condition(field=MINIMUM_KEYS[key], value=duration)


def _single_value(term: FilterTerm) -> FilterValue:
    value, *more = term.values
    if more:
        raise FilterSyntaxError(more[0].position, f"{term.key} takes one value", "remove the comma and what follows it")
    return value


def _validated(key: str, value: FilterValue) -> str:
    if key == "status":
        return parse_status(value, TaskStatus)
    if key in {"id", "worker", "wf"} and not _is_id(value.text):
        raise FilterSyntaxError(value.position, f"invalid id {value.text!r}", "give the full id or its last 8 digits")
    return value.text


def parse_status(value: FilterValue, statuses: type[StrEnum]) -> str:
    try:
        return statuses(value.text.upper())
    except ValueError:
        hint = f"one of {', '.join(statuses).lower()}"
        raise FilterSyntaxError(value.position, f"unknown status {value.text!r}", hint) from None


def _duration(value: FilterValue) -> timedelta:
    try:
        return parse_duration(value.text)
    except ValueError as error:
        message = str(error).removesuffix(f" ({DURATION_EXAMPLES})")
        raise FilterSyntaxError(value.position, message, DURATION_EXAMPLES) from None


def _attempts(value: FilterValue) -> int:
    # Nine digits always fit into a PostgreSQL integer; isdigit() alone accepts digits such as ².
    if not (value.text.isascii() and value.text.isdigit() and len(value.text) < 10):
        raise FilterSyntaxError(
            value.position, f"invalid number of attempts {value.text!r}", "write a whole number, such as 2"
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


# Parser of filter texts


_SPACE = re.compile(r"\s*")
# The longer operators come first, or `<=` would be read as `<`.
_KEY = re.compile(r"([A-Za-z_]+)(:|<=|>=|<|>)")
_BARE = re.compile(r'[^\s,"()]+')
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


class FilterSyntaxError(ValueError):
    """A filter text that cannot be parsed; `position` is where the fault is."""

    def __init__(self, position: int, message: str, hint: str) -> None:
        super().__init__(message)
        self.position = position
        self.message = message
        self.hint = hint


class FilterValue(NamedTuple):
    """One value of a term, and where it starts in the text."""

    text: str
    position: int
    is_quoted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterTerm:
    """One term of a filter text; `key` and `operator` are empty for a bare word."""

    position: int
    is_negated: bool
    key: str
    operator: str
    values: tuple[FilterValue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NegatedGroup:
    """Terms in `-(…)`: tasks that match all of them are excluded."""

    position: int
    terms: tuple[FilterTerm, ...]


class FilterParser:
    """Splits a filter text into terms, from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def parse(self) -> list[FilterTerm | NegatedGroup]:
        """Return all terms; raises FilterSyntaxError at the first fault."""
        terms: list[FilterTerm | NegatedGroup] = []
        while not self._is_at_end():
            terms.append(self._group() if self._take("-(") else self._term())
        return terms

    def _group(self) -> NegatedGroup:
        position, terms = self._at - len("-("), list[FilterTerm]()
        while not self._take(")"):
            if self._is_at_end():
                raise FilterSyntaxError(position, "unclosed group", "close it with )")
            terms.append(self._term())
        return NegatedGroup(position=position, terms=tuple(terms))

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
            raise FilterSyntaxError(position, "unclosed quote", 'close it with "')
        self._reject_bracket()
        raise FilterSyntaxError(position, "missing value", "write it right after the operator, without a space")

    def _reject_bracket(self) -> None:
        """Raise if there is a bracket at the current position, where a value is expected."""
        rest = self._text[self._at :]
        hint = "-(…) negates a group of terms; use quotes to search for a bracket"
        if rest.startswith(")"):
            raise FilterSyntaxError(self._at, "unmatched )", hint)
        if rest.startswith("("):
            fault = "group without a minus" if ")" in rest else "unclosed ("
            raise FilterSyntaxError(self._at, fault, hint)

    def _take(self, symbol: str) -> bool:
        if symbol != ",":  # a comma joins two values only without spaces around it
            self._skip_space()
        if not self._text.startswith(symbol, self._at):
            return False
        self._at += len(symbol)
        return True

    def _is_at_end(self) -> bool:
        self._skip_space()
        return self._at == len(self._text)

    def _skip_space(self) -> None:
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at


def quote_value(value: str) -> str:
    """Return the value in quotes if the parser would split it otherwise."""
    if _BARE.fullmatch(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


# Durations

DURATION_EXAMPLES: Final = "examples: 30s, 5m, 2h, 1d, 250ms"
_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(ms|s|m|h|d|)")


def parse_duration(text: str) -> timedelta:
    """Parse `5m`, `30s`, `2h`, `1d`, `250ms` or plain seconds; raises ValueError for anything else."""
    parsed = _DURATION.fullmatch(text.strip().lower())
    if parsed is None:
        raise ValueError(f"invalid duration {text!r} ({DURATION_EXAMPLES})")
    try:
        return float(parsed[1]) * _UNITS[parsed[2]]
    except OverflowError:
        raise ValueError(f"duration {text!r} is too long") from None


def format_duration(duration: timedelta) -> str:
    """Format in the largest unit that gives a whole number, rounded down to milliseconds."""
    for unit in ("d", "h", "m", "s"):
        if duration % _UNITS[unit] == timedelta(0):
            return f"{duration // _UNITS[unit]}{unit}"
    return f"{duration // _UNITS['ms']}ms"
