"""Retention at an operator's word: the same rules as in a worker, and on record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from horsies.errors import Busy
from horsies.recovery.retention import clean, would_clean
from horsies.store.operators import Deed, Done, write_down
from horsies_ops.actions.report import Progress

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from horsies.model.retention import Category, Cleaned, Windows
    from horsies.store.database import Transaction
    from horsies_ops.actions.apply import Hand

ACTION = "cleanup"
PATIENCE_S: Final = 3.0
"""For a worker that is cleaning: its batches are short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupReport:
    """What a cleanup deleted or, as a dry run, would delete. `matched` was due when it began."""

    is_dry_run: bool
    matched: int
    cleaned: Cleaned
    audit_id: int | None
    action: str = ACTION

    @property
    def affected(self) -> int:
        return 0 if self.is_dry_run else self.cleaned.rows


async def cleanup(
    hand: Hand,
    windows: Windows,
    *,
    dry_run: bool = False,
    reason: str | None = None,
    progress: Callable[[Progress], None] | None = None,
    stop: asyncio.Event | None = None,
) -> CleanupReport:
    """Delete all that is past its window, however long that takes; what was deleted stays so if it is cut off.

    `stop` ends it after the batch that is under way.

    A dry run counts without a lock and is written down too, except on a read-only connection. `Busy` while another
    process is cleaning.
    """
    if not dry_run:
        hand.require_writing()
    due = await would_clean(hand.database, windows)
    deed = Deed(
        operator=hand.operator,
        action=ACTION,
        reason=reason,
        filter=_kept(windows),
        matched=due.rows,
        is_dry_run=dry_run,
    )
    record = _Record(deed, progress)
    cleaned = due if dry_run else await _clean(hand, windows, record, stop)
    if record.audit_id is None and not hand.database.link.read_only:
        await hand.run(lambda transaction: record.add(transaction, 0))
    return CleanupReport(is_dry_run=dry_run, matched=due.rows, cleaned=cleaned, audit_id=record.audit_id)


async def _clean(hand: Hand, windows: Windows, record: _Record, stop: asyncio.Event | None) -> Cleaned:
    cleaned = await clean(
        hand.database,
        windows,
        budget_s=None,
        record=record.add,
        progress=record.tell,
        stop=stop,
        patience_s=PATIENCE_S,
    )
    if cleaned.is_busy and not cleaned.rows:
        raise Busy("another process is cleaning", hint="it takes what this would take; try again in a minute")
    return cleaned


class _Record:
    """The audit row of one cleanup, kept true batch by batch."""

    def __init__(self, deed: Deed, progress: Callable[[Progress], None] | None) -> None:
        self.audit_id: int | None = None
        self._deed = deed
        self._progress = progress
        self._done = 0

    async def add(self, transaction: Transaction, rows: int) -> None:
        self.audit_id = await write_down(transaction, self._deed, Done(affected=rows), self.audit_id)

    def tell(self, _category: Category, rows: int) -> None:
        self._done += rows
        if self._progress is not None:
            total = max(self._deed.matched, self._done)
            self._progress(Progress(done=self._done, total=total, affected=self._done, skipped=0))


def _kept(windows: Windows) -> dict[str, object]:
    """The windows in seconds by category, as the audit shows them."""
    return {category.value: window.total_seconds() for category, window in windows if window is not None}
