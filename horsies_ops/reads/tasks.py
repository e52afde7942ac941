"""Tasks as operators see them: lists by filter, page by page, and everything about one."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from horsies.model.settings import RecoveryConfig
from horsies.model.task import TaskStatus, parse_id
from horsies.store.database import Database
from horsies.store.queries import Query, load_queries
from horsies.store.tasks import TASKS, AttemptRow
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.search import SEARCH_TIME_LIMIT, Match, SearchRange, search_ranges, sent_at_from_id, time_limit
from horsies_ops.reads.stale import RecoveryDecision, recovery_decision

NEWEST_SHOWN: Final = 100
"""How many beats and events of a task are read."""

EVERY_TASK: Final = TaskFilter()


class TaskOrder(StrEnum):
    """By the time of the send, which is the order of the ids."""

    NEWEST_FIRST = "newest"
    OLDEST_FIRST = "oldest"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSummary:
    """A task in a list."""

    id: UUID
    name: str
    queue: str
    status: str
    priority: int
    attempt_count: int
    retry_count: int
    max_retries: int
    crash_count: int
    error_code: str | None
    sent_at: datetime
    enqueued_at: datetime
    claimed_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    good_until: datetime | None
    next_retry_at: datetime | None
    worker_id: UUID | None
    worker_hostname: str | None
    worker_pid: int | None
    workflow_id: UUID | None
    flags_json: str
    age: timedelta
    last_beat_at: datetime | None
    """Of a claimed or running task; the claim and the start are the first beats."""
    silence: timedelta | None

    @property
    def flags(self) -> Mapping[str, bool]:
        return json.loads(self.flags_json)

    @property
    def due_in(self) -> timedelta | None:
        """How long a PENDING task must still wait before it may be claimed; None where nothing holds it back."""
        # The age was taken from the sending by the database's clock, so the two together are that clock's now.
        left = self.enqueued_at - (self.sent_at + self.age)
        return left if self.status == TaskStatus.PENDING and left > timedelta(0) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord(TaskSummary):
    """The row of a task, payload included; JSON columns as text, and parsed by the properties."""

    args_json: str
    kwargs_json: str
    result_json: str | None
    failed_reason: str | None
    claim_token: int
    claim_expires_at: datetime | None
    recovery_hold_until: datetime | None
    overlap_possible: bool
    no_restart: str | None
    options_json: str
    idempotency_key: str | None
    retry_of: UUID | None

    @property
    def args(self) -> list[Any]:
        return json.loads(self.args_json)

    @property
    def kwargs(self) -> dict[str, Any]:
        return json.loads(self.kwargs_json)

    @property
    def result(self) -> dict[str, Any] | None:
        return None if self.result_json is None else json.loads(self.result_json)

    @property
    def options(self) -> dict[str, Any]:
        """What was sent along: `retry_policy`, `timeout_ms`."""
        return json.loads(self.options_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRow:
    role: str
    sender_id: str
    claim_token: int
    at: datetime
    age: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEventRow:
    at: datetime
    kind: str
    evidence_json: str

    @property
    def evidence(self) -> dict[str, Any]:
        return json.loads(self.evidence_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDetail:
    """Everything about one task; attempts, beats and events come newest first."""

    task: TaskRecord
    attempts: tuple[AttemptRow, ...]
    beats: tuple[HeartbeatRow, ...]
    events: tuple[TaskEventRow, ...]
    recovery_decision: RecoveryDecision | None = None

    @property
    def last_beat(self) -> HeartbeatRow | None:
        """The newest beat that counts: one of the claim that the task is under, or was last."""
        return next((beat for beat in self.beats if beat.claim_token == self.task.claim_token), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPage:
    """Some of the matching tasks; `next` is what to give as `after` for those that follow, None at the end."""

    tasks: tuple[TaskSummary, ...]
    next: UUID | None
    searched_to: datetime | None = None
    """Where the time to search was over before the page was full: how far it came, as the time of that send."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReadQueries:
    summaries: Query[TaskSummary]
    detail: Query[TaskRecord]
    beats: Query[HeartbeatRow]
    events: Query[TaskEventRow]


TASK_READS = load_queries(TaskReadQueries, "horsies_ops.reads", "tasks")


async def list_tasks(
    database: Database,
    wanted: TaskFilter = EVERY_TASK,
    *,
    order: TaskOrder = TaskOrder.NEWEST_FIRST,
    after: UUID | None = None,
    limit: int = 50,
    max_search_time: timedelta | None = SEARCH_TIME_LIMIT,
) -> TaskPage:
    """A page of matching tasks.

    However large the table and however rare a match, each statement goes through a bounded number of rows; the page is
    gathered stretch by stretch, until it is full or the search has taken as long as `within`. None searches to the end.
    """
    if limit < 1:
        raise ValueError("limit must be at least 1")
    oldest_first = order is TaskOrder.OLDEST_FIRST
    # One more than asked for tells whether anything follows.
    ahead = search_ranges(database, wanted, oldest_first=oldest_first, after=after, max_matches=limit + 1)
    found, reached = await _gathered(ahead, limit + 1, max_search_time)
    following = found[limit - 1].id if len(found) > limit else reached
    matched = {match.id: match.status for match in found[:limit]}
    # One that moved since it matched may match no more.
    page = tuple(task for task in await tasks_by_id(database, matched) if task.status == matched[task.id])
    return TaskPage(
        tasks=page[::-1] if oldest_first else page,
        next=following,
        searched_to=sent_at_from_id(reached) if reached is not None and len(found) < limit else None,
    )


async def _gathered(
    ahead: AsyncGenerator[SearchRange], enough: int, within: timedelta | None
) -> tuple[list[Match], UUID | None]:
    """What matches, and the last row that was looked at where the search ended before the table did."""
    found: list[Match] = []
    is_over = time_limit(within)
    async for stretch in ahead:
        found += stretch.matches
        if len(found) >= enough or is_over():
            return found, stretch.last_id
    return found, None


async def tasks_by_id(database: Database, ids: Iterable[UUID]) -> tuple[TaskSummary, ...]:
    """These tasks, the newest first; those that are gone are left out."""
    wanted = list(ids)
    return tuple(await database.fetch(TASK_READS.summaries, wanted)) if wanted else ()


async def task_detail(
    database: Database, task_id: str | UUID, *, local_config: RecoveryConfig | None = None
) -> TaskDetail | None:
    """Everything about one task, or None where there is none; `ValueError` for what is no id.

    `local` are the settings by which it is judged where no worker lives.
    """
    identity = UUID(parse_id(str(task_id)))
    task = await database.fetch_one(TASK_READS.detail, identity)
    if task is None:
        return None
    return TaskDetail(
        task=task,
        attempts=tuple(await database.fetch(TASKS.attempts, identity)),
        beats=tuple(await database.fetch(TASK_READS.beats, identity, NEWEST_SHOWN)),
        events=tuple(await database.fetch(TASK_READS.events, identity, NEWEST_SHOWN)),
        recovery_decision=await recovery_decision(database, identity, local_config=local_config or RecoveryConfig()),
    )


# What tasks were given, for lists: many at once, and only what is short.

LONGEST: Final = 2_000
"""Bytes, as they are stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadPreview:
    """The arguments of one task; the documents are None where they are too long for a list."""

    id: UUID
    size: int
    """Bytes, as they are stored."""
    args_json: str | None
    kwargs_json: str | None

    @property
    def combined_arguments(self) -> Any:
        """The arguments as one value: by name, and under `args` those that have none. None where they are too long."""
        if self.args_json is None or self.kwargs_json is None:
            return None
        args: list[Any] = json.loads(self.args_json)
        kwargs: dict[str, Any] = json.loads(self.kwargs_json)
        return {"args": args, **kwargs} if args else kwargs


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadQueries:
    payloads: Query[PayloadPreview]


PAYLOADS = load_queries(PayloadQueries, "horsies_ops.reads", "payloads")


async def payload_previews(
    database: Database, ids: Iterable[UUID], *, longest: int = LONGEST
) -> dict[UUID, PayloadPreview]:
    """What each of these tasks was given; those that are gone are left out."""
    wanted = list(ids)
    found = await database.fetch(PAYLOADS.payloads, wanted, longest) if wanted else []
    return {payload.id: payload for payload in found}


# When live tasks last gave a sign of life.

_ROLES = {TaskStatus.CLAIMED: "claimer", TaskStatus.RUNNING: "runner"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LastHeartbeat:
    """The newest beat of the claim that a task is under; the claim and the start themselves are the first ones."""

    role: str
    at: datetime
    age: timedelta


async def last_heartbeats(database: Database, ids: Iterable[UUID]) -> dict[UUID, LastHeartbeat]:
    """The last beat of each of these tasks that is claimed or running."""
    return {
        task.id: LastHeartbeat(role=_ROLES[TaskStatus(task.status)], at=task.last_beat_at, age=task.silence)
        for task in await tasks_by_id(database, ids)
        if task.last_beat_at is not None and task.silence is not None
    }
