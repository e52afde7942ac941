"""Why a value was not accepted, in words that never show the value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horsies.model.complaints import complaint
from horsies.model.settings.fault import dotted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import ValidationError

MOST_TOLD = 5


def explained(error: ValidationError, known_names: Iterable[str]) -> str:
    """The faults, each with its place, and how many more there are than are told.

    A place is made of positions and of `known_names`; keys of a dict are data and shown as `*`.
    """
    shown = frozenset(known_names)
    # A union has a finding for each of its members, which may well read the same.
    found: dict[str, None] = {}
    for finding in error.errors(include_url=False, include_input=False):
        place = dotted(tuple(part if isinstance(part, int) or part in shown else "*" for part in finding["loc"]))
        found[f"{place}: {complaint(finding)}" if place else complaint(finding)] = None
    told = "; ".join(list(found)[:MOST_TOLD])
    return told if len(found) <= MOST_TOLD else f"{told}; and {len(found) - MOST_TOLD} more"
