"""What a pass of the reaper does, in this order."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from horsies.engine.reap import Rarely
from horsies.model.retention import Windows
from horsies.recovery.retention import clean, clean_heartbeats

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from horsies.engine.parts import Parts


def duties_of(parts: Parts) -> dict[str, Callable[[], Awaitable[object]]]:
    """The duties of one worker's reaper, by the names under which operators see them."""
    app, database = parts.app, parts.claims.database
    windows = Windows.of(app.recovery, app.retention)
    interval_s = app.recovery.check_interval_ms / 1000

    async def retain() -> None:
        await clean(database, windows, budget_s=app.retention.pass_budget_s, worker_id=parts.identity.worker_id)

    return {
        "retention of heartbeats": partial(clean_heartbeats, database, windows, budget_s=interval_s / 2),
        "retention": Rarely(app.retention.interval_s, retain),
    }
