"""When live tasks last gave a sign of life."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from horsies.model.task import TaskStatus
from horsies_ops.reads.tasks import tasks_by_id

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime, timedelta
    from uuid import UUID

    from horsies.store.db import Database

_ROLES = {TaskStatus.CLAIMED: "claimer", TaskStatus.RUNNING: "runner"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LastBeat:
    """The newest beat of the claim that a task is under; the claim and the start themselves are the first ones."""

    role: str
    at: datetime
    age: timedelta


async def beats_of(database: Database, ids: Iterable[UUID]) -> dict[UUID, LastBeat]:
    """The last beat of each of these tasks that is claimed or running."""
    return {
        task.id: LastBeat(role=_ROLES[TaskStatus(task.status)], at=task.last_beat_at, age=task.silence)
        for task in await tasks_by_id(database, ids)
        if task.last_beat_at is not None and task.silence is not None
    }
