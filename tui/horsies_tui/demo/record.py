"""What operators did to the invented system: its audit, and which queues they paused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from horsies_ops.reads.events import AuditRow

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

YOU = "you"
FIRST_ID = 5521


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    at: datetime
    reason: str | None


class Record:
    """Rows of the audit, the oldest first."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self.rows: list[AuditRow] = []
        self.paused: dict[str, Pause] = {}
        self._now = now

    def write(
        self,
        action: str,
        *,
        affected: int,
        skipped: int = 0,
        reason: str | None = None,
        about: Mapping[str, object] | None = None,
        task_ids: Sequence[UUID] = (),
        actor: str = YOU,
        at: datetime | None = None,
    ) -> int:
        """Put an action on record; what it is filed under."""
        row = AuditRow(
            id=FIRST_ID + len(self.rows), at=at or self._now(), actor=actor, host="demo", action=action, reason=reason,
            filter_json=None if about is None else json.dumps(about), dry_run=False, matched=affected + skipped,
            affected=affected, skipped=skipped, via="tui", task_ids=tuple(task_ids),
        )  # fmt: skip
        self.rows.append(row)
        return row.id

    def pause(self, queue: str, reason: str | None) -> bool:
        """Whether that changed anything."""
        if queue in self.paused:
            return False
        self.paused[queue] = Pause(at=self._now(), reason=reason)
        return True

    def resume(self, queue: str) -> bool:
        return self.paused.pop(queue, None) is not None
