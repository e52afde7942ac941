"""A participant: syncs its app's definitions, then fires due slots until it is stopped. There is no leader."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from horsies.errors import ConfigurationError, HorsiesError, format_one_line, is_transient
from horsies.model.schedule.decide import ScheduleDefinition
from horsies.scheduler.firing import fire_all_due
from horsies.scheduler.sync import retire_undefined, sync_definitions
from horsies.store.database import Database
from horsies.store.schedules import ScheduleStore

IDLE_CHECK_S: Final = 30.0
"""Between checks while nothing is due: a notification reports every change that makes a slot due earlier."""
RENEW_S: Final = 60.0
RETRY_S: Final = 1.0
"""Before the next try after an error of the database."""

logger = logging.getLogger("horsies.scheduler")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSet:
    """The schedules that one app defines; `owner` is its name."""

    owner: str
    definitions: Sequence[ScheduleDefinition] = ()
    check_interval_s: float = 1.0


class Scheduler:
    """Takes part in firing the schedules of a database; a service of a worker, or the only one of its process."""

    name = "scheduler"

    def __init__(
        self,
        database: Database,
        schedules: ScheduleSet,
        participant_id: UUID,
        *,
        woken: asyncio.Event | None = None,
        is_notified: Callable[[], bool] = lambda: True,
    ) -> None:
        self._database = database
        self._store = ScheduleStore(database)
        self._schedules = schedules
        self._id = participant_id
        self._is_notified = is_notified
        """Whether notifications arrive. If not, changes are found by checking at each interval."""
        self._woken = woken or asyncio.Event()
        """Set it to check now, because a schedule has changed."""
        self._renewed_at: float | None = None
        self._is_synced = False

    async def run(self, stop: asyncio.Event) -> None:
        """Fire due slots until `stop` is set; a check in progress is finished."""
        while not stop.is_set():
            self._woken.clear()
            try:
                delay_s = await self._check(stop)
            except ConfigurationError:
                await self._leave()
                raise  # a name that belongs to another app: it must be renamed
            except HorsiesError as error:
                # Not fatal, even if it is permanent: the worker's tasks do not depend on the scheduler.
                log = logger.warning if is_transient(error) else logger.error
                log("scheduler failed, retrying: %s", format_one_line(error))
                delay_s = max(RETRY_S, self._schedules.check_interval_s)
            await self._sleep(delay_s, stop)
        await self._leave()

    async def _leave(self) -> None:
        with suppress(HorsiesError):
            await self._store.leave(self._id)

    async def _check(self, stop: asyncio.Event) -> float:
        """Fire what is due; returns the time until the next check."""
        await self._renew()
        check = await self._store.next_check()
        is_due = check.is_due or check.has_waiting
        while is_due and not stop.is_set():
            await fire_all_due(self._database, self._id, stop, includes_waiting=check.has_waiting)
            # Slots that became due meanwhile are fired at once.
            check = await self._store.next_check(after=check.now)
            is_due = check.is_due
        interval_s = self._schedules.check_interval_s
        # An undecided slot is being fired by another participant, or exceeds the limit of catch-up runs.
        is_polling = check.has_waiting or check.has_undecided or not self._is_notified()
        longest_s = interval_s if is_polling else max(interval_s, IDLE_CHECK_S)
        return longest_s if check.due_in_s is None else max(0.0, min(check.due_in_s, longest_s))

    async def _renew(self) -> None:
        """Sync at the first call; afterwards show once a minute that this participant is alive."""
        schedules, now = self._schedules, time.monotonic()
        if self._renewed_at is not None and now - self._renewed_at < RENEW_S:
            return
        names = [definition.name for definition in schedules.definitions]
        await self._store.join(self._id, schedules.owner, names, hostname=socket.gethostname(), pid=os.getpid())
        if not self._is_synced:
            await sync_definitions(self._database, schedules.owner, schedules.definitions)
            self._is_synced = True
            logger.info("scheduler started", extra={"owner": schedules.owner, "schedules": len(names)})
        await retire_undefined(self._database, schedules.owner)
        self._renewed_at = now

    async def _sleep(self, delay_s: float, stop: asyncio.Event) -> None:
        waits = [asyncio.create_task(event.wait()) for event in (self._woken, stop)]
        try:
            await asyncio.wait(waits, timeout=delay_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
