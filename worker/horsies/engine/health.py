"""How a worker fares, as its own row tells everybody else."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from horsies.model.fence import UNBROKEN_BEATS, Listening

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from horsies.model.settings import RecoveryConfig


@dataclass(slots=True, kw_only=True)
class Health:
    """What the loops of a worker have found out about themselves. Instants are the database's."""

    recovery: RecoveryConfig
    listening: Listening | None = None
    last_pass_at: datetime | None = None
    disabled: dict[str, str] = field(default_factory=dict[str, str])
    """Operations of the reaper that keep failing, with their errors."""
    refused: dict[str, str] = field(default_factory=dict[str, str])
    """Tasks that the last pass could not settle, with what the database said."""
    _beaten_at: float | None = None

    def beaten(self, at: datetime, sent_at: float) -> float | None:
        """A beat was written; returns the length in seconds of the gap that it ended, if one broke the series."""
        before = self.listening
        self.listening = before.after_beat(at, self.recovery) if before else Listening.begun(at)
        self._beaten_at = sent_at
        is_broken = before is not None and self.listening.since != before.since
        return (at - before.last_beat_at).total_seconds() if before and is_broken else None

    @property
    def listening_since(self) -> datetime | None:
        """The start of the present series; None while that is in doubt, as it is after a pause of our own.

        A judge that went by the old start before its next beat was answered would condemn everybody who was cut off
        together with it.
        """
        return None if self.listening is None or self._is_in_doubt() else self.listening.since

    @property
    def amnesty_until(self) -> datetime | None:
        """Until then silence is no proof for this worker; None where it asks for no proof."""
        if self.listening is None or not self.recovery.outage_amnesty:
            return None
        return self.listening.amnesty_until(self.recovery)

    def document(self, degraded: str | None) -> dict[str, object]:
        """What the next beat publishes."""
        since = self.listening_since
        until = None if since is None else self.amnesty_until
        return {
            "listener": "degraded" if degraded else "ok",
            "listening_since": since and since.isoformat(),
            "amnesty_until": until and until.isoformat(),
            "last_pass_at": self.last_pass_at and self.last_pass_at.isoformat(),
            "disabled_operations": sorted(self.disabled),
            "warnings": [*([degraded] if degraded else []), *self._troubles()],
        }

    def _troubles(self) -> Iterator[str]:
        yield from (f"{name} fails: {error}" for name, error in self.disabled.items())
        if self.refused:
            task_id, error = next(iter(self.refused.items()))
            yield f"{len(self.refused)} stale tasks cannot be settled, first {task_id}: {error}"

    def _is_in_doubt(self) -> bool:
        longest_gap_s = UNBROKEN_BEATS * self.recovery.worker_beat_ms / 1000
        return self._beaten_at is None or time.monotonic() - self._beaten_at > longest_gap_s
