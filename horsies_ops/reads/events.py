"""What happened, and what operators did."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from horsies.errors import HorsiesError
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database
from horsies.store.queries import Query, load_queries
from horsies_ops.reads.live import FeedStatus, Topic, listen

_LAST: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    id: int
    at: datetime
    kind: str
    task_id: UUID | None
    workflow_id: UUID | None
    worker_id: UUID | None
    claim_token: int | None
    queue: str | None
    evidence_json: str

    @property
    def evidence(self) -> dict[str, Any]:
        return json.loads(self.evidence_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One action of an operator."""

    id: int
    at: datetime
    actor: str
    host: str
    action: str
    reason: str | None
    filter_json: str | None
    dry_run: bool
    matched: int
    affected: int
    skipped: int
    via: str
    task_ids: Sequence[UUID]

    @property
    def filter(self) -> Any:
        return None if self.filter_json is None else json.loads(self.filter_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventReadQueries:
    events_after: Query[EventRow]
    latest_events: Query[EventRow]
    actions_after: Query[AuditRow]
    latest_actions: Query[AuditRow]


EVENT_READS = load_queries(EventReadQueries, "horsies_ops.reads", "events")


async def events(
    database: Database,
    *,
    after: int | None = None,
    before: int | None = None,
    kinds: Sequence[str] = (),
    task_id: UUID | None = None,
    since: timedelta | None = None,
    limit: int = 100,
) -> tuple[EventRow, ...]:
    """Events in the order of writing: those next after an id, else the last ones, where given before another.

    Ids are drawn before commit: one that is lower than another may appear after it.
    """
    wanted = (list(kinds) or None, task_id, since, limit)
    if after is not None:
        return tuple(await database.fetch(EVENT_READS.events_after, after, *wanted))
    return tuple(await database.fetch(EVENT_READS.latest_events, before or _LAST, *wanted))


async def audit(
    database: Database,
    *,
    after: int | None = None,
    before: int | None = None,
    actions: Sequence[str] = (),
    limit: int = 100,
) -> tuple[AuditRow, ...]:
    """Actions in the order in which they were begun, of some kinds where given; `after` and `before` as for events."""
    wanted = (list(actions) or None, limit)
    if after is not None:
        return tuple(await database.fetch(EVENT_READS.actions_after, after, *wanted))
    return tuple(await database.fetch(EVENT_READS.latest_actions, before or _LAST, *wanted))


# Events as they are written.

PAGE_SIZE: Final = 1_000

OVERLAP: Final = 500
"""How far behind the last id is looked again, since a lower one may have been committed later."""


async def tail_events(
    database: Database, direct_spec: ConnectionSpec, *, since: timedelta, kinds: Sequence[str] = ()
) -> AsyncGenerator[EventRow]:
    """The events of the time past, then each that is written, once; outages are waited out."""
    seen: OrderedDict[int, None] = OrderedDict()
    for row in await events(database, since=since, kinds=kinds, limit=PAGE_SIZE):
        seen[row.id] = None
        yield row
    async with aclosing(listen(database, direct_spec)) as changes:
        async for change in changes:
            is_news = change.topic is Topic.EVENT or (change.topic is Topic.FEED and change.kind != FeedStatus.LOST)
            for row in await _unseen(database, seen, since, kinds) if is_news else ():
                yield row


async def _unseen(
    database: Database, seen: OrderedDict[int, None], since: timedelta, kinds: Sequence[str]
) -> list[EventRow]:
    found: list[EventRow] = []
    after = max(seen, default=0) - OVERLAP
    try:
        while rows := await events(database, after=after, since=since, kinds=kinds, limit=PAGE_SIZE):
            found += [row for row in rows if row.id not in seen]
            after = rows[-1].id
    except HorsiesError:
        pass  # it is read again when the feed is back
    seen.update(dict.fromkeys(row.id for row in found))
    while len(seen) > 4 * OVERLAP:
        seen.popitem(last=False)
    return found
