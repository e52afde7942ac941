"""Text from outside, made safe to show: names, arguments, errors, results are data and never reach a terminal raw."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from pydantic_core import ErrorDetails

# C0 and C1 controls and DEL, and lone surrogates, which no terminal encoding can carry.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
# Characters that reorder or hide what stands around them.
_INVISIBLE = re.compile("[\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def sanitize_text(text: str, *, limit: int | None = None) -> str:
    """`text` with control characters written out, reordering ones removed, and cut to `limit` characters with `…`."""
    # Four times the limit leaves room for what is removed, and keeps a megabyte from being read whole.
    read = text if limit is None else text[: 4 * limit]
    shown = _CONTROL.sub(_escape, _INVISIBLE.sub("", read))
    if limit is not None and (len(shown) > limit or len(read) < len(text)):
        return shown[: limit - 1] + "…"
    return shown


def first_line(text: str, *, limit: int) -> str:
    """The first line of `text` with anything in it, made safe and cut to `limit`; empty where there is none."""
    return sanitize_text(text.strip().partition("\n")[0].rstrip(), limit=limit)


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    return _NAMED.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


# What pydantic found wrong, in words made from the annotation alone, so that no value is ever shown.

_WHOLE, _NUMBER, _TRUTH, _DECIMAL = "a whole number", "a number", "true or false", "a decimal number"
_DATE, _TIME, _MOMENT, _SPAN = "a date", "a time of day", "a date and time", "a time span"
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
    "bool_type": _TRUTH,
    "bool_parsing": _TRUTH,
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
    "datetime_type": _MOMENT,
    "datetime_parsing": _MOMENT,
    "datetime_from_date_parsing": _MOMENT,
    "time_delta_type": _SPAN,
    "time_delta_parsing": _SPAN,
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
    "union_tag_not_found": "does not say by {discriminator} which kind it is",
}
_RULE_TEXTS: Final[Mapping[str, str]] = {**{kind: f"must be {what}" for kind, what in _MUST_BE.items()}, **_OTHER_RULES}


def describe_validation_error(finding: ErrorDetails) -> str:
    """The rule that does not hold, as the end of a sentence that starts with the name of the place.

    All rules not known here are named only: parsers quote characters, and validators of the user's say what they like.
    """
    words = _RULE_TEXTS.get(finding["type"])
    if words is None:
        return f"is not accepted ({finding['type']})"
    # A user's own error may bear the name of one of pydantic's, and lack what that one tells.
    return words.format_map(defaultdict(lambda: "…", finding.get("ctx", {})))
