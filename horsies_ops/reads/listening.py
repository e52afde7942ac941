"""What changes, as it changes: notifications for as long as they arrive, a steady tick where they do not."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import datetime
    from uuid import UUID

    from horsies.store.db import Database
    from horsies.store.link import Link


class Topic(StrEnum):
    """What a change is about."""

    TASK_NEW = "task_new"
    """New work is due in `queue`."""
    TASK_DONE = "task_done"
    """The tasks `ids` have ended."""
    TASKS = "tasks"
    """`count` tasks of `queue` made the move `kind` from one status to another; `ids` are some of them."""
    BEATS = "beats"
    """The worker `worker_id` wrote `count` beats."""
    EVENT = "event"
    """An event of this `kind` was written down."""
    WORKFLOW = "workflow"
    """The run in `ids` came to an end or was paused."""
    FEED = "feed"
    """About the feed itself: `kind` is a `Feed`."""


class Feed(StrEnum):
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


def listen(database: Database, direct: Link) -> AsyncIterator[Change]:
    """Changes until the iterator is closed; `direct` goes past a pooler."""
    raise NotImplementedError
