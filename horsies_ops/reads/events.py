"""Events, the audit log, a tail of events, and the feed of changes."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID, uuid4

from horsies.errors import HorsiesError
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database
from horsies.store.listen import (
    EVENTS_CHANNEL,
    TASK_DONE_CHANNEL,
    TASK_NEW_CHANNEL,
    WORKFLOW_DONE_CHANNEL,
    Listener,
    notify,
)
from horsies.store.queries import Query, json_object, json_value, load_queries
from horsies_ops.reads.changes import (
    Change,
    FeedStatus,
    Topic,
    parse_event,
    parse_task_done,
    parse_task_new,
    parse_workflow_done,
)
from horsies_ops.reads.filters import GLOB_FIELDS, like_to_glob
from horsies_ops.reads.server import SERVER_READS

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
        """What selected the tasks, with the globs of a filter as the operator wrote them."""
        return _with_globs(json_value(self.filter_json))


def _with_globs(stored: Any) -> Any:
    """Return a stored selector or a part of it; a filter contains its globs as LIKE patterns."""
    if isinstance(stored, list):
        return [_with_globs(part) for part in cast("list[Any]", stored)]
    if not isinstance(stored, dict):
        return stored
    return {
        name: [like_to_glob(str(pattern)) for pattern in cast("list[Any]", value)]
        if name in GLOB_FIELDS and isinstance(value, list)
        else _with_globs(value)
        for name, value in cast("dict[str, Any]", stored).items()
    }


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


# The feed of changes


MAX_QUEUED_CHANGES: Final = 10_000
"""Changes buffered for a slow reader; more are dropped, because a change is only a hint to read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedTiming:
    """Intervals and timeouts of the feed, in seconds."""

    probe_interval_s: float = 15.0
    answer_timeout_s: float = 5.0
    poll_interval_s: float = 5.0
    initial_backoff_s: float = 0.5
    max_backoff_s: float = 10.0


DEFAULT_TIMING: Final = FeedTiming()


async def listen(ops: Ops, *, timing: FeedTiming = DEFAULT_TIMING) -> AsyncGenerator[Change]:
    """Yield changes as they happen, until the generator is closed.

    Reconnects after every failure, and reports that as changes of the topic FEED.
    """
    feed = _ChangeFeed(ops.reader, ops.direct_spec, timing)
    work = asyncio.gather(feed.listener.run(), feed.probe_and_poll())
    # Wakes the loop below if the feed fails.
    work.add_done_callback(lambda _: feed.changes.put_nowait(None))
    try:
        while (change := await feed.changes.get()) is not None:
            yield change
        await work  # raises the error that ended the feed
    finally:
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work


class _ChangeFeed:
    """A listener that is probed with notifications to itself; while it is down, the database is polled instead."""

    def __init__(self, database: Database, direct_spec: ConnectionSpec, timing: FeedTiming) -> None:
        self.changes: asyncio.Queue[Change | None] = asyncio.Queue()
        """None ends the feed."""
        self._database = database
        self._timing = timing
        self._probe_channel = f"horsies_probe_{uuid4().hex}"
        self._probe_received = asyncio.Event()
        self._is_listening = False
        self._has_listened = False
        self._listener_changed = asyncio.Event()
        channels: dict[str, Callable[[str], None]] = {
            TASK_NEW_CHANNEL: lambda queue: self._put(parse_task_new(queue, _now())),
            TASK_DONE_CHANNEL: lambda payload: self._put(parse_task_done(payload, _now())),
            WORKFLOW_DONE_CHANNEL: lambda payload: self._put(parse_workflow_done(payload, _now())),
            EVENTS_CHANNEL: lambda payload: self._put(parse_event(payload, _now())),
            self._probe_channel: lambda _: self._probe_received.set(),
        }
        self.listener = Listener(
            direct_spec,
            channels,
            on_change=self._on_listener_change,
            initial_backoff_s=timing.initial_backoff_s,
            max_backoff_s=timing.max_backoff_s,
        )

    async def probe_and_poll(self) -> None:
        """Probe the listener while it is connected, otherwise poll, until cancelled."""
        while True:
            await self._wait(self._timing.probe_interval_s if self._is_listening else self._timing.poll_interval_s)
            if self._is_listening:
                await self._probe()
            else:
                await self._poll()

    async def _wait(self, timeout_s: float) -> None:
        """Wait for the timeout, or until the listener connects or disconnects."""
        self._listener_changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._listener_changed.wait()

    async def _probe(self) -> None:
        self._probe_received.clear()
        try:
            async with asyncio.timeout(self._timing.answer_timeout_s):
                await notify(self._database, self._probe_channel)
                await self._probe_received.wait()
        except (TimeoutError, HorsiesError):
            self.listener.reconnect()

    async def _poll(self) -> None:
        try:
            async with asyncio.timeout(self._timing.answer_timeout_s):
                await self._database.fetch(SERVER_READS.now)
        except (TimeoutError, HorsiesError) as error:
            self._put_status(FeedStatus.LOST, error.message if isinstance(error, HorsiesError) else "database timeout")
        else:
            # The listener may have connected during the round trip.
            if not self._is_listening:
                self._put_status(FeedStatus.POLLING, self.listener.failure)

    def _on_listener_change(self, is_listening: bool) -> None:  # noqa: FBT001  # the only argument of the callback
        if is_listening:
            self._put_status(FeedStatus.RESTORED if self._has_listened else FeedStatus.STARTED)
            self._has_listened = True
        elif self._is_listening:  # only the first failure: every failed attempt to reconnect calls this again
            self._put_status(FeedStatus.LOST, self.listener.failure)
        self._is_listening = is_listening
        self._listener_changed.set()

    def _put_status(self, kind: FeedStatus, detail: str | None = None) -> None:
        self._put(Change(topic=Topic.FEED, kind=kind, at=_now(), detail=detail))

    def _put(self, change: Change | None) -> None:
        if change is not None and self.changes.qsize() < MAX_QUEUED_CHANGES:
            self.changes.put_nowait(change)


def _now() -> datetime:
    return datetime.now(UTC)
