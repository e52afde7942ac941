"""The states of a task and every move between them.

Nothing changes a task's state but a move of this table; the store has a guarded statement for each. No move starts
from a terminal state: what has ended stays as it ended.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

from horsies.errors import ConfigurationError, ErrorCode, HorsiesError, TaskDefinitionError
from horsies.model.task_result import OutcomeCode, TaskError, TaskResult


class TaskStatus(StrEnum):
    """Where a task stands; the last four are final."""

    PENDING = "PENDING"
    CLAIMED = "CLAIMED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"

    @property
    def is_terminal(self) -> bool:
        return self in TASK_TERMINAL_STATES


PENDING, CLAIMED, RUNNING = TaskStatus.PENDING, TaskStatus.CLAIMED, TaskStatus.RUNNING
COMPLETED, FAILED = TaskStatus.COMPLETED, TaskStatus.FAILED
CANCELLED, EXPIRED = TaskStatus.CANCELLED, TaskStatus.EXPIRED

TASK_TERMINAL_STATES: Final = frozenset({COMPLETED, FAILED, CANCELLED, EXPIRED})


class TaskAttemptOutcome(StrEnum):
    """How one execution ended; WORKER_FAILURE when the child lives but could not produce an outcome."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    WORKER_FAILURE = "WORKER_FAILURE"


class Actor(StrEnum):
    """Who may make a move."""

    PRODUCER = "producer"
    SCHEDULER = "scheduler"
    WORKFLOW = "workflow"
    CLAIM = "claim"
    OWNER = "owner"
    REAPER = "reaper"
    SWEEP = "sweep"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Transition:
    """One row of the table: from any of `sources` to any of `targets`, by any of `actors`; no source is a new task."""

    number: str
    name: str
    sources: frozenset[TaskStatus]
    targets: frozenset[TaskStatus]
    actors: frozenset[Actor]


def _transition(
    number: str, name: str, sources: set[TaskStatus], targets: set[TaskStatus], *actors: Actor
) -> Transition:
    return Transition(number, name, frozenset(sources), frozenset(targets), frozenset(actors))


_RECOVERY = (Actor.REAPER, Actor.SWEEP)

TRANSITIONS: Final = (
    _transition("T1", "enqueue", set(), {PENDING}, Actor.PRODUCER, Actor.SCHEDULER, Actor.WORKFLOW),
    _transition("T2", "claim", {PENDING}, {CLAIMED}, Actor.CLAIM),
    _transition("T3", "take over a lapsed lease", {CLAIMED}, {CLAIMED}, Actor.CLAIM),
    _transition("T4", "start", {CLAIMED}, {RUNNING}, Actor.OWNER),
    _transition("T5", "claim and start", {PENDING}, {RUNNING}, Actor.CLAIM),
    _transition("T6", "release", {CLAIMED}, {PENDING}, Actor.OWNER),
    _transition("T7", "recover a claim", {CLAIMED}, {PENDING}, *_RECOVERY),
    _transition("T8", "expire when claimed", {CLAIMED}, {EXPIRED}, Actor.OWNER, Actor.REAPER),
    _transition("T9", "expire", {PENDING}, {EXPIRED}, *_RECOVERY),
    _transition("T10", "complete", {RUNNING}, {COMPLETED}, Actor.OWNER),
    _transition("T11", "fail", {RUNNING}, {FAILED}, Actor.OWNER),
    _transition("T12", "retry", {RUNNING}, {PENDING}, Actor.OWNER),
    _transition("T13", "child died", {RUNNING}, {PENDING, FAILED}, Actor.OWNER),
    _transition("T14", "time-out", {RUNNING}, {PENDING, FAILED}, Actor.OWNER),
    _transition("T15", "shutdown", {RUNNING}, {PENDING, FAILED}, Actor.OWNER),
    _transition("T16", "hand back unbegun", {RUNNING}, {PENDING}, Actor.OWNER),
    _transition("T17", "recover a run", {RUNNING}, {PENDING, FAILED}, *_RECOVERY),
    # The reaper's part is healing: a task whose node is gone or has ended is an orphan.
    _transition("T18", "cancel", {PENDING, CLAIMED}, {CANCELLED}, Actor.OPERATOR, Actor.WORKFLOW, Actor.REAPER),
    # The owner's and the reaper's part: a run paused or cancelled meanwhile lets its tasks end, not start again.
    _transition("T19", "cancel a run", {RUNNING}, {CANCELLED}, Actor.OPERATOR, Actor.OWNER, *_RECOVERY),
    _transition("T20", "expire by hand", {PENDING, CLAIMED}, {EXPIRED}, Actor.OPERATOR),
    _transition("T21", "fail by hand", {PENDING, CLAIMED, RUNNING}, {FAILED}, Actor.OPERATOR),
    _transition("T22", "requeue", {CLAIMED, RUNNING}, {PENDING}, Actor.OPERATOR),
)


def transitions_between(source: TaskStatus, target: TaskStatus) -> tuple[Transition, ...]:
    """The moves that lead from one state to another; none means that no statement may do it."""
    return tuple(move for move in TRANSITIONS if source in move.sources and target in move.targets)


# A task as seen from outside the engine: by its own code, by its sender, by an operator.


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """The task that is running here and now.

    `task_id` with `claim_token` names this attempt and no other: the material for side effects that must happen once.
    """

    task_id: str
    task_name: str
    queue_name: str
    attempt: int
    """From 1; counts every execution that began, this one included."""
    retry_count: int
    claim_token: int
    sent_at: datetime
    good_until: datetime | None
    timeout_ms: int | None
    worker_id: str
    flags: Mapping[str, bool]
    possible_overlap: bool
    """True when an earlier attempt could not be proven dead and may still be at work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAttemptInfo:
    """One execution that began and came to an end."""

    task_id: str
    attempt: int
    claim_token: int
    outcome: TaskAttemptOutcome
    will_retry: bool
    started_at: datetime
    finished_at: datetime
    error_code: str | None = None
    error_message: str | None = None
    failed_reason: str | None = None
    worker_id: str | None = None
    worker_hostname: str | None = None
    worker_pid: int | None = None
    worker_process_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """The row of a task at the moment of asking.

    `result`, `failed_reason` and `attempts` are None unless they were asked for; attempts come newest first.
    """

    task_id: str
    task_name: str
    status: TaskStatus
    queue_name: str
    priority: int
    retry_count: int
    max_retries: int
    crash_count: int
    flags: Mapping[str, bool]
    sent_at: datetime
    enqueued_at: datetime
    next_retry_at: datetime | None = None
    claimed_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    failed_at: datetime | None = None
    good_until: datetime | None = None
    worker_id: str | None = None
    worker_hostname: str | None = None
    worker_pid: int | None = None
    worker_process_name: str | None = None
    error_code: str | None = None
    workflow_id: str | None = None
    retry_of: str | None = None
    result: TaskResult[object, TaskError] | None = None
    failed_reason: str | None = None
    attempts: list[TaskAttemptInfo] | None = None


# Ids of tasks and runs: UUIDv7, whose order is the order in which they were made.

RANDOM_BYTES = 10
"""How many bytes of chance a new id wants."""

SHORT_FORM_DIGITS = 8

_RANDOM_BITS = 74
_LOW_BITS = 62
_LAST_GROUP_DIGITS = 12
_RANDOM_MASK = (1 << _RANDOM_BITS) - 1
_LOW_MASK = (1 << _LOW_BITS) - 1
_LAST_GROUP_MASK = (1 << 4 * _LAST_GROUP_DIGITS) - 1
_VARIANT = 2 << _LOW_BITS
_CANONICAL = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def next_id_value(time_ms: int, random_bytes: Callable[[int], bytes], previous: int | None = None) -> int:
    """The order of a new id of this millisecond: 48 bits of milliseconds, 74 of tail; above `previous` whatever the
    clock says.

    Where the clock has not moved on, or has gone back, it is the one after `previous`: as unique as that was, and a run
    of them borrows from the next millisecond only when the tail is full.
    """
    if previous is not None and time_ms <= previous >> _RANDOM_BITS:
        return previous + 1
    return (time_ms << _RANDOM_BITS) | (int.from_bytes(random_bytes(RANDOM_BYTES), "big") & _RANDOM_MASK)


def format_id(order: int) -> str:
    """The UUIDv7 of this order, in lower case."""
    high, low = (order >> _LOW_BITS).to_bytes(8, "big").hex(), (order & _LOW_MASK | _VARIANT).to_bytes(8, "big").hex()
    return f"{high[1:9]}-{high[9:13]}-7{high[13:]}-{low[:4]}-{low[4:]}"


def format_ids(first: int, count: int) -> list[str]:
    """So many ids in a row, from this order on."""
    node = first & _LAST_GROUP_MASK
    if node + count <= _LAST_GROUP_MASK:
        head = format_id(first)[:-_LAST_GROUP_DIGITS]
        return [f"{head}{each:012x}" for each in range(node, node + count)]
    return [format_id(order) for order in range(first, first + count)]


def parse_id(text: str) -> str:
    """The id in the lower-case form in which we hold ids; `ValueError` when the text is no UUID."""
    if not _CANONICAL.fullmatch(text):
        shown = repr(text[:40] + "…" if len(text) > 40 else text)
        raise ValueError(f"{shown} is no id: expected a UUID such as 01890a5d-ac96-774b-bcce-b302099a8057")
    return text.lower()


def short_form(task_id: str | UUID) -> str:
    """The last eight hex digits, for people; the first ones are a clock and look alike."""
    return str(task_id)[-SHORT_FORM_DIGITS:]


# Which queue a task goes to and how early it is claimed there.

DEFAULT_QUEUE = "default"
DEFAULT_PRIORITY = 100
"""Priorities run from 1, claimed first, to 100."""


def queue_fault(queue_name: str | None, configured: Mapping[str, int] | None) -> HorsiesError | None:
    """What is wrong with a task's queue, given the priorities of the custom queues; None of them is DEFAULT mode."""
    if configured is None:
        if queue_name is None:
            return None
        return ConfigurationError(
            f"queue_name {queue_name!r} given, but the app has only its default queue",
            code=ErrorCode.CONFIG_INVALID_QUEUE_MODE,
            hint=f"leave queue_name out, or add [queues.{queue_name}] in horsies.toml or custom_queues in AppConfig",
        )
    if queue_name is None:
        return ConfigurationError(
            "queue_name is missing, and the app has custom queues",
            code=ErrorCode.CONFIG_INVALID_QUEUE_MODE,
            hint=f"choose one of: {', '.join(sorted(configured))}",
        )
    if queue_name not in configured:
        return TaskDefinitionError(
            f"queue {queue_name!r} is not configured",
            code=ErrorCode.TASK_INVALID_QUEUE,
            hint=f"choose one of: {', '.join(sorted(configured))}",
        )
    return None


def effective_priority(*, sent_with: int | None, task: int | None, queue: int | None) -> int:
    """The most particular priority that was given: of this send, of the task, of its queue, else 100."""
    for priority in (sent_with, task, queue):
        if priority is not None:
            return priority
    return DEFAULT_PRIORITY


def is_priority(value: object) -> bool:
    """Whether value is an int of 1..100; a bool is not."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= DEFAULT_PRIORITY


# Until when a task is worth running.

# The database takes the first and the last moment for endless; a day less leaves every time zone room to show it.
EARLIEST_INSTANT = datetime.min.replace(tzinfo=UTC) + timedelta(days=1)
LATEST_INSTANT = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)


def check_good_until(good_until: datetime) -> None:
    """Refuse what is no time, has no time zone or is at the edge of time; one in the past is allowed, and expires."""
    if not isinstance(good_until, datetime) or good_until.utcoffset() is None:
        raise ValueError("good_until must have a time zone, such as datetime.now(timezone.utc) + timedelta(hours=1)")
    if not EARLIEST_INSTANT <= good_until <= LATEST_INSTANT:
        raise ValueError("good_until must be at least a day away from the earliest and the latest time there is")


def has_expired(good_until: datetime | None, at: datetime) -> bool:
    """Whether a task may no longer be started at this instant; `good_until` itself is already too late."""
    return good_until is not None and good_until <= at


def expired_error(*, task_id: str, good_until: datetime, worker_id: str | None = None) -> TaskError:
    """What is stored for a task that expired; the worker is named where one held the task."""
    return TaskError(
        error_code=OutcomeCode.TASK_EXPIRED,
        message=f"not started before its good_until, {good_until.isoformat()}",
        data={"task_id": task_id, "worker_id": worker_id},
    )
