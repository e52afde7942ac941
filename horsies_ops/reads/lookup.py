"""Finding a task or a run by the short form of its id, which is what people see and type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from horsies.model.ids import SHORT_FORM_DIGITS
from horsies.store.queries import Query, load

if TYPE_CHECKING:
    from uuid import UUID

    from horsies.store.db import Database

NEWEST_LOOKED_AT: Final = 10_000
"""How many of the newest tasks, or runs, are looked through, beside all that have not ended."""

MOST_FOUND: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A task or a run that fits, with enough to tell it from the others."""

    id: UUID
    name: str
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupQueries:
    ending: Query[Found]
    runs_ending: Query[Found]


LOOKUP = load(LookupQueries, "horsies_ops.reads", "lookup")


def is_short_form(text: str) -> bool:
    return len(text) == SHORT_FORM_DIGITS and all(digit in "0123456789abcdefABCDEF" for digit in text)


async def tasks_ending(database: Database, short_form: str) -> tuple[Found, ...]:
    """The tasks whose id ends in these eight digits, newest first; older ones that have ended are not looked at."""
    return await _ending(database, LOOKUP.ending, short_form)


async def runs_ending(database: Database, short_form: str) -> tuple[Found, ...]:
    """The same for runs of workflows."""
    return await _ending(database, LOOKUP.runs_ending, short_form)


async def _ending(database: Database, query: Query[Found], short_form: str) -> tuple[Found, ...]:
    if not is_short_form(short_form):
        raise ValueError(f"{short_form!r} is no short form of an id")
    return tuple(await database.fetch(query, short_form.lower(), NEWEST_LOOKED_AT, MOST_FOUND))
