"""The parts of one worker, put together by `worker` and known to each other by name."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from horsies.engine.backoff import Backoff
from horsies.errors import on_one_line
from horsies.model import events

if TYPE_CHECKING:
    from collections.abc import Callable

    from horsies.engine.hands import Hands
    from horsies.engine.health import Health
    from horsies.engine.held import Desk
    from horsies.engine.identity import Gate, Identity
    from horsies.engine.interruptions import Interruptions
    from horsies.engine.outcomes import Outcomes
    from horsies.engine.pool import Pool
    from horsies.engine.reporting import Reporter
    from horsies.engine.requeues import Requeues
    from horsies.engine.returns import Returns
    from horsies.engine.room import Room
    from horsies.engine.settling import Settling
    from horsies.model.chunks import RunTimes
    from horsies.model.settings import AppConfig, WorkerConfig
    from horsies.recovery.hooks import Asking
    from horsies.store.beats import BeatStore
    from horsies.store.claims import ClaimStore
    from horsies.store.fleet import FleetStore


@dataclass(slots=True, kw_only=True)
class Parts:
    """What the loops of a worker share. Nothing here decides anything."""

    app: AppConfig
    worker: WorkerConfig
    identity: Identity
    gate: Gate
    desk: Desk
    times: RunTimes
    hands: Hands
    claims: ClaimStore
    beats: BeatStore
    fleet: FleetStore
    reporter: Reporter
    health: Health
    lane: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while claims or starts are on their way, or someone looks at what may be claimed: one at a time, on one
    connection; whoever holds it knows that no other is at it."""
    is_stopping: bool = False
    degraded: str | None = None
    look_at_rows: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to have running rows looked at now, instead of with the next beat."""
    runs_are_due: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to have runs of workflows advanced now, instead of with the next poll."""
    tell_health: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to have the worker's row say now how it fares, instead of with the next beat."""
    outcomes: Outcomes = field(init=False)
    asking: Asking = field(init=False)
    interruptions: Interruptions = field(init=False)
    settling: Settling = field(init=False)
    requeues: Requeues = field(init=False)
    pool: Pool = field(init=False)
    room: Room = field(init=False)
    returns: Returns = field(init=False)
    wake: Callable[[], None] = field(init=False)
    look: Callable[[], None] = field(init=False)
    hear_news: Callable[[], None] = field(init=False)
    expect: Callable[[float], None] = field(init=False)
    """A task will be due after so many seconds."""

    def backoff(self, duty: str) -> Backoff:
        """The pauses of one loop, which tells when the database goes away and comes back."""

        def changed(error: Exception | None) -> None:
            worker_id = str(self.identity.worker_id)
            if error is None:
                self.reporter.emit(events.DatabaseRestored(worker_id=worker_id, duty=duty))
            else:
                self.reporter.emit(events.DatabaseLost(worker_id=worker_id, duty=duty, error=on_one_line(error)))

        return Backoff(self.app.resilience, changed=changed)
