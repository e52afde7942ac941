"""Syncs the schedules that an app defines with the database: new, changed, superseded and retired definitions."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from horsies.errors import BrokerError, BrokerErrorCode, ConfigurationError
from horsies.model.events import EventKind, EventRecord
from horsies.model.schedule.decide import (
    ScheduleChange,
    ScheduleDefinition,
    StoredSchedule,
    Superseded,
    sync_change,
)
from horsies.model.settings.patterns import invalid_schedule
from horsies.scheduler.firing import zone_data_version
from horsies.store.database import (
    SCHEDULE_SYNC_LOCK,
    Database,
    Executor,
    Transaction,
    lock_holders,
    log_suspicious_holders,
)
from horsies.store.operators import EventStore
from horsies.store.schedules import ScheduleStore

LOCK_WAIT_S: Final = 30.0
LOCK_POLL_S: Final = 0.2

logger = logging.getLogger("horsies.scheduler")


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    """What a sync stored: the changes, and the names of definitions that newer ones have replaced."""

    changes: tuple[ScheduleChange, ...] = ()
    superseded: tuple[str, ...] = ()


class CreatedMeanwhile(BrokerError):
    """Another transaction has created a schedule that was not stored before; nothing is changed."""


async def sync_definitions(
    database: Database, owner: str, definitions: Sequence[ScheduleDefinition], *, force: bool = False
) -> SyncReport:
    """Store the definitions of an app, under one lock; raises HRS-205 if a name belongs to another app.

    A definition that was replaced by a newer one is left alone, unless `force` is set.
    """
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        report = await database.run(lambda transaction: _sync_if_locked(transaction, owner, definitions, force=force))
        if report is not None:
            return report
        await log_suspicious_holders(database, SCHEDULE_SYNC_LOCK, limit=timedelta(seconds=5))
        if time.monotonic() > deadline:
            holders = ", ".join(map(str, await lock_holders(database, [SCHEDULE_SYNC_LOCK])))
            message = f"cannot sync schedules for {LOCK_WAIT_S:g} s: {holders}"
            raise BrokerError(message, code=BrokerErrorCode.SWEEP_BUSY, retryable=True)
        await asyncio.sleep(LOCK_POLL_S)


async def _sync_if_locked(
    transaction: Transaction, owner: str, definitions: Sequence[ScheduleDefinition], *, force: bool
) -> SyncReport | None:
    if not await ScheduleStore(transaction).try_sync_lock():
        return None
    return await store_definitions(transaction, owner, definitions, force=force)


async def store_definitions(
    executor: Executor, owner: str, definitions: Sequence[ScheduleDefinition], *, force: bool = False
) -> SyncReport:
    """Like `sync_definitions`, inside a transaction and without the lock."""
    store, tz_version = ScheduleStore(executor), zone_data_version()
    stored = await store.stored(definition.name for definition in definitions)
    for definition in definitions:
        check_owner(definition, stored.get(definition.name), owner)
    now = await store.now()
    changes: list[ScheduleChange] = []
    superseded: list[str] = []
    for definition in definitions:
        try:
            change = sync_change(definition, stored.get(definition.name), now, tz_version=tz_version, force=force)
        except Superseded:
            message = "schedule not changed, its definition was replaced by a newer one"
            logger.warning(message, extra={"schedule": definition.name})
            superseded.append(definition.name)
            continue
        if change is not None:
            changes.append(change)
            if change.note:
                logger.warning("schedule changed: %s", change.note, extra={"schedule": definition.name})
    if changes:
        names = await store.upsert(owner, changes, locked=stored, tz_version=tz_version)
        if lost := sorted({change.definition.name for change in changes} - names):
            raise CreatedMeanwhile(
                f"schedule {lost[0]!r} was created by another process at the same time",
                code=BrokerErrorCode.SWEEP_BUSY,
                retryable=True,
            )
    return SyncReport(changes=tuple(changes), superseded=tuple(superseded))


def check_owner(definition: ScheduleDefinition, stored: StoredSchedule | None, owner: str) -> None:
    """Raise HRS-205 if the name is taken by another app, or by a schedule made at run time."""
    if stored is None:
        return
    name = definition.name
    if stored.owner not in ("", owner):
        raise invalid_schedule(
            f"schedule {name!r} of app {owner!r} already belongs to app {stored.owner!r}",
            hint="rename one of them; if the other app is gone, run horsies schedule forget NAME",
        )
    if (stored.source == "dynamic") != (definition.source == "dynamic"):
        kind = "made at run time" if stored.source == "dynamic" else f"defined by app {stored.owner!r}"
        raise _name_taken(name, kind)


def _name_taken(name: str, kind: str) -> ConfigurationError:
    return invalid_schedule(f"the name {name!r} is taken by a schedule {kind}", hint="choose another name")


async def retire_undefined(database: Database, owner: str) -> list[str]:
    """Retire schedules that no live participant of their owner defines; returns their names."""
    names = await ScheduleStore(database).retire(owner)
    for name in names:
        logger.warning("schedule retired, its app does not define it any more", extra={"schedule": name})
        event = EventRecord(kind=EventKind.SCHEDULE_RETIRED, evidence={"schedule": name, "owner": owner})
        await EventStore(database).record(event)
    return names
