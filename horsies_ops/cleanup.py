"""Cleanup on request: deletes rows by the same retention rules as a worker, and records it in the audit log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from horsies.errors import Busy
from horsies.model.retention import CleanupSummary, RetentionCategory, RetentionWindows
from horsies.recovery.retention import Cleanup, preview_cleanup
from horsies.store.operators import AuditEntry, AuditProgress, record_audit
from horsies_ops.actions.report import CLEANUP, ActionProgress

if TYPE_CHECKING:
    from horsies.store.database import Transaction
    from horsies_ops.ops import OperatorSession, Ops

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
