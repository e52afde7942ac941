"""Changes: parsed notifications about tasks, heartbeats, events and workflow runs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, cast
from uuid import UUID

from horsies.model.events import EventKind

MAX_COUNT: Final = 1_000_000_000
"""A change counts for at most this many, whatever its notification says."""


class Topic(StrEnum):
    """The subject of a change."""

    TASK_NEW = "task_new"
    """A task is due in `queue`."""
    TASK_DONE = "task_done"
    """The tasks `ids` have finished."""
    STATUS_CHANGE = "tasks"
    """`count` tasks of `queue` made the transition `kind` from one status to another; `ids` are some of them."""
    HEARTBEATS = "heartbeats"
    """The worker `worker_id` wrote `count` heartbeats."""
    EVENT = "event"
    """An event of this `kind` was recorded."""
    WORKFLOW = "workflow"
    """The run in `ids` finished or was paused."""
    FEED = "feed"
    """The feed itself: `kind` is a `FeedStatus`."""


class FeedStatus(StrEnum):
    """State of the feed. After STARTED and RESTORED a reader must read everything: changes may have been missed.

    POLLING is one tick of the poll while notifications are not available.
    """

    STARTED = "started"
    POLLING = "polling"
    LOST = "lost"
    RESTORED = "restored"


_SECONDARY_KINDS: Final = (EventKind.OVERLAP_POSSIBLE, EventKind.TASK_POISONED)
"""Events that are recorded beside another one about the same change of status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A hint that something changed; `at` is the time of this process's clock."""

    topic: Topic
    kind: str
    at: datetime
    count: int = 1
    ids: tuple[UUID, ...] = ()
    """The run, or some of the tasks; `count` is the number of all."""
    queue: str | None = None
    from_status: str | None = None
    to_status: str | None = None
    worker_id: UUID | None = None
    detail: str | None = None
    """Why the feed is lost or polling."""


def parse_task_new(queue: str, at: datetime) -> Change:
    return Change(topic=Topic.TASK_NEW, kind=Topic.TASK_NEW, queue=queue, at=at)


def parse_task_done(payload: str, at: datetime) -> Change:
    ids = _ids(payload.split(","))
    return Change(topic=Topic.TASK_DONE, kind=Topic.TASK_DONE, ids=ids, count=len(ids), at=at)


def parse_workflow_done(payload: str, at: datetime) -> Change:
    return Change(topic=Topic.WORKFLOW, kind=Topic.WORKFLOW, ids=_ids([payload]), at=at)


def parse_event(payload: str, at: datetime) -> Change | None:
    """Parse a message about heartbeats, a status change or an event; None if it is malformed."""
    try:
        message = cast("dict[str, Any]", json.loads(payload))
        kind, count = str(message["kind"]), max(0, min(int(message.get("count", 1)), MAX_COUNT))
        ids, worker = _ids(message.get("ids") or ()), _ids([message.get("worker_id")])
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
    # A recovery may record several events about one change of status; only the first stands for the change.
    topic = Topic.STATUS_CHANGE if message.get("to") and kind not in _SECONDARY_KINDS else Topic.EVENT
    if kind == "heartbeats":
        topic = Topic.HEARTBEATS
    return Change(
        topic=topic,
        kind=kind,
        at=at,
        queue=_text(message.get("queue")),
        from_status=_text(message.get("from")),
        to_status=_text(message.get("to")),
        count=count,
        ids=ids,
        worker_id=worker[0] if worker else None,
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _ids(texts: Iterable[object]) -> tuple[UUID, ...]:
    """Return the valid ids and ignore the rest, because any database user can send a notification."""
    ids: list[UUID] = []
    for text in texts:
        try:
            ids.append(UUID(str(text)))
        except ValueError:
            continue
    return tuple(ids)
