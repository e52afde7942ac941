"""Sweep and cleanup on request: the decisions and rules of a worker, recorded in the audit log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from uuid import UUID

from horsies.errors import Busy
from horsies.model.events import EventKind, EventRecord
from horsies.model.operator_actions import MAX_NAMED_TASKS
from horsies.model.recovery.fleet import OperatorObserver, SweepOptions
from horsies.model.retention import CleanupSummary, RetentionCategory, RetentionWindows
from horsies.model.task import parse_id
from horsies.recovery.hooks import HookCaller, HookFailure, log_failure
from horsies.recovery.report import SweepReport, SweepStatus
from horsies.recovery.retention import Cleanup, preview_cleanup
from horsies.recovery.sweep import Sweep, SweepAudit, WorkflowHealing
from horsies.store.database import Database
from horsies.store.operators import AuditEntry, AuditProgress, EventStore, record_audit
from horsies_ops.actions.report import CLEANUP, RELEASE, SWEEP, ActionProgress, ActionReport, Skipped
from horsies_ops.reads.stale import DEFAULT_SWEEP_OPTIONS

if TYPE_CHECKING:
    from horsies.app import Horsies
    from horsies.store.database import Transaction
    from horsies_ops.ops import OperatorSession, Ops


async def sweep(
    ops: Ops,
    options: SweepOptions = DEFAULT_SWEEP_OPTIONS,
    *,
    app: Horsies | None = None,
    reason: str | None = None,
    stop: asyncio.Event | None = None,
) -> SweepReport:
    """Recover stale tasks, expire overdue ones and heal workflows, with the hooks of `app`.

    `stop` ends the sweep early: tasks recovered until then stay recovered, and the report says it was stopped. A dry
    run only lists them and writes nothing, not even an audit entry.
    """
    if options.dry_run:
        # On the read-only pool, so that the database itself rejects any write.
        return await _sweep(ops, ops.reader, options, app, stop=stop)
    report, _ = await _sweep_audited(ops, SWEEP, options, app, reason, stop)
    return report


async def stale_candidates(
    ops: Ops, options: SweepOptions = DEFAULT_SWEEP_OPTIONS, *, app: Horsies | None = None
) -> SweepReport:
    """Return what a sweep would do now; takes no lock and writes nothing."""
    return await sweep(ops, replace(options, dry_run=True), app=app)


async def release(
    ops: Ops, worker_id: str | UUID, *, app: Horsies | None = None, reason: str | None = None
) -> ActionReport:
    """Recover the stale tasks of one worker; raises `Busy` while another process is sweeping."""
    options = SweepOptions(worker_id=UUID(parse_id(str(worker_id))))
    report, audit_id = await _sweep_audited(ops, RELEASE, options, app, reason)
    if report.status is SweepStatus.BUSY:
        raise Busy("another process is sweeping", hint="try again in a minute")
    recovered = tuple(task.task_id for task in report.tasks if task.changes_state and task.applied)
    skipped = tuple(Skipped(task.task_id, task.reason) for task in report.tasks if task.task_id not in recovered)
    return ActionReport(
        action=RELEASE,
        matched=len(report.tasks),
        affected=len(recovered),
        skipped=skipped[:MAX_NAMED_TASKS],
        skipped_count=len(skipped),
        task_ids=recovered,
        audit_id=audit_id,
        warnings=report.warnings,
    )


async def _sweep_audited(
    ops: Ops,
    action: str,
    options: SweepOptions,
    app: Horsies | None,
    reason: str | None,
    stop: asyncio.Event | None = None,
) -> tuple[SweepReport, int | None]:
    """Return the report and the id of the audit entry; None if the sweep had nothing to do."""
    ops.session.require_writable()
    audit = SweepAudit(ops.session.database, ops.session.audit_entry(action, reason, _audit_filter(options), matched=0))
    return await _sweep(ops, ops.session.database, options, app, audit, stop), audit.audit_id


async def _sweep(
    ops: Ops,
    database: Database,
    options: SweepOptions,
    app: Horsies | None,
    audit: SweepAudit | None = None,
    stop: asyncio.Event | None = None,
) -> SweepReport:
    failures: list[HookFailure] = []
    hooks = None if app is None else HookCaller(app.recovery_hooks, on_failure=failures.append)
    try:
        return await Sweep(
            database,
            options,
            observer=OperatorObserver(local_config=ops.settings.recovery),
            hooks=hooks,
            healing=WorkflowHealing.for_operator(database),
            record=audit,
            stop=stop,
        ).run()
    finally:
        # In `finally`, so that failed hooks are reported even if the sweep itself fails.
        for failure in failures:
            log_failure(failure)
            if not options.dry_run:
                await EventStore(database).record(_hook_failed_event(failure))


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


# Cleanup


LOCK_WAIT_S: Final = 3.0
"""How long to wait for the retention lock: a worker's cleanup holds it for one short batch at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupReport:
    """What a cleanup deleted or, in a dry run, would delete. `matched` rows were due when it started."""

    is_dry_run: bool
    matched: int
    cleaned: CleanupSummary
    audit_id: int | None
    action: str = CLEANUP

    @property
    def affected(self) -> int:
        return 0 if self.is_dry_run else self.cleaned.rows


async def cleanup(
    ops: Ops,
    windows: RetentionWindows | None = None,
    *,
    dry_run: bool = False,
    reason: str | None = None,
    progress: Callable[[ActionProgress], None] | None = None,
    stop: asyncio.Event | None = None,
) -> CleanupReport:
    """Delete rows older than `windows` [default: from the settings]; `stop` ends it after the current batch.

    Batches are committed one by one, so an interrupted cleanup keeps what it has deleted. A dry run counts without a
    lock and is audited too, if the role may write an audit entry. Raises `Busy` while another process is cleaning up.
    """
    session, windows = ops.session, windows or retention_windows(ops)
    if not dry_run:
        session.require_writable()
    due = await preview_cleanup(session.database, windows)
    windows_s = {category.value: window.total_seconds() for category, window in windows if window is not None}
    entry = session.audit_entry(CLEANUP, reason, windows_s, matched=due.rows, is_dry_run=dry_run)
    audit = _CleanupAudit(entry, progress)
    cleaned = due if dry_run else await _clean(session, windows, audit, stop)
    if dry_run:
        audit.audit_id = await session.record_dry_run(entry, AuditProgress())
    elif audit.audit_id is None:  # no batch deleted anything
        await session.run(lambda transaction: audit.add(transaction, 0))
    return CleanupReport(is_dry_run=dry_run, matched=due.rows, cleaned=cleaned, audit_id=audit.audit_id)


async def cleanup_candidates(ops: Ops) -> CleanupSummary:
    """Count what a cleanup would delete now; takes no lock and writes nothing, not even an audit entry."""
    return await preview_cleanup(ops.reader, retention_windows(ops))


def retention_windows(ops: Ops) -> RetentionWindows:
    """Return how long each kind of row is kept, from the settings of this process."""
    return RetentionWindows.of(ops.settings.recovery, ops.settings.retention)


async def _clean(
    session: OperatorSession, windows: RetentionWindows, audit: _CleanupAudit, stop: asyncio.Event | None
) -> CleanupSummary:
    cleaned = await Cleanup(
        session.database,
        windows,
        budget_s=None,
        record=audit.add,
        progress=audit.report_progress,
        stop=stop,
        lock_wait_s=LOCK_WAIT_S,
    ).run()
    # Busy after the first batch is not an error: the rows deleted until then are reported.
    if cleaned.is_busy and not cleaned.rows:
        raise Busy("another process is cleaning up", hint="it deletes the same rows; try again in a minute")
    return cleaned


class _CleanupAudit:
    """The audit entry of one cleanup, updated in the transaction of each batch."""

    def __init__(self, entry: AuditEntry, progress: Callable[[ActionProgress], None] | None) -> None:
        self.audit_id: int | None = None
        self._entry = entry
        self._progress = progress
        self._deleted = 0

    async def add(self, transaction: Transaction, rows: int) -> None:
        self.audit_id = await record_audit(transaction, self._entry, AuditProgress(affected=rows), self.audit_id)

    def report_progress(self, _category: RetentionCategory, rows: int) -> None:
        self._deleted += rows
        if self._progress is not None:
            # More rows may come due while the cleanup runs.
            total = max(self._entry.matched, self._deleted)
            self._progress(ActionProgress(done=self._deleted, total=total, affected=self._deleted, skipped=0))
