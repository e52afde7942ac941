"""What a notification says has changed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, cast
from uuid import UUID


class Topic(StrEnum):
    """What a change is about."""

    TASK_NEW = "task_new"
    """New work is due in `queue`."""
    TASK_DONE = "task_done"
    """The tasks `ids` have ended."""
    STATUS_CHANGE = "tasks"
    """`count` tasks of `queue` made the move `kind` from one status to another; `ids` are some of them."""
    HEARTBEATS = "heartbeats"
    """The worker `worker_id` wrote `count` beats."""
    EVENT = "event"
    """An event of this `kind` was written down."""
    WORKFLOW = "workflow"
    """The run in `ids` came to an end or was paused."""
    FEED = "feed"
    """About the feed itself: `kind` is a `Feed`."""


class FeedStatus(StrEnum):
    """How changes arrive; after LIVE and RESTORED whoever listens must look for themselves once."""

    LIVE = "live"
    POLLING = "polling"
    """No notifications can be had; this is one tick of the poll."""
    LOST = "lost"
    RESTORED = "restored"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something that changed, a hint and no more; `at` is by this process's clock."""

    topic: Topic
    kind: str
    at: datetime
    queue: str | None = None
    from_status: str | None = None
    to_status: str | None = None
    count: int = 1
    ids: tuple[UUID, ...] = ()
    worker_id: UUID | None = None
    detail: str | None = None
    """Why a feed was lost."""


def parse_task_new(queue: str, at: datetime) -> Change:
    return Change(topic=Topic.TASK_NEW, kind=Topic.TASK_NEW, queue=queue, at=at)


def parse_task_done(payload: str, at: datetime) -> Change:
    ids = _ids(payload.split(","))
    return Change(topic=Topic.TASK_DONE, kind=Topic.TASK_DONE, ids=ids, count=len(ids), at=at)


def parse_workflow_done(payload: str, at: datetime) -> Change:
    return Change(topic=Topic.WORKFLOW, kind=Topic.WORKFLOW, ids=_ids([payload]), at=at)


def parse_event(payload: str, at: datetime) -> Change | None:
    """Beats, a move of tasks, or an event that was written down; None for what none of ours has said."""
    try:
        said = cast("dict[str, Any]", json.loads(payload))
        kind, count = str(said["kind"]), int(said.get("count", 1))
        ids, worker = _ids(said.get("ids") or ()), _ids([said.get("worker_id")])
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return Change(
        topic=_topic(kind, said),
        kind=kind,
        at=at,
        queue=_text(said.get("queue")),
        from_status=_text(said.get("from")),
        to_status=_text(said.get("to")),
        count=count,
        ids=ids,
        worker_id=worker[0] if worker else None,
    )


def _topic(kind: str, said: dict[str, Any]) -> Topic:
    if kind == "heartbeats":
        return Topic.HEARTBEATS
    return Topic.STATUS_CHANGE if said.get("to") else Topic.EVENT


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _ids(texts: Iterable[object]) -> tuple[UUID, ...]:
    """Those that are ids; anyone may send a notification."""
    found: list[UUID] = []
    for text in texts:
        try:
            found.append(UUID(str(text)))
        except ValueError:
            continue
    return tuple(found)
