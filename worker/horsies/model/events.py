"""What other processes learn of a worker: the rows of `horsies_events` and the task changes sent by NOTIFY."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Final
from uuid import UUID

from horsies.model.task import TaskStatus


class EventKind(StrEnum):
    """The kinds of rows in `horsies_events`; some are written by SQL, workflows or the scheduler."""

    LATE_RESULT_REFUSED = "late_result_refused"
    LATE_BEAT_REFUSED = "late_beat_refused"
    TASK_RECOVERED = "task_recovered"
    TASK_POISONED = "task_poisoned"
    TASK_UNKNOWN = "task_unknown"
    CHILD_DIED = "child_died"
    OVERLAP_POSSIBLE = "overlap_possible"
    WORKER_LOST = "worker_lost"
    WORKER_RETURNED = "worker_returned"
    SWEEP_FINISHED = "sweep_finished"
    OUTAGE_GRACE_STARTED = "outage_grace_started"
    OUTAGE_GRACE_ENDED = "outage_grace_ended"
    LISTENER_DEGRADED = "listener_degraded"
    LISTENER_RESTORED = "listener_restored"
    OPERATION_DISABLED = "operation_disabled"
    OPERATION_ENABLED = "operation_enabled"
    HOOK_FAILED = "hook_failed"
    RECOVERY_REFUSED = "recovery_refused"
    FLEET_MISMATCH = "fleet_mismatch"
    WORKFLOW_HEALED = "workflow_healed"
    OUTBOX_QUARANTINED = "outbox_quarantined"
    WORKFLOW_RETRIED = "workflow_retried"
    RETENTION_FINISHED = "retention_finished"
    SCHEDULE_SKIPPED = "schedule_skipped"
    SCHEDULE_REFUSED = "schedule_refused"
    SCHEDULE_PAUSED = "schedule_paused"
    SCHEDULE_RETIRED = "schedule_retired"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """A row of `horsies_events`; `evidence` holds the fields without a column of their own, as JSON values."""

    kind: str
    """An `EventKind`."""
    task_id: UUID | str | None = None
    workflow_id: UUID | str | None = None
    worker_id: UUID | str | None = None
    claim_token: int | None = None
    queue_name: str | None = None
    evidence: Mapping[str, object] = field(default_factory=dict[str, object])


# Task changes, aggregated for NOTIFY

MAX_QUEUE_CHARS: Final = 255
"""PostgreSQL rejects payloads of 8,000 bytes or more; a name of this length is at most 3,060 bytes of JSON."""
MAX_IDS: Final = 16
PUBLISH_INTERVAL_S: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskChange:
    """A status change of tasks in one queue; `kind` is what caused it (`claim`), `source` is None for new tasks."""

    kind: str
    queue: str
    source: TaskStatus | None
    target: TaskStatus


@dataclass(slots=True)
class _ChangeCount:
    count: int
    ids: list[str]


class ChangeSummary:
    """Aggregates task changes into NOTIFY payloads, at most four times a second. Times are monotonic seconds."""

    def __init__(self, *, on_added: Callable[[], None] = lambda: None) -> None:
        self._on_added = on_added
        self._counts: dict[TaskChange, _ChangeCount] = {}
        self._published_at: float | None = None

    def add(self, change: TaskChange, task_ids: Collection[object]) -> None:
        """Count changed tasks and keep the first `MAX_IDS` of their ids."""
        total = self._counts.setdefault(change, _ChangeCount(0, []))
        total.count += len(task_ids)
        missing = MAX_IDS - len(total.ids)
        if missing > 0:
            total.ids += map(str, islice(task_ids, missing))
        self._on_added()

    def due_at(self) -> float | None:
        """When `drain` will return payloads; None if there are no changes, minus infinity for immediately."""
        if not self._counts:
            return None
        return float("-inf") if self._published_at is None else self._published_at + PUBLISH_INTERVAL_S

    def drain(self, now: float) -> list[str]:
        """Return the payloads to send now, one per change; empty before `due_at`."""
        due_at = self.due_at()
        if due_at is None or now < due_at:
            return []
        # A payload that cannot be sent is lost: changes are hints, and readers also poll.
        counts, self._counts, self._published_at = self._counts, {}, now
        return [_payload(change, total) for change, total in counts.items()]


def _payload(change: TaskChange, total: _ChangeCount) -> str:
    # The queue name comes from rows that others may have written, and can be long.
    queue = change.queue[:MAX_QUEUE_CHARS]
    message = {"kind": change.kind, "queue": queue, "from": change.source, "to": change.target}
    return json.dumps(message | {"count": total.count, "ids": total.ids}, separators=(",", ":"))
