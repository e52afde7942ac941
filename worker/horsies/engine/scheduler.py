"""`horsies scheduler`: a process that only fires schedules."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from uuid_utils.compat import uuid7

from horsies.engine.child.lifetime import stop_signals
from horsies.engine.service import Backoff, run_services, run_until
from horsies.errors import BrokerError, format_one_line
from horsies.model.settings import AppConfig
from horsies.scheduler.service import Scheduler, ScheduleSet
from horsies.store.connection import ConnectionSpec
from horsies.store.database import Database, PoolSettings
from horsies.store.endpoint import migrate_or_check, resolve_database
from horsies.store.listen import Listener
from horsies.store.schedules import SCHEDULES_CHANNEL

logger = logging.getLogger("horsies.scheduler")


async def run_scheduler(config: AppConfig, schedules: ScheduleSet) -> None:
    """Fire schedules until SIGTERM, SIGINT or SIGHUP; the check in progress is finished."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in stop_signals():
        loop.add_signal_handler(number, stop.set)
    endpoint = await asyncio.to_thread(resolve_database, config.broker)
    try:
        await run_until(stop, _prepare(config, endpoint.connection_spec))
        if not stop.is_set():
            spec = replace(endpoint.connection_spec, force_generic_plan=True)
            async with Database(spec, PoolSettings(max_size=2)) as database:
                await _serve(database, schedules, stop)
    finally:
        endpoint.release()


async def _serve(database: Database, schedules: ScheduleSet, stop: asyncio.Event) -> None:
    is_connected, woken = False, asyncio.Event()
    scheduler = Scheduler(database, schedules, uuid7(), woken=woken, is_notified=lambda: is_connected)

    def on_change(connected: bool) -> None:  # noqa: FBT001  # signature of Listener.on_change
        nonlocal is_connected
        is_connected = connected
        woken.set()  # earlier notifications were missed

    channels: dict[str, Callable[[str], None]] = {SCHEDULES_CHANNEL: lambda _payload: woken.set()}
    listener = Listener(database.connection_spec.direct, channels, on_change=on_change)
    listening = asyncio.create_task(listener.run())
    try:
        await run_services([scheduler], stop)
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def _prepare(config: AppConfig, spec: ConnectionSpec) -> None:
    """Migrate or check the schema; wait for a database that is unavailable."""
    backoff = Backoff(config.resilience, on_change=_log_unavailable)
    while True:
        try:
            await migrate_or_check(spec, config.broker)
        except BrokerError as error:
            if not error.retryable:
                raise
            await backoff.wait(error)
        else:
            return


def _log_unavailable(error: Exception | None) -> None:
    if error is not None:
        logger.warning("database unavailable, retrying: %s", format_one_line(error))
