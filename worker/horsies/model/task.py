"""The states of a task and every move between them.

Nothing changes a task's state but a move of this table; the store has a guarded statement for each. No move starts
from a terminal state: what has ended stays as it ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


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
class Move:
    """One row of the table: from any of `sources` to any of `targets`, by any of `actors`; no source is a new task."""

    number: str
    name: str
    sources: frozenset[TaskStatus]
    targets: frozenset[TaskStatus]
    actors: frozenset[Actor]


def _move(number: str, name: str, sources: set[TaskStatus], targets: set[TaskStatus], *actors: Actor) -> Move:
    return Move(number, name, frozenset(sources), frozenset(targets), frozenset(actors))


_RECOVERY = (Actor.REAPER, Actor.SWEEP)

MOVES: Final = (
    _move("T1", "enqueue", set(), {PENDING}, Actor.PRODUCER, Actor.SCHEDULER, Actor.WORKFLOW),
    _move("T2", "claim", {PENDING}, {CLAIMED}, Actor.CLAIM),
    _move("T3", "take over a lapsed lease", {CLAIMED}, {CLAIMED}, Actor.CLAIM),
    _move("T4", "start", {CLAIMED}, {RUNNING}, Actor.OWNER),
    _move("T5", "claim and start", {PENDING}, {RUNNING}, Actor.CLAIM),
    _move("T6", "release", {CLAIMED}, {PENDING}, Actor.OWNER),
    _move("T7", "recover a claim", {CLAIMED}, {PENDING}, *_RECOVERY),
    _move("T8", "expire when claimed", {CLAIMED}, {EXPIRED}, Actor.OWNER, Actor.REAPER),
    _move("T9", "expire", {PENDING}, {EXPIRED}, *_RECOVERY),
    _move("T10", "complete", {RUNNING}, {COMPLETED}, Actor.OWNER),
    _move("T11", "fail", {RUNNING}, {FAILED}, Actor.OWNER),
    _move("T12", "retry", {RUNNING}, {PENDING}, Actor.OWNER),
    _move("T13", "child died", {RUNNING}, {PENDING, FAILED}, Actor.OWNER),
    _move("T14", "time-out", {RUNNING}, {PENDING, FAILED}, Actor.OWNER),
    _move("T15", "shutdown", {RUNNING}, {PENDING, FAILED}, Actor.OWNER),
    _move("T16", "hand back unbegun", {RUNNING}, {PENDING}, Actor.OWNER),
    _move("T17", "recover a run", {RUNNING}, {PENDING, FAILED}, *_RECOVERY),
    # The reaper's part is healing: a task whose node is gone or has ended is an orphan.
    _move("T18", "cancel", {PENDING, CLAIMED}, {CANCELLED}, Actor.OPERATOR, Actor.WORKFLOW, Actor.REAPER),
    # The owner's and the reaper's part: a run paused or cancelled meanwhile lets its tasks end, not start again.
    _move("T19", "cancel a run", {RUNNING}, {CANCELLED}, Actor.OPERATOR, Actor.OWNER, *_RECOVERY),
    _move("T20", "expire by hand", {PENDING, CLAIMED}, {EXPIRED}, Actor.OPERATOR),
    _move("T21", "fail by hand", {PENDING, CLAIMED, RUNNING}, {FAILED}, Actor.OPERATOR),
    _move("T22", "requeue", {CLAIMED, RUNNING}, {PENDING}, Actor.OPERATOR),
)


def moves_between(source: TaskStatus, target: TaskStatus) -> tuple[Move, ...]:
    """The moves that lead from one state to another; none means that no statement may do it."""
    return tuple(move for move in MOVES if source in move.sources and target in move.targets)
