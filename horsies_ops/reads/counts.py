"""Numbers as operators read them, and how far each may be trusted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How many; exact unless it says otherwise."""

    number: int
    is_estimate: bool = False
    """Taken from the planner's statistics, right to a few per cent at best."""
    is_capped: bool = False
    """Counting stopped here; there may be more."""

    def __str__(self) -> str:
        return f"{'~' if self.is_estimate else ''}{self.number:,}{'+' if self.is_capped else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facet:
    """A value that occurs among some tasks, and how often."""

    value: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Facets:
    """What occurs among the newest matching tasks, the most frequent value first."""

    statuses: tuple[Facet, ...]
    queues: tuple[Facet, ...]
    names: tuple[Facet, ...]
    error_codes: tuple[Facet, ...]
