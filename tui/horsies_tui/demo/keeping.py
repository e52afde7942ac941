"""The housekeeping of the invented system: what is old, what was written down, and tasks that are stuck."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from horsies.model.events import EventKind
from horsies.model.retention import Category, Cleaned, Portion, Windows
from horsies.model.settings import AppConfig
from horsies.model.task import TaskStatus
from horsies_ops.reads.events import EventRow
from horsies_ops.reads.storage import OpenTransaction, Storage, TableStorage
from horsies_ops.reads.upkeep import Upkeep
from horsies_tui.demo.catalogue import KINDS, WORKERS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from horsies_tui.demo.system import System

LAST_PASS: Final = timedelta(seconds=14)
LAST_RETENTION: Final = timedelta(minutes=41)
BYTES_A_ROW: Final = 900

_OLD = {Category.HEARTBEATS: 88_210, Category.WORKER_STATES: 51_004, Category.TASKS: 412_377, Category.EVENTS: 12_120}
_BLOCKED_S = (331, 302, 281)
_LOST = WORKERS[-1].id


class Keeping:
    """What lies about: rows that are past their time, and events that nobody has cleaned up."""

    def __init__(self, system: System) -> None:
        self.old = dict(_OLD)
        self.events: list[EventRow] = []
        self.blocked: set[UUID] = set()
        """Tasks that neither beat nor end, though their worker is well."""
        self._system = system

    def remember(self) -> None:
        """Invent what has been."""
        self._block_some()
        self._write(timedelta(minutes=58), EventKind.RETENTION_FINISHED, {"heartbeats": 4_112, "events": 310})
        self._write(
            timedelta(minutes=6), EventKind.WORKER_LOST, {"silence_s": 301, "state": "running"}, worker_id=_LOST
        )
        for ago_s, task_id in zip((340, 338, 75), self._system.order[-40:], strict=False):
            evidence = {"decision": "retry", "reason": "OWNER_LOST", "silence_s": 304.2}
            self._write(timedelta(seconds=ago_s), EventKind.TASK_RECOVERED, evidence, task_id=task_id)
        self._write(timedelta(seconds=70), EventKind.SWEEP_FINISHED, {"retry": 3}, worker_id=WORKERS[0].id)

    def clean(self) -> Cleaned:
        """Delete all of it; what that was."""
        taken = self.candidates()
        self.old.clear()
        self._write(timedelta(0), EventKind.RETENTION_FINISHED, taken.counts)
        return taken

    def candidates(self) -> Cleaned:
        """What is past its window."""
        settings, now = AppConfig(), self._system.now()
        portions = [
            Portion(
                category=category,
                window=window,
                rows=self.old.get(category, 0),
                bytes=self.old.get(category, 0) * BYTES_A_ROW,
                oldest_at=now - window * 1.04 if window and category in self.old else None,
                tables={category.table: self.old[category]} if category in self.old else {},
            )
            for category, window in Windows.of(settings.recovery, settings.retention)
        ]
        return Cleaned(portions=tuple(portions))

    def upkeep(self) -> Upkeep:
        now = self._system.now()
        deleted = [row.at for row in self.events if row.kind == EventKind.RETENTION_FINISHED]
        return Upkeep(
            at=now,
            config=AppConfig().recovery,
            last_pass_at=now - LAST_PASS,
            last_pass_by=WORKERS[0].id,
            last_retention_at=max(deleted, default=None),
        )

    def storage(self) -> Storage:
        vacuumed = self._system.now() - timedelta(minutes=11)
        tables = (
            ("horsies_tasks", 2_254_857_830, 1_600_000, 64_000),
            ("horsies_heartbeats", 325_058_560, 90_000, 55_000),
        )
        return Storage(
            tables=tuple(
                TableStorage(name=name, bytes=size, rows=rows, dead_rows=dead, last_vacuum_at=vacuumed)
                for name, size, rows, dead in tables
            ),
            notify_queue=0.0,
            longest_transaction=OpenTransaction(
                pid=8123, application_name="psql", state="idle in transaction", age=timedelta(seconds=41)
            ),
        )

    def _write(
        self,
        ago: timedelta,
        kind: EventKind,
        evidence: Mapping[str, object],
        *,
        task_id: UUID | None = None,
        worker_id: UUID | None = None,
    ) -> None:
        self.events.append(
            EventRow(
                id=len(self.events) + 1, at=self._system.now() - ago, kind=kind, task_id=task_id, workflow_id=None,
                worker_id=worker_id, claim_token=None, queue=None, evidence_json=json.dumps(evidence),
            )
        )  # fmt: skip

    def _block_some(self) -> None:
        """Loads that wait for a lock, or compute without ever coming up for air."""
        system, holder = self._system, WORKERS[2]
        kind = next(each for each in KINDS if each.name == "etl.load")
        for silence_s in _BLOCKED_S:
            then = system.now() - timedelta(seconds=silence_s)
            task = system.send(kind, at=then - timedelta(minutes=9))
            began = then - timedelta(minutes=8)
            system.move(
                task.id, TaskStatus.RUNNING, claimed_at=began, started_at=began, last_beat_at=then, claim_token=1,
                worker_id=holder.id, worker_hostname=holder.hostname, worker_pid=holder.pid,
            )  # fmt: skip
            self.blocked.add(task.id)
