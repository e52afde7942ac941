"""Why a task is not finished: what a PENDING one waits for, and who has a claimed or running one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from horsies.model.text import format_age

MAX_AHEAD_COUNTED: Final = 10_000
"""Most tasks counted that are ahead of a task."""
_MAX_NAMES_SHOWN: Final = 3


class WaitCause(StrEnum):
    """What a PENDING task waits for, or what is known about a claimed or running one.

    The first three hold it back, whatever the workers do.
    """

    DELAYED = "delayed"
    PAUSED = "paused"
    EXPIRED = "expired"
    UNSERVED = "unserved"
    QUEUE_LIMIT = "queue_limit"
    CLUSTER_LIMIT = "cluster_limit"
    BUSY = "busy"
    POSITION = "position"
    NEXT = "next"
    CLAIMED = "claimed"
    RUNNING = "running"
    HEARTBEAT = "heartbeat"
    SILENT = "silent"
    RECOVERY = "recovery"


class WaitReason(NamedTuple):
    """One reason, as a code and as a sentence."""

    cause: WaitCause
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitFacts:
    """What the claim of a PENDING task depends on."""

    queue: str
    due_in: timedelta | None
    """Time until it may be claimed; None if it is due."""
    is_retry: bool
    is_overdue: bool
    """Its `good_until` has passed: it will expire instead of running."""
    is_paused: bool
    paused_by: str | None
    pause_reason: str | None
    ahead: int
    """Due tasks of the queue that are claimed before it, counted up to MAX_AHEAD_COUNTED."""
    workers: int
    """Workers that respond and serve the queue."""
    silent_workers: int
    """Workers that serve the queue but missed their heartbeats."""
    slots: int
    """Processes of the workers that respond and serve the queue."""
    running: Mapping[str, int]
    """Tasks that these workers run, by name."""
    queue_in_flight: int
    queue_limit: int | None
    cluster_in_flight: int
    cluster_limit: int | None


def wait_reasons(facts: WaitFacts) -> tuple[WaitReason, ...]:
    """Return every reason why the task has not started, the most important first."""
    reasons = [WaitReason(cause, text) for cause, text in _blocks(facts)]
    if facts.ahead:
        more = "+" if facts.ahead >= MAX_AHEAD_COUNTED else ""
        tasks = "1 task of its queue is" if facts.ahead == 1 else f"{facts.ahead:,}{more} tasks of its queue are"
        reasons.append(WaitReason(WaitCause.POSITION, f"{tasks} ahead of it"))
    if not reasons:
        reasons.append(WaitReason(WaitCause.NEXT, "it is next: a worker claims it as soon as it looks for tasks"))
    return tuple(reasons)


def _blocks(facts: WaitFacts) -> Iterator[tuple[WaitCause, str]]:
    if facts.is_overdue:
        yield WaitCause.EXPIRED, "its good_until has passed: it will expire"
    if facts.due_in is not None:
        yield WaitCause.DELAYED, f"{'its retry is' if facts.is_retry else 'it is'} due in {format_age(facts.due_in)}"
    if facts.is_paused:
        by = f" by {facts.paused_by}" if facts.paused_by else ""
        reason = f": {facts.pause_reason}" if facts.pause_reason else ""
        yield WaitCause.PAUSED, f"queue {facts.queue} is paused{by}{reason}"
    if not facts.workers:
        silent = f"; {facts.silent_workers} that did is silent" if facts.silent_workers == 1 else ""
        silent = f"; {facts.silent_workers} that did are silent" if facts.silent_workers > 1 else silent
        yield WaitCause.UNSERVED, f"no worker serves queue {facts.queue}{silent}"
        return
    if facts.queue_limit is not None and facts.queue_in_flight >= facts.queue_limit:
        limit = f"{facts.queue_in_flight} of {facts.queue_limit} tasks in flight"
        yield WaitCause.QUEUE_LIMIT, f"queue {facts.queue} has reached its limit: {limit}"
    if facts.cluster_limit is not None and facts.cluster_in_flight >= facts.cluster_limit:
        limit = f"{facts.cluster_in_flight} of {facts.cluster_limit} tasks in flight"
        yield WaitCause.CLUSTER_LIMIT, f"all workers together have reached their limit: {limit}"
    if sum(facts.running.values()) >= facts.slots:
        slots = "the only slot is" if facts.slots == 1 else f"all {facts.slots} slots are"
        yield WaitCause.BUSY, f"{slots} busy with {_names(facts.running)}"


def _names(running: Mapping[str, int]) -> str:
    most = sorted(running.items(), key=lambda item: (-item[1], item[0]))
    shown = [name if number == 1 else f"{number} × {name}" for name, number in most[:_MAX_NAMES_SHOWN]]
    others = sum(number for _, number in most[_MAX_NAMES_SHOWN:])
    return ", ".join(shown) + (f" and {others} others" if others else "")


# Claimed and running tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerFacts:
    """The worker of a CLAIMED or RUNNING task, and what recovery will do with the task."""

    worker: str
    """Its short id."""
    process: str | None
    """Host and pid of the worker; None if its row is gone."""
    worker_state: str
    """`late` or `silent` if heartbeats are missing, else its state; `missing` if its row is gone."""
    worker_silence: timedelta | None
    """Age of the worker's last heartbeat, if the next one is overdue."""
    is_running: bool
    """False for a task that is claimed but not started."""
    child_pid: int | None
    """The child process that runs the task."""
    elapsed: timedelta
    """Since the claim or, if the task has started, the start."""
    attempt: int
    max_attempts: int
    heartbeat_age: timedelta
    heartbeat_interval: timedelta
    is_late: bool
    """Whether a heartbeat of the task is overdue."""
    due_in: timedelta
    """Time until recovery decides, if no heartbeat arrives."""
    decision: str
    """What recovery decides then."""
    has_reaper: bool
    """Whether a live worker recovers such tasks."""


def owner_reasons(facts: OwnerFacts, since_read: timedelta = timedelta(0)) -> tuple[WaitReason, ...]:
    """Return who has the task and, if heartbeats are overdue, what recovery will do with it and when."""
    return tuple(WaitReason(cause, text) for cause, text in _ownership(facts, since_read))


def _ownership(facts: OwnerFacts, since_read: timedelta) -> Iterator[tuple[WaitCause, str]]:
    process = f" ({facts.process})" if facts.process else ""
    elapsed = format_age(facts.elapsed + since_read)
    if not facts.is_running:
        yield WaitCause.CLAIMED, f"worker {facts.worker}{process} claimed it {elapsed} ago and has not started it"
    else:
        attempt = f"attempt {facts.attempt} of {facts.max_attempts}"
        child = "" if facts.child_pid is None else f" in child process {facts.child_pid}"
        yield WaitCause.RUNNING, f"worker {facts.worker}{process} has run it for {elapsed}{child}, {attempt}"
    last = f"last heartbeat {format_age(facts.heartbeat_age + since_read)} ago"
    yield WaitCause.HEARTBEAT, f"{last}, one is due every {format_age(facts.heartbeat_interval)}"
    if not facts.is_late and facts.worker_silence is None:
        return
    yield WaitCause.SILENT, _silence(facts, since_read)
    due_in = facts.due_in - since_read
    when = f"in {format_age(due_in)}, if no heartbeat arrives" if due_in > timedelta(0) else "with the next sweep"
    yield WaitCause.RECOVERY, f"{when}: {facts.decision}"
    if not facts.has_reaper:
        yield WaitCause.RECOVERY, "no live worker recovers it: start one, or sweep by hand"


def _silence(facts: OwnerFacts, since_read: timedelta) -> str:
    if facts.worker_state != "running" and facts.worker_silence is None:
        return f"its worker is {facts.worker_state}"
    if facts.worker_silence is None:
        return "its worker still sends heartbeats: the task may be blocked or busy, and still running"
    return f"its worker is {facts.worker_state}, last seen {format_age(facts.worker_silence + since_read)} ago"
