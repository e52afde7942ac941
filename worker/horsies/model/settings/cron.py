"""Whether a text is a cron expression that can ever come due; when it does is worked out where slots are computed."""

from __future__ import annotations

import re
from dataclasses import dataclass

CRON_IN_WORDS = (
    "five fields such as */5 8-18 * * 1-5, which some date fits: "
    "minute 0-59, hour 0-23, day 1-31, month 1-12 or jan-dec, weekday 0-7 or sun-sat"
)

_TERM = re.compile(r"(?:\*|(?P<first>[A-Za-z0-9]+)(?:-(?P<last>[A-Za-z0-9]+))?)(?:/(?P<step>[0-9]+))?")
_LONGEST_MONTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    """The values one of the five fields may hold; names stand for them in their order, the first for `low`."""

    low: int
    high: int
    names: tuple[str, ...] = ()

    def values(self, text: str) -> set[int]:
        """All values of a list of terms; ValueError where one is no term or out of range."""
        return {value for term in text.split(",") for value in self._values_of(term)}

    def _values_of(self, term: str) -> range:
        found = _TERM.fullmatch(term)
        # A step goes through a range; after a single value it would mean different things to different crons.
        if found is None or (found["first"] and not found["last"] and found["step"]):
            raise ValueError(term)
        first = self._number(found["first"]) if found["first"] else self.low
        last = self._number(found["last"] or found["first"]) if found["first"] else self.high
        step = int(found["step"] or 1)
        if not self.low <= first <= last <= self.high or not 1 <= step <= self.high:
            raise ValueError(term)
        return range(first, last + 1, step)

    def _number(self, text: str) -> int:
        name = text.lower()
        return self.low + self.names.index(name) if name in self.names else int(text)


_FIELDS = (
    _Field(low=0, high=59),
    _Field(low=0, high=23),
    _Field(low=1, high=31),
    _Field(low=1, high=12, names=("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")),
    _Field(low=0, high=7, names=("sun", "mon", "tue", "wed", "thu", "fri", "sat")),
)


def is_cron(value: object) -> bool:
    """Five fields of values, ranges, steps and lists of them, each within its bounds, and not 31 February."""
    texts = value.split() if isinstance(value, str) else []
    if len(texts) != len(_FIELDS):
        return False
    try:
        _, _, days, months, _ = (field.values(text) for field, text in zip(_FIELDS, texts, strict=True))
    except ValueError:
        return False
    # A weekday that is given comes due on its own, whatever the day says.
    return texts[-1] != "*" or min(days) <= max(_LONGEST_MONTHS[month - 1] for month in months)
