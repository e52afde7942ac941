"""The sweep at an operator's word: the same decision as in a worker, and on record."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from uuid import UUID

from horsies.app import Horsies
from horsies.errors import Busy
from horsies.model.events import EventKind
from horsies.model.recovery.fleet import OperatorObserver, SweepOptions
from horsies.model.settings import RecoveryConfig
from horsies.recovery.hooks import HookCaller, HookFailure, log_failure
from horsies.recovery.report import SweepReport, SweepStatus
from horsies.recovery.sweep import WorkflowHealing, sweep
from horsies.store.database import Database, Transaction
from horsies.store.operators import AuditEntry, AuditProgress, EventStore, StoredEvent, record_audit
from horsies_ops.actions.apply import OperatorSession
from horsies_ops.actions.plan import Skipped
from horsies_ops.actions.report import ActionReport

SWEEP, RELEASE = "sweep", "release"
MAX_SKIPPED_LISTED = 1000
"""How many of the skipped a report names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweeper:
    """An operator's sweep of one database, with the settings and the app of this side."""

    session: OperatorSession
    reader: Database
    """For dry runs, which the database itself keeps from writing."""
    local_config: RecoveryConfig
    app: Horsies | None = None

    async def sweep(
        self, options: SweepOptions, *, reason: str | None = None, stop: asyncio.Event | None = None
    ) -> SweepReport:
        """Settle what is stale, and put on record what was done; a dry run leaves no trace at all."""
        report, _ = await self._sweep_audited(options, SWEEP, reason, stop)
        return report

    async def release(self, worker_id: UUID, *, reason: str | None = None) -> ActionReport:
        """Settle what is stale of one worker; `Busy` while somebody else sweeps."""
        report, audit_id = await self._sweep_audited(SweepOptions(worker_id=worker_id), RELEASE, reason)
        if report.status is SweepStatus.BUSY:
            raise Busy("somebody else is sweeping", hint="try again in a minute")
        moved = tuple(task.task_id for task in report.tasks if task.changes_state and task.applied)
        left = tuple(Skipped(task.task_id, task.reason) for task in report.tasks if task.task_id not in moved)
        return ActionReport(
            action=RELEASE,
            matched=len(report.tasks),
            affected=len(moved),
            skipped=left[:MAX_SKIPPED_LISTED],
            skipped_count=len(left),
            task_ids=moved,
            audit_id=audit_id,
            warnings=report.warnings,
        )

    async def _sweep_audited(
        self, options: SweepOptions, action: str, reason: str | None = None, stop: asyncio.Event | None = None
    ) -> tuple[SweepReport, int | None]:
        if options.dry_run:
            return await self._sweep(self.reader, options, stop=stop), None
        self.session.require_writable()
        deed = AuditEntry(
            operator=self.session.operator, action=action, reason=reason, filter=_audit_filter(options), matched=0
        )
        record = _SweepAudit(self.session, deed)
        return await self._sweep(self.session.database, options, record, stop), record.audit_id

    async def _sweep(
        self,
        database: Database,
        options: SweepOptions,
        record: _SweepAudit | None = None,
        stop: asyncio.Event | None = None,
    ) -> SweepReport:
        failed: list[HookFailure] = []
        hooks = None if self.app is None else HookCaller(self.app.recovery_hooks, on_failure=failed.append)
        judge, healing = OperatorObserver(local_config=self.local_config), WorkflowHealing.for_operator(database)
        try:
            return await sweep(
                database, options, observer=judge, hooks=hooks, healing=healing, record=record, stop=stop
            )
        finally:
            for failure in failed:
                log_failure(failure)
                if not options.dry_run:
                    await EventStore(database).record(_event(failure))


class _SweepAudit:
    """The audit row of one sweep: tasks and runs, as many as were found and moved so far."""

    def __init__(self, session: OperatorSession, entry: AuditEntry) -> None:
        self.audit_id: int | None = None
        self._session = session
        self._entry = entry

    async def begin(self) -> None:
        self.audit_id = await self._session.run(
            lambda transaction: record_audit(transaction, self._entry, AuditProgress())
        )

    async def add(self, transaction: Transaction, progress: AuditProgress) -> None:
        await record_audit(transaction, self._entry, progress, self.audit_id)


def _event(failure: HookFailure) -> StoredEvent:
    task_id = None if failure.task_id is None else UUID(failure.task_id)
    evidence = {"hook": failure.hook, "error": failure.error}
    return StoredEvent(kind=EventKind.HOOK_FAILED, task_id=task_id, evidence=evidence)


def _audit_filter(options: SweepOptions) -> dict[str, object]:
    """What was asked for, as the audit shows it; what was left open is left out."""
    threshold, delay = options.sweep_threshold, options.recovery_delay
    asked: dict[str, object] = {
        "threshold_s": None if threshold is None else threshold.total_seconds(),
        "recovery_delay_s": None if delay is None else delay.total_seconds(),
        "worker_id": None if options.worker_id is None else str(options.worker_id),
        "force": options.force or None,
        "resilient_multiplier": options.resilient_multiplier,
        "resilient_flags": None if options.resilient_flags is None else list(options.resilient_flags),
        "recovery_config": None if options.recovery_config is None else options.recovery_config.model_dump(mode="json"),
    }
    return {name: value for name, value in asked.items() if value is not None}
