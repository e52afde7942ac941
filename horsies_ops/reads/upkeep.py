"""Who keeps the house: whether workers sweep and clean by themselves, and when one last did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from horsies.model.events import EventKind
from horsies.model.recovery.published import most_patient
from horsies.store.recovery import RecoveryStore
from horsies_ops.reads.events import events

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from horsies.model.settings import RecoveryConfig
    from horsies.store.db import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """What the live workers do unasked. Without one, nothing is done but by hand."""

    at: datetime
    config: RecoveryConfig | None
    """The settings of the most patient live worker; None when nobody lives."""
    last_pass_at: datetime | None
    """When a worker that lives last went through its duties."""
    last_pass_by: UUID | None
    last_retention_at: datetime | None
    """When records past their time were last found and deleted, by whomever."""


async def upkeep(database: Database) -> Upkeep:
    fleet = await RecoveryStore(database).fleet()
    passes = {each.worker_id: at for each in fleet.live if (at := each.instant("last_pass_at")) is not None}
    last = max(passes, key=lambda worker_id: passes[worker_id], default=None)
    deleted = await events(database, kinds=(EventKind.RETENTION_FINISHED,), limit=1)
    return Upkeep(
        at=fleet.now,
        config=most_patient(fleet.live),
        last_pass_at=None if last is None else passes[last],
        last_pass_by=last,
        last_retention_at=deleted[0].at if deleted else None,
    )
