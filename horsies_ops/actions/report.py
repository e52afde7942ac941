"""What an action did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from horsies_ops.actions.plan import Skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionReport:
    """What came of an action. All that were skipped are counted, the first thousand of them named."""

    action: str
    matched: int
    affected: int
    skipped: tuple[Skipped, ...] = ()
    skipped_count: int = 0
    task_ids: tuple[UUID, ...] = ()
    """The tasks that were moved."""
    audit_id: int | None = None
    new_ids: tuple[UUID, ...] = ()
    """Of a retry: the tasks that were sent."""
    retried_nodes: int = 0
    """Of a workflow's retry: how many of its nodes run again."""
    is_dry_run: bool = False
    was_stopped: bool = False
    """It was told to stop, and some batches were left undone."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionProgress:
    """How far an action has come."""

    done: int
    total: int
    affected: int
    skipped: int
    task_ids: tuple[UUID, ...] = ()
    """The tasks that were moved so far, where tasks are what it moves."""
