"""Tasks: pages by filter, details of one task and previews of arguments."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from uuid import UUID

from horsies.model.task import TaskAttemptInfo, TaskStatus, parse_id
from horsies.model.waiting import MAX_AHEAD_COUNTED, OwnerFacts, WaitFacts, WaitReason, owner_reasons, wait_reasons
from horsies.recovery.report import SweptTask
from horsies.store.queries import Query, json_list, json_object, json_value, load_queries
from horsies.store.recovery import RecoveryStore
from horsies.store.tasks import TASKS
from horsies_ops.reads.events import EventRow
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.reads.search import (
    EVERY_TASK,
    SEARCH_TIME_LIMIT,
    Match,
    SearchRange,
    search_ranges,
    sent_at_from_id,
    time_limit,
)
from horsies_ops.reads.stale import ownership

if TYPE_CHECKING:
    from horsies_ops.ops import Ops

MAX_DETAIL_ROWS: Final = 100
"""How many heartbeats and events of a task are read, each."""
MAX_PREVIEW_BYTES: Final = 2_000


class TaskOrder(StrEnum):
    """By time of sending, which is the order of the ids."""

    NEWEST_FIRST = "newest"
    OLDEST_FIRST = "oldest"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSummary:
    """A task in a list."""

    id: UUID
    name: str
    queue: str
    status: str
    error_code: str | None
    priority: int
    attempt_count: int
    retry_count: int
    max_retries: int
    crash_count: int
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
    last_heartbeat_at: datetime | None
    """Of a claimed or running task; the claim and the start count as the first heartbeats."""
    silence: timedelta | None

    @property
    def flags(self) -> Mapping[str, bool]:
        return json_object(self.flags_json)

    @property
    def read_at(self) -> datetime:
        """When the row was read, by the database clock."""
        return self.sent_at + self.age

    @property
    def due_in(self) -> timedelta | None:
        """Time until a delayed PENDING task may be claimed; None for any other."""
        left = self.enqueued_at - self.read_at
        return left if self.status == TaskStatus.PENDING and left > timedelta(0) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord(TaskSummary):
    """The full row of a task; JSON columns are text, parsed by the properties."""

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
        return json_list(self.args_json)

    @property
    def kwargs(self) -> dict[str, Any]:
        return _shown_object(self.kwargs_json)

    @property
    def result(self) -> dict[str, Any] | None:
        return None if self.result_json is None else _shown_object(self.result_json)

    @property
    def options(self) -> dict[str, Any]:
        """`retry_policy` and `timeout_ms`, as sent."""
        return json_object(self.options_json)


def _shown_object(text: str) -> dict[str, Any]:
    """Parse a stored JSON object; anything else is shown under a key that says so."""
    value = json_value(text)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {"(malformed)": value}


class HeartbeatRow(NamedTuple):
    """A stored heartbeat of a task; its age is that at the time of reading."""

    role: str
    sender_id: str
    claim_token: int
    at: datetime
    age: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDetail:
    """Everything about one task; attempts, heartbeats and events are newest first."""

    task: TaskRecord
    attempts: tuple[TaskAttemptInfo, ...]
    heartbeats: tuple[HeartbeatRow, ...]
    events: tuple[EventRow, ...]
    recovery_decision: SweptTask | None = None
    forecast: SweptTask | None = None
    """What recovery does with a claimed or running task, and when, if it sends no further heartbeat."""
    owner: OwnerFacts | None = None
    """Who has a claimed or running task."""
    wait_reasons: tuple[WaitReason, ...] = ()
    """Why a PENDING task has not started, the most important first; empty for any other."""
    parameters_json: str | None = None
    """The parameters of the function by name; None if no worker has registered the task."""

    def reasons(self, since_read: timedelta = timedelta(0)) -> tuple[WaitReason, ...]:
        """Return why the task is not finished: what it waits for, or who has it; ages grow by `since_read`."""
        return self.wait_reasons if self.owner is None else owner_reasons(self.owner, since_read)

    @property
    def reasons_title(self) -> str:
        """The question that `reasons` answer."""
        if self.owner is None:
            return "Why is it waiting?"
        return "Who runs it?" if self.owner.is_running else "Who has it?"

    @property
    def positional_arguments(self) -> dict[str, Any]:
        return name_arguments(self.task.args, self.parameters_json)

    @property
    def arguments(self) -> dict[str, Any]:
        """All arguments by name; without known names, the positional ones are under `args`."""
        return _combine_arguments(self.task.args_json, self.task.kwargs_json, self.parameters_json)

    @property
    def last_heartbeat(self) -> HeartbeatRow | None:
        """The newest heartbeat of the current or last claim; heartbeats of earlier claims do not count."""
        return next((row for row in self.heartbeats if row.claim_token == self.task.claim_token), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPage:
    """A page of matching tasks; pass `next` as `after` to get the following page, None means the end."""

    tasks: tuple[TaskSummary, ...]
    next: UUID | None
    searched_to: datetime | None = None
    """Set if the time limit ended the search before the page was full: tasks sent up to here were examined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadPreview:
    """The arguments of one task; `args_json` and `kwargs_json` are None if they are too long for a list."""

    id: UUID
    size: int
    """Stored size in bytes."""
    args_json: str | None
    kwargs_json: str | None
    parameters_json: str | None = None

    @property
    def arguments(self) -> dict[str, Any] | None:
        """As in `TaskDetail`; None if they are too long."""
        if self.args_json is None or self.kwargs_json is None:
            return None
        return _combine_arguments(self.args_json, self.kwargs_json, self.parameters_json)


def _combine_arguments(args_json: str, kwargs_json: str, parameters_json: str | None) -> dict[str, Any]:
    args, kwargs = json_list(args_json), _shown_object(kwargs_json)
    named = name_arguments(args, parameters_json)
    # A name given twice, which no valid call has, must not hide a value.
    positional = {f"{name} (positional)" if name in kwargs else name: value for name, value in named.items()}
    return positional | kwargs


def name_arguments(args: Sequence[Any], parameters_json: str | None) -> dict[str, Any]:
    """Return positional arguments by the names of their parameters, so that secrets are masked by name.

    Without known parameters, all are under `args`.
    """
    parameters: dict[str, Any] = json_object(parameters_json) if parameters_json else {}
    if not parameters:
        return {"args": list(args)} if args else {}
    if not all("position" in parameter for parameter in parameters.values()):
        # Registered by an older worker: any argument may belong to any parameter, also to a secret one.
        return {f"args[{index}] of {', '.join(parameters)}": value for index, value in enumerate(args)}
    ordered = sorted(parameters, key=lambda name: parameters[name]["position"])
    names = [name for name in ordered if parameters[name]["kind"] in ("positional_only", "positional_or_keyword")]
    rest = next((name for name in ordered if parameters[name]["kind"] == "var_positional"), "args")
    surplus = {f"{rest}[{index}]": value for index, value in enumerate(args[len(names) :])}
    return dict(zip(names, args, strict=False)) | surplus


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReadQueries:
    summaries: Query[TaskSummary]
    detail: Query[TaskRecord]
    heartbeats: Query[HeartbeatRow]
    events: Query[EventRow]
    payload_previews: Query[PayloadPreview]
    parameters: Query[str]
    wait_facts: Query[WaitFacts]


TASK_READS = load_queries(TaskReadQueries, "horsies_ops.reads", "tasks")


async def list_tasks(
    ops: Ops,
    filter: TaskFilter = EVERY_TASK,  # noqa: A002  # the documented name
    *,
    order: TaskOrder = TaskOrder.NEWEST_FIRST,
    after: UUID | None = None,
    limit: int = 50,
    max_search_time: timedelta | None = SEARCH_TIME_LIMIT,
) -> TaskPage:
    """Return a page of matching tasks; pass its `next` as `after` to get the following page.

    For tasks newer than a given one, use the opposite order with that task as `after`. Each statement examines a
    limited number of rows, however large the table and however rare a match. If matches are rare, the search ends after
    `max_search_time` with an incomplete page, whose `searched_to` says how far it got; None means no time limit.
    """
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    oldest_first = order is TaskOrder.OLDEST_FIRST
    # One more than requested, to know whether there is a next page.
    ranges = search_ranges(ops.reader, filter, oldest_first=oldest_first, after=after, max_matches=limit + 1)
    found, last_examined = await _collect_matches(ranges, limit + 1, max_search_time)
    statuses = {match.id: match.status for match in found[:limit]}
    # A task whose status changed since it matched may no longer match.
    page = tuple(task for task in await tasks_by_id(ops, statuses) if task.status == statuses[task.id])
    return TaskPage(
        tasks=page[::-1] if oldest_first else page,
        # If time ran out, the next page starts after the last row examined, whether it matched or not.
        next=found[limit - 1].id if len(found) > limit else last_examined,
        searched_to=sent_at_from_id(last_examined) if last_examined is not None and len(found) < limit else None,
    )


async def _collect_matches(
    ranges: AsyncGenerator[SearchRange], count: int, max_search_time: timedelta | None
) -> tuple[list[Match], UUID | None]:
    """Return matches, and the last row examined if the search stopped before the end of the table."""
    found: list[Match] = []
    is_out_of_time = time_limit(max_search_time)
    async for searched in ranges:
        found += searched.matches
        if len(found) >= count or is_out_of_time():
            return found, searched.last_id
    return found, None


async def tasks_by_id(ops: Ops, ids: Iterable[UUID]) -> tuple[TaskSummary, ...]:
    """Return these tasks, newest first, without those that no longer exist."""
    task_ids = list(ids)
    return tuple(await ops.reader.fetch(TASK_READS.summaries, task_ids)) if task_ids else ()


async def task(ops: Ops, task_id: str | UUID) -> TaskDetail | None:
    """Return everything about one task, None if it does not exist; raises ValueError for a malformed id."""
    task_uuid, database = UUID(parse_id(str(task_id))), ops.reader
    record = await database.fetch_one(TASK_READS.detail, task_uuid)
    if record is None:
        return None
    owned = await ownership(ops, task_uuid)
    return TaskDetail(
        task=record,
        attempts=tuple(await database.fetch(TASKS.attempts, task_uuid)),
        heartbeats=tuple(await database.fetch(TASK_READS.heartbeats, task_uuid, MAX_DETAIL_ROWS)),
        events=tuple(await database.fetch(TASK_READS.events, task_uuid, MAX_DETAIL_ROWS)),
        recovery_decision=owned and owned.decision,
        forecast=owned and owned.forecast,
        owner=owned and owned.facts,
        wait_reasons=await _wait_reasons(ops, record),
        parameters_json=await database.fetch_one(TASK_READS.parameters, record.name),
    )


async def _wait_reasons(ops: Ops, record: TaskRecord) -> tuple[WaitReason, ...]:
    if record.status != TaskStatus.PENDING:
        return ()
    fleet = await RecoveryStore(ops.reader).fleet()
    facts = await ops.reader.fetch_one(TASK_READS.wait_facts, record.id, fleet.responsive_ids, MAX_AHEAD_COUNTED)
    # None: it was claimed meanwhile.
    return () if facts is None else wait_reasons(facts)


async def payload_previews(
    ops: Ops, ids: Iterable[UUID], *, max_bytes: int = MAX_PREVIEW_BYTES
) -> dict[UUID, PayloadPreview]:
    """Return the arguments of these tasks, if they are short enough for a list."""
    task_ids = list(ids)
    rows = await ops.reader.fetch(TASK_READS.payload_previews, task_ids, max_bytes) if task_ids else []
    return {row.id: row for row in rows}
