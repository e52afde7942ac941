"""What an action did: its name in the audit log, its report, and its progress while it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from horsies.model.operator_actions import Action

SWEEP, RELEASE, CLEANUP, SEND = "sweep", "release", "cleanup", "send"
PAUSE_QUEUE, RESUME_QUEUE = "pause_queue", "resume_queue"
PAUSE_WORKFLOW, RESUME_WORKFLOW = "pause_workflow", "resume_workflow"
CANCEL_WORKFLOW, RETRY_WORKFLOW = "cancel_workflow", "retry_workflow"
PAUSE_SCHEDULE, RESUME_SCHEDULE, RUN_SCHEDULE = "pause_schedule", "resume_schedule", "run_schedule"
BACKFILL_SCHEDULE, FORGET_SCHEDULE, SYNC_SCHEDULES = "backfill_schedule", "forget_schedule", "sync_schedules"
AUDITED_ACTIONS: Final = (
    *Action,
    *(SWEEP, RELEASE, CLEANUP, SEND, PAUSE_QUEUE, RESUME_QUEUE),
    *(PAUSE_WORKFLOW, RESUME_WORKFLOW, CANCEL_WORKFLOW, RETRY_WORKFLOW),
    *(PAUSE_SCHEDULE, RESUME_SCHEDULE, RUN_SCHEDULE, BACKFILL_SCHEDULE, FORGET_SCHEDULE, SYNC_SCHEDULES),
)
"""Names of all actions in the audit log."""


class Skipped(NamedTuple):
    """A task or run that an action did not change, and the code of the reason."""

    id: UUID
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionReport:
    """Result of an action. `skipped` lists at most MAX_NAMED_TASKS tasks, `skipped_count` counts all of them."""

    action: str
    matched: int
    affected: int
    skipped: tuple[Skipped, ...] = ()
    skipped_count: int = 0
    task_ids: tuple[UUID, ...] = ()
    """The tasks that were changed."""
    audit_id: int | None = None
    new_ids: tuple[UUID, ...] = ()
    """The tasks that a retry or a send created."""
    retried_nodes: int = 0
    """How many nodes a workflow retry runs again."""
    is_dry_run: bool = False
    was_stopped: bool = False
    """Stopped by the operator before the last batch."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionProgress:
    """How much of an action is done so far, in tasks or rows."""

    done: int
    total: int
    affected: int
    skipped: int
    task_ids: tuple[UUID, ...] = ()
    """The tasks changed so far; empty for actions on other rows."""
