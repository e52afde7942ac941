"""Sweep on request: makes the same recovery decisions as a worker, and records them in the audit log."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from uuid import UUID

from horsies.app import Horsies
from horsies.errors import Busy
from horsies.model.events import EventKind, EventRecord
from horsies.model.recovery.fleet import OperatorObserver, SweepOptions
from horsies.model.settings import RecoveryConfig
from horsies.recovery.hooks import HookCaller, HookFailure, log_failure
from horsies.recovery.report import SweepReport, SweepStatus
from horsies.recovery.sweep import WorkflowHealing, sweep
from horsies.store.database import Database, Transaction
from horsies.store.operators import AuditEntry, AuditProgress, EventStore, record_audit
from horsies_ops.actions.apply import OperatorSession
from horsies_ops.actions.report import MAX_SKIPPED_LISTED, ActionReport, Skipped

SWEEP, RELEASE = "sweep", "release"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweeper:
    """Sweeps one database for an operator, with the settings and the app of this process."""

    session: OperatorSession
    reader: Database
    """Read-only pool for dry runs, so that the database itself rejects any write."""
    local_config: RecoveryConfig
    app: Horsies | None = None

    async def sweep(
        self, options: SweepOptions, *, reason: str | None = None, stop: asyncio.Event | None = None
    ) -> SweepReport:
        """Recover stale tasks and audit it; a dry run writes nothing, not even an audit entry."""
        report, _ = await self._sweep_audited(options, SWEEP, reason, stop)
        return report

    async def release(self, worker_id: UUID, *, reason: str | None = None) -> ActionReport:
        """Recover the stale tasks of one worker; raises `Busy` while another process is sweeping."""
        report, audit_id = await self._sweep_audited(SweepOptions(worker_id=worker_id), RELEASE, reason)
        if report.status is SweepStatus.BUSY:
            raise Busy("another process is sweeping", hint="try again in a minute")
        recovered = tuple(task.task_id for task in report.tasks if task.changes_state and task.applied)
        skipped = tuple(Skipped(task.task_id, task.reason) for task in report.tasks if task.task_id not in recovered)
        return ActionReport(
            action=RELEASE,
            matched=len(report.tasks),
            affected=len(recovered),
            skipped=skipped[:MAX_SKIPPED_LISTED],
            skipped_count=len(skipped),
            task_ids=recovered,
            audit_id=audit_id,
            warnings=report.warnings,
        )

    async def _sweep_audited(
        self, options: SweepOptions, action: str, reason: str | None = None, stop: asyncio.Event | None = None
    ) -> tuple[SweepReport, int | None]:
        if options.dry_run:
            return await self._sweep(self.reader, options, stop=stop), None
        self.session.require_writable()
        entry = AuditEntry(
            operator=self.session.operator, action=action, reason=reason, filter=_audit_filter(options), matched=0
        )
        audit = _SweepAudit(self.session, entry)
        return await self._sweep(self.session.database, options, audit, stop), audit.audit_id

    async def _sweep(
        self,
        database: Database,
        options: SweepOptions,
        audit: _SweepAudit | None = None,
        stop: asyncio.Event | None = None,
    ) -> SweepReport:
        failures: list[HookFailure] = []
        hooks = None if self.app is None else HookCaller(self.app.recovery_hooks, on_failure=failures.append)
        try:
            return await sweep(
                database,
                options,
                observer=OperatorObserver(local_config=self.local_config),
                hooks=hooks,
                healing=WorkflowHealing.for_operator(database),
                record=audit,
                stop=stop,
            )
        finally:
            # In `finally`, so that failed hooks are reported even if the sweep itself fails.
            for failure in failures:
                log_failure(failure)
                if not options.dry_run:
                    await EventStore(database).record(_hook_failed_event(failure))


class _SweepAudit:
    """The audit entry of one sweep: tasks and runs matched and changed so far."""

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


def _hook_failed_event(failure: HookFailure) -> EventRecord:
    task_id = None if failure.task_id is None else UUID(failure.task_id)
    evidence = {"hook": failure.hook, "error": failure.error}
    return EventRecord(kind=EventKind.HOOK_FAILED, task_id=task_id, evidence=evidence)


def _audit_filter(options: SweepOptions) -> dict[str, object]:
    """Return the options that were set, as JSON for the audit log."""
    threshold, delay = options.sweep_threshold, options.recovery_delay
    fields: dict[str, object] = {
        "threshold_s": None if threshold is None else threshold.total_seconds(),
        "recovery_delay_s": None if delay is None else delay.total_seconds(),
        "worker_id": None if options.worker_id is None else str(options.worker_id),
        "force": options.force or None,
        "resilient_multiplier": options.resilient_multiplier,
        "resilient_flags": None if options.resilient_flags is None else list(options.resilient_flags),
        "recovery_config": None if options.recovery_config is None else options.recovery_config.model_dump(mode="json"),
    }
    return {name: value for name, value in fields.items() if value is not None}
