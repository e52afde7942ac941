"""Events and the audit log: pages of both, and a tail of events."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from horsies.errors import HorsiesError
from horsies.store.queries import Query, json_object, json_value, load_queries
from horsies_ops.reads.changes import FeedStatus, Topic
from horsies_ops.reads.feed import listen

if TYPE_CHECKING:
    from horsies_ops.ops import Ops

PAGE_SIZE: Final = 1_000
OVERLAP: Final = 500
"""How many ids before the last one `tail_events` reads again: lower ids may be committed later."""
_MAX_ID: Final = (1 << 63) - 1


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
        return json_object(self.evidence_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One entry of the audit log."""

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
    db_role: str | None = None
    """The role that was logged in, set by the server; None for entries from before it was recorded."""
    client_addr: str | None = None
    """The address the server saw; None for a Unix socket."""

    @property
    def filter(self) -> Any:
        return json_value(self.filter_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventReadQueries:
    events_after: Query[EventRow]
    latest_events: Query[EventRow]
    actions_after: Query[AuditRow]
    latest_actions: Query[AuditRow]


EVENT_READS = load_queries(EventReadQueries, "horsies_ops.reads", "events")


async def events(
    ops: Ops,
    *,
    after: int | None = None,
    before: int | None = None,
    kinds: Sequence[str] = (),
    task_id: UUID | None = None,
    since: timedelta | None = None,
    limit: int = 100,
) -> tuple[EventRow, ...]:
    """Return events in id order: the first after id `after`, else the last, or the last before id `before`.

    Ids are assigned before commit, so an event may become visible after one with a higher id.
    """
    conditions = (list(kinds) or None, task_id, since, limit)
    if after is not None:
        return tuple(await ops.reader.fetch(EVENT_READS.events_after, after, *conditions))
    return tuple(await ops.reader.fetch(EVENT_READS.latest_events, before or _MAX_ID, *conditions))


async def audit(
    ops: Ops,
    *,
    after: int | None = None,
    before: int | None = None,
    actions: Sequence[str] = (),
    limit: int = 100,
) -> tuple[AuditRow, ...]:
    """Return audit entries in the order of their start; `after` and `before` work as in `events`."""
    conditions = (list(actions) or None, limit)
    if after is not None:
        return tuple(await ops.reader.fetch(EVENT_READS.actions_after, after, *conditions))
    return tuple(await ops.reader.fetch(EVENT_READS.latest_actions, before or _MAX_ID, *conditions))


async def tail_events(ops: Ops, *, since: timedelta, kinds: Sequence[str] = ()) -> AsyncGenerator[EventRow]:
    """Yield the events of the last `since`, then every new one, each once; continues after outages."""
    seen: OrderedDict[int, None] = OrderedDict()
    for row in await events(ops, since=since, kinds=kinds, limit=PAGE_SIZE):
        seen[row.id] = None
        yield row
    async with aclosing(listen(ops)) as changes:
        async for change in changes:
            # Also after a reconnect and on every poll, because notifications may have been missed.
            may_have_events = change.topic is Topic.EVENT or (
                change.topic is Topic.FEED and change.kind != FeedStatus.LOST
            )
            for row in await _read_unseen(ops, seen, since, kinds) if may_have_events else ():
                yield row


async def _read_unseen(
    ops: Ops, seen: OrderedDict[int, None], since: timedelta, kinds: Sequence[str]
) -> list[EventRow]:
    found: list[EventRow] = []
    after = max(seen, default=0) - OVERLAP
    try:
        while rows := await events(ops, after=after, since=since, kinds=kinds, limit=PAGE_SIZE):
            found += [row for row in rows if row.id not in seen]
            after = rows[-1].id
    except HorsiesError:
        pass  # read again when the feed is restored
    seen.update(dict.fromkeys(row.id for row in found))
    # Ids further back than OVERLAP are never read again.
    while len(seen) > 4 * OVERLAP:
        seen.popitem(last=False)
    return found
