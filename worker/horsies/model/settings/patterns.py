"""What a schedule's pattern table may hold; the patterns themselves are worked out where slots are computed."""

from __future__ import annotations

import re
from datetime import time
from typing import TYPE_CHECKING, Any, cast

from horsies.errors import ConfigurationError, ErrorCode
from horsies.model.settings.cron import CRON_IN_WORDS, is_cron
from horsies.model.settings.wording import unknown_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def checked_pattern(pattern: Mapping[str, Any]) -> Mapping[str, Any]:
    """The pattern as it came, when its `type` is known and every field of it is in range; HRS-205 otherwise."""
    kind = pattern.get("type")
    fields = _FIELDS.get(kind) if isinstance(kind, str) else None
    if fields is None:
        raise _invalid(f"pattern.type must be one of {', '.join(_FIELDS)}")
    given = {name: value for name, value in pattern.items() if name != "type"}
    for name, value in given.items():
        _check_field(name, value, fields)
    required = fields.keys() - _OPTIONAL.get(str(kind), frozenset())
    if missing := sorted(required - given.keys()):
        raise _invalid(f"a pattern of type {kind} needs {', '.join(missing)}")
    if not given:
        raise _invalid(f"a pattern of type {kind} needs at least one of {', '.join(fields)}")
    return pattern


def _check_field(name: str, value: object, fields: Mapping[str, _Rule]) -> None:
    if name not in fields:
        text, hint = unknown_key(name, fields)
        raise _invalid(f"pattern.{name}: {text}", hint=hint)
    is_right, words = fields[name]
    if not is_right(value):
        raise _invalid(f"pattern.{name} must be {words}")


def _whole(low: int, high: int) -> _Rule:
    return lambda value: type(value) is int and low <= value <= high, f"a whole number from {low} to {high}"


def _is_time(value: object) -> bool:
    if isinstance(value, time):
        return value.tzinfo is None
    return isinstance(value, str) and re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d(:[0-5]\d)?", value) is not None


def _are_weekdays(value: object) -> bool:
    days = cast("Sequence[object]", value) if isinstance(value, list | tuple) else ()
    return 0 < len(days) == len({day for day in days if day in _WEEKDAYS})


if TYPE_CHECKING:
    _Rule = tuple[Callable[[object], bool], str]

_TIME: _Rule = (_is_time, "a time such as 02:30")
_MINUTE = _whole(0, 59)
_FIELDS: dict[str, dict[str, _Rule]] = {
    "interval": {
        "seconds": _whole(1, 86_400),
        "minutes": _whole(1, 1_440),
        "hours": _whole(1, 168),
        "days": _whole(1, 365),
    },
    "hourly": {"minute": _MINUTE, "second": _MINUTE},
    "daily": {"time": _TIME},
    "weekly": {"days": (_are_weekdays, "a list of different weekdays: " + ", ".join(_WEEKDAYS)), "time": _TIME},
    "monthly": {"day": _whole(1, 31), "time": _TIME},
    "cron": {"expression": (is_cron, CRON_IN_WORDS)},
}
_OPTIONAL = {"interval": frozenset({"seconds", "minutes", "hours", "days"}), "hourly": frozenset({"second"})}


def _invalid(message: str, *, hint: str | None = None) -> ConfigurationError:
    return ConfigurationError(message, code=ErrorCode.CONFIG_INVALID_SCHEDULE, hint=hint)
