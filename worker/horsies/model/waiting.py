"""Why a PENDING task has not started: one rule over facts about its queue, the workers and the tasks ahead of it."""

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
    """What a task waits for. The first three hold it back, whatever the workers do."""

    DELAYED = "delayed"
    PAUSED = "paused"
    EXPIRED = "expired"
    UNSERVED = "unserved"
    QUEUE_LIMIT = "queue_limit"
    CLUSTER_LIMIT = "cluster_limit"
    BUSY = "busy"
    POSITION = "position"
    NEXT = "next"


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
