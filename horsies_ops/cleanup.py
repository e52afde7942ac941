"""Retention at an operator's word: the same rules as in a worker, and on record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from horsies.errors import Busy
from horsies.model.retention import CleanupSummary, RetentionCategory, RetentionWindows
from horsies.recovery.retention import clean, preview_cleanup
from horsies.store.operators import AuditEntry, AuditProgress, record_audit
from horsies_ops.actions.report import ActionProgress

if TYPE_CHECKING:
    from horsies.store.database import Transaction
    from horsies_ops.actions.apply import OperatorSession

ACTION = "cleanup"
LOCK_WAIT_S: Final = 3.0
"""For a worker that is cleaning: its batches are short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupReport:
    """What a cleanup deleted or, as a dry run, would delete. `matched` was due when it began."""

    is_dry_run: bool
    matched: int
    cleaned: CleanupSummary
    audit_id: int | None
    action: str = ACTION

    @property
    def affected(self) -> int:
        return 0 if self.is_dry_run else self.cleaned.rows


async def cleanup(
    session: OperatorSession,
    windows: RetentionWindows,
    *,
    dry_run: bool = False,
    reason: str | None = None,
    progress: Callable[[ActionProgress], None] | None = None,
    stop: asyncio.Event | None = None,
) -> CleanupReport:
    """Delete all that is past its window, however long that takes; what was deleted stays so if it is cut off.

    `stop` ends it after the batch that is under way.

    A dry run counts without a lock and is written down too, except on a read-only connection. `Busy` while another
    process is cleaning.
    """
    if not dry_run:
        session.require_writable()
    due = await preview_cleanup(session.database, windows)
    deed = AuditEntry(
        operator=session.operator,
        action=ACTION,
        reason=reason,
        filter=_audit_filter(windows),
        matched=due.rows,
        is_dry_run=dry_run,
    )
    record = _CleanupAudit(deed, progress)
    cleaned = due if dry_run else await _clean(session, windows, record, stop)
    if record.audit_id is None and not session.database.connection_spec.read_only:
        await session.run(lambda transaction: record.add(transaction, 0))
    return CleanupReport(is_dry_run=dry_run, matched=due.rows, cleaned=cleaned, audit_id=record.audit_id)


async def _clean(
    session: OperatorSession, windows: RetentionWindows, audit: _CleanupAudit, stop: asyncio.Event | None
) -> CleanupSummary:
    cleaned = await clean(
        session.database,
        windows,
        budget_s=None,
        record=audit.add,
        progress=audit.report_progress,
        stop=stop,
        lock_wait_s=LOCK_WAIT_S,
    )
    if cleaned.is_busy and not cleaned.rows:
        raise Busy("another process is cleaning", hint="it takes what this would take; try again in a minute")
    return cleaned


class _CleanupAudit:
    """The audit row of one cleanup, kept true batch by batch."""

    def __init__(self, entry: AuditEntry, progress: Callable[[ActionProgress], None] | None) -> None:
        self.audit_id: int | None = None
        self._entry = entry
        self._progress = progress
        self._done = 0

    async def add(self, transaction: Transaction, rows: int) -> None:
        self.audit_id = await record_audit(transaction, self._entry, AuditProgress(affected=rows), self.audit_id)

    def report_progress(self, _category: RetentionCategory, rows: int) -> None:
        self._done += rows
        if self._progress is not None:
            total = max(self._entry.matched, self._done)
            self._progress(ActionProgress(done=self._done, total=total, affected=self._done, skipped=0))


def _audit_filter(windows: RetentionWindows) -> dict[str, object]:
    """The windows in seconds by category, as the audit shows them."""
    return {category.value: window.total_seconds() for category, window in windows if window is not None}
