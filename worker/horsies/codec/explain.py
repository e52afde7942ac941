"""Why a value was not accepted, in words that never show the value."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import ValidationError

# Messages that pydantic makes from the annotation alone. All others may quote the input: parsers name characters,
# validators of the user's own say what they like.
_TOLD_BY_THE_ANNOTATION = frozenset(
    {
        "missing", "missing_argument", "extra_forbidden", "none_required", "literal_error", "enum", "finite_number",
        "int_type", "int_parsing", "int_from_float", "float_type", "float_parsing", "bool_type", "bool_parsing",
        "string_type", "string_too_short", "string_too_long", "string_pattern_mismatch", "bytes_type",
        "list_type", "tuple_type", "set_type", "frozen_set_type", "dict_type", "mapping_type", "iterable_type",
        "too_short", "too_long", "model_type", "model_attributes_type", "dataclass_type", "dataclass_exact_type",
        "is_instance_of", "date_type", "time_type", "datetime_type", "time_delta_type", "timezone_naive",
        "timezone_aware", "uuid_type", "decimal_type", "decimal_parsing", "decimal_max_digits", "decimal_max_places",
        "greater_than", "greater_than_equal", "less_than", "less_than_equal", "multiple_of", "union_tag_not_found",
    }
)  # fmt: skip


def explained(error: ValidationError, known_names: Iterable[str]) -> str:
    """The first fault with its place, and how many more there are.

    A place is made of positions and of `known_names`; keys of a dict are data and shown as `*`.
    """
    first, *others = error.errors(include_url=False, include_context=False, include_input=False)
    shown = frozenset(known_names)
    place = ".".join(str(part) if isinstance(part, int) or part in shown else "*" for part in first["loc"])
    told = first["msg"] if first["type"] in _TOLD_BY_THE_ANNOTATION else f"not accepted ({first['type']})"
    more = f" (and {len(others)} more)" if others else ""
    return f"{place}: {told}{more}" if place else f"{told}{more}"
