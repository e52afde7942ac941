"""Make untrusted text (names, arguments, errors, results) safe to show, and describe ages and validation errors."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:  # `horsies --help` does not load pydantic
    from pydantic_core import ErrorDetails, ValidationError

# C0 and C1 controls, DEL, lone surrogates, which cannot be encoded, and characters that reorder or hide the text around
# them: soft hyphens, zero-width and bidirectional characters, blank fillers, tags.
_UNSAFE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\ud800-\udfff\u034f\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\u3164\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e007f]"
)
_AGE_UNITS = (
    ("d", timedelta(days=1)),
    ("h", timedelta(hours=1)),
    ("m", timedelta(minutes=1)),
    ("s", timedelta(seconds=1)),
)
_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def sanitize_text(text: str, *, limit: int | None = None) -> str:
    """Write out control and invisible characters, and truncate to `limit` characters with `…`."""
    read = text if limit is None else text[:limit]
    shown = _UNSAFE.sub(_escape, read)
    if limit is not None and (len(shown) > limit or len(read) < len(text)):
        return shown[: limit - 1] + "…"
    return shown


def first_line(text: str, *, limit: int) -> str:
    """Return the first non-blank line of `text`, sanitized and truncated to `limit`; empty if there is none."""
    return sanitize_text(text.strip().partition("\n")[0].rstrip(), limit=limit)


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    if code > 0xFFFF:
        return f"\\U{code:08x}"
    return _SHORT_ESCAPES.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def format_age(duration: timedelta | None) -> str:
    """Format a duration in at most two units, such as `3m12s` or `1d02h`, or `4.2s` below ten seconds; None is `-`."""
    if duration is None:
        return "-"
    if duration < timedelta(0):
        return f"-{format_age(-duration)}"
    if duration < timedelta(seconds=10):
        return f"{duration.total_seconds():.1f}s"
    largest = next(index for index, (_, unit) in enumerate(_AGE_UNITS) if duration >= unit)
    (suffix, unit), *smaller = _AGE_UNITS[largest : largest + 2]
    whole, rest = divmod(duration, unit)
    return f"{whole}{suffix}" + "".join(f"{rest // unit:02}{suffix}" for suffix, unit in smaller)


def format_elapsed(duration: timedelta | None) -> str:
    """Format how long something took: `82ms` below 0.1 s, else like an age."""
    if duration is not None and duration < timedelta(seconds=0.1):
        return f"{max(duration.total_seconds(), 0) * 1000:.0f}ms"
    return format_age(duration)


def mask_values(value: Any, mask_keys: Iterable[str], *, mask: str = "***") -> Any:
    """Replace the values of all keys that match one of the regular expressions, at any depth."""
    patterns = [re.compile(pattern, re.IGNORECASE) for pattern in mask_keys]

    def masked(value: Any) -> Any:
        match value:
            case Mapping():
                entries = cast("Mapping[object, Any]", value).items()
                return {str(key): mask if is_secret(str(key)) else masked(item) for key, item in entries}
            case list() | tuple():
                return [masked(item) for item in cast("Sequence[Any]", value)]
            case _:
                return value

    def is_secret(key: str) -> bool:
        return any(pattern.search(key) for pattern in patterns)

    return masked(value)


# Messages for pydantic errors


def format_path(path: tuple[str | int, ...]) -> str:
    """Format `("custom_queues", 0, "priority")` as `custom_queues[0].priority`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


# Descriptions of rules, built from the annotation alone so that no value, which may be secret, is shown.

_WHOLE, _NUMBER, _BOOL, _DECIMAL = "a whole number", "a number", "true or false", "a decimal number"
_DATE, _TIME, _DATETIME, _DURATION = "a date", "a time of day", "a date and time", "a duration"
_MUST_BE: Final[Mapping[str, str]] = {
    "none_required": "None",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "finite_number": "a finite number",
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_from_float": _WHOLE,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "bool_type": _BOOL,
    "bool_parsing": _BOOL,
    "decimal_type": _DECIMAL,
    "decimal_parsing": _DECIMAL,
    "string_type": "text",
    "bytes_type": "bytes",
    "uuid_type": "a UUID",
    "uuid_parsing": "a UUID",
    "url_type": "a URL",
    "url_parsing": "a URL",
    "date_type": _DATE,
    "date_parsing": _DATE,
    "date_from_datetime_parsing": _DATE,
    "time_type": _TIME,
    "time_parsing": _TIME,
    "datetime_type": _DATETIME,
    "datetime_parsing": _DATETIME,
    "datetime_from_date_parsing": _DATETIME,
    "time_delta_type": _DURATION,
    "time_delta_parsing": _DURATION,
    "list_type": "a list",
    "tuple_type": "a tuple",
    "set_type": "a set",
    "frozen_set_type": "a set",
    "dict_type": "a dict",
    "mapping_type": "a dict",
    "iterable_type": "a list",
    "model_type": "{class_name} or a dict of its fields",
    "model_attributes_type": "an object with the fields",
    "dataclass_type": "{class_name} or a dict of its fields",
    "dataclass_exact_type": "{class_name}",
    "is_instance_of": "{class}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "multiple_of": "a multiple of {multiple_of}",
}
_OTHER_RULES: Final[Mapping[str, str]] = {
    "missing": "is missing",
    "missing_argument": "is missing",
    "extra_forbidden": "is unknown",
    "string_too_short": "must have a length of at least {min_length}",
    "string_too_long": "must have a length of at most {max_length}",
    "string_pattern_mismatch": "must match the pattern {pattern}",
    "too_short": "must have a length of at least {min_length}",
    "too_long": "must have a length of at most {max_length}",
    "timezone_naive": "must have no time zone",
    "timezone_aware": "must have a time zone",
    "decimal_max_digits": "must not have more digits than {max_digits}",
    "decimal_max_places": "must not have more decimal places than {decimal_places}",
    "union_tag_not_found": "must have the field {discriminator}, which selects its type",
}
_TEMPLATES: Final[Mapping[str, str]] = {
    **{kind: f"must be {expected}" for kind, expected in _MUST_BE.items()},
    **_OTHER_RULES,
}


def describe_validation_error(finding: ErrorDetails) -> str:
    """Describe the violated rule as a predicate: the caller puts the name of the value before it."""
    template = _TEMPLATES.get(finding["type"])
    if template is None:
        # Only the rule's name: messages of parsers and of user validators may quote the value.
        return f"is not accepted ({finding['type']})"
    # A user's own error type may share a name with one of pydantic's and lack its context values.
    return template.format_map(defaultdict(lambda: "…", finding.get("ctx", {})))


def format_violations(
    invalid: ValidationError,
    *,
    describe: Callable[[ErrorDetails], str] = describe_validation_error,
    is_shown: Callable[[str], bool] = lambda _: True,
) -> list[str]:
    """Return `path: description` for each violated rule; a key for which `is_shown` is False appears as `*`."""
    # A dict, because every member of a union reports an error, often the same one.
    lines: dict[str, None] = {}
    for finding in invalid.errors(include_url=False, include_input=False):
        path = format_path(tuple(part if isinstance(part, int) or is_shown(part) else "*" for part in finding["loc"]))
        lines[f"{path}: {describe(finding)}" if path else describe(finding)] = None
    return list(lines)
