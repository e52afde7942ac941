"""Events as they are written."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from horsies.errors import HorsiesError
from horsies_ops.reads.events import events
from horsies_ops.reads.listening import Feed, Topic, listen

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from datetime import timedelta

    from horsies.store.db import Database
    from horsies.store.link import Link
    from horsies_ops.reads.events import EventRow

AT_ONCE: Final = 1_000

OVERLAP: Final = 500
"""How far behind the last id is looked again, since a lower one may have been committed later."""


async def follow(
    database: Database, direct: Link, *, since: timedelta, kinds: Sequence[str] = ()
) -> AsyncGenerator[EventRow]:
    """The events of the time past, then each that is written, once; outages are waited out."""
    seen: OrderedDict[int, None] = OrderedDict()
    for row in await events(database, since=since, kinds=kinds, limit=AT_ONCE):
        seen[row.id] = None
        yield row
    async with aclosing(listen(database, direct)) as changes:
        async for change in changes:
            is_news = change.topic is Topic.EVENT or (change.topic is Topic.FEED and change.kind != Feed.LOST)
            for row in await _unseen(database, seen, since, kinds) if is_news else ():
                yield row


async def _unseen(
    database: Database, seen: OrderedDict[int, None], since: timedelta, kinds: Sequence[str]
) -> list[EventRow]:
    found: list[EventRow] = []
    after = max(seen, default=0) - OVERLAP
    try:
        while rows := await events(database, after=after, since=since, kinds=kinds, limit=AT_ONCE):
            found += [row for row in rows if row.id not in seen]
            after = rows[-1].id
    except HorsiesError:
        pass  # it is read again when the feed is back
    seen.update(dict.fromkeys(row.id for row in found))
    while len(seen) > 4 * OVERLAP:
        seen.popitem(last=False)
    return found
