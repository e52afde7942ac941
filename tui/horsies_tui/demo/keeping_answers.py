"""What the invented system answers about its housekeeping."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from horsies.errors import Refused
from horsies.model.recovery.options import SweepOptions
from horsies_ops.actions.report import Progress
from horsies_ops.cleanup import ACTION, CleanupReport
from horsies_tui.demo import sweeping

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from datetime import timedelta

    from horsies.model.retention import Cleaned
    from horsies.recovery.report import SweptTask
    from horsies_ops.reads.events import EventRow
    from horsies_ops.reads.storage import Storage
    from horsies_ops.reads.upkeep import Upkeep
    from horsies_ops.reads.verdicts import Silent
    from horsies_tui.demo.system import System

_AS_USUAL: Final = SweepOptions()


class KeepingAnswers:
    """A part of the source."""

    system: System
    _read_only: bool

    async def near_limit(self, within: timedelta, options: SweepOptions = _AS_USUAL) -> tuple[SweptTask, ...]:
        return sweeping.near_limit(self.system, options, within)

    async def not_yet_stale(self, options: SweepOptions = _AS_USUAL) -> Silent | None:
        return sweeping.not_yet_stale(self.system, options)

    async def upkeep(self) -> Upkeep:
        return self.system.keeping.upkeep()

    async def storage(self) -> Storage:
        return self.system.keeping.storage()

    async def events(self, *, limit: int = 100) -> tuple[EventRow, ...]:
        return tuple(self.system.keeping.events[-limit:])

    async def cleanup_candidates(self) -> Cleaned:
        return self.system.keeping.candidates()

    async def cleanup(
        self,
        *,
        reason: str | None = None,
        progress: Callable[[Progress], None] | None = None,
        stop: asyncio.Event | None = None,
    ) -> CleanupReport:
        del stop
        if self._read_only:
            raise Refused("this connection is read-only")
        cleaned = self.system.keeping.clean()
        if progress is not None:
            progress(Progress(done=cleaned.rows, total=cleaned.rows, affected=cleaned.rows, skipped=0))
        audit_id = self.system.record.write(ACTION, affected=cleaned.rows, reason=reason)
        return CleanupReport(is_dry_run=False, matched=cleaned.rows, cleaned=cleaned, audit_id=audit_id)
