"""What a pass of the reaper does, in this order: a sweep, workflows that were paused for too long, and retention."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from horsies.engine.reap import Rarely, Reaper
from horsies.flows.control import expire_paused
from horsies.model.retention import Windows
from horsies.recovery.healing import Healing
from horsies.recovery.retention import clean, clean_heartbeats

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from horsies.engine.parts import Parts


def reaper_of(parts: Parts) -> Reaper:
    """The reaper of one worker; what its sweep finds to be done for workflows, the service of these does."""
    healing = Healing.by_worker(parts.claims.database, wake=parts.runs_are_due.set)
    return Reaper(parts, _duties_after_the_sweep(parts), healing=healing)


def _duties_after_the_sweep(parts: Parts) -> dict[str, Callable[[], Awaitable[object]]]:
    """By the names under which operators see them."""
    app, database = parts.app, parts.claims.database
    windows = Windows.of(app.recovery, app.retention)
    interval_s = app.recovery.check_interval_ms / 1000
    longest_pause = app.retention.paused_workflow_expire_hours

    async def retain() -> None:
        await clean(database, windows, budget_s=app.retention.pass_budget_s, worker_id=parts.identity.worker_id)

    duties: dict[str, Callable[[], Awaitable[object]]] = {
        "retention of heartbeats": partial(clean_heartbeats, database, windows, budget_s=interval_s / 2),
        "retention": Rarely(app.retention.interval_s, retain),
    }
    if longest_pause is None:
        return duties
    return {"expire paused workflows": partial(expire_paused, database, longer_than_s=longest_pause * 3600)} | duties
