"""Services run concurrently and stop one after the other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from horsies.engine.service import ServiceEnded, run_services
from horsies.errors import HorsiesError


class ServiceLog:
    """Creates services and records how they end."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def service(self, name: str, work: Callable[[asyncio.Event], Awaitable[object]] | None = None) -> LoggedService:
        return LoggedService(name, self, work or asyncio.Event.wait)


class LoggedService:
    def __init__(self, name: str, log: ServiceLog, work: Callable[[asyncio.Event], Awaitable[object]]) -> None:
        self.name = name
        self._diary = log
        self._work = work

    async def run(self, stop: asyncio.Event) -> None:
        try:
            await self._work(stop)
        except asyncio.CancelledError:
            self._diary.lines.append(f"{self.name} cancelled")
            raise
        self._diary.lines.append(f"{self.name} done")


async def raise_early(_stop: asyncio.Event) -> None:
    raise RuntimeError("failed")


async def raise_when_stopped(stop: asyncio.Event) -> None:
    await stop.wait()
    raise RuntimeError("failed")


async def return_early(_stop: asyncio.Event) -> None:
    return


async def never_end(_stop: asyncio.Event) -> None:
    await asyncio.Event().wait()


async def test_services_stop_one_after_the_other_in_order() -> None:
    log, stop, draining, may_end = ServiceLog(), asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow_to_stop(stop: asyncio.Event) -> None:
        await stop.wait()
        draining.set()
        await may_end.wait()

    services = [log.service("claim", slow_to_stop), log.service("finish"), log.service("heartbeat")]
    running = asyncio.create_task(run_services(services, stop))
    stop.set()
    await draining.wait()
    assert log.lines == []
    may_end.set()
    await running

    assert log.lines == ["claim done", "finish done", "heartbeat done"]


@pytest.mark.parametrize("early_end", [raise_early, return_early])
async def test_service_that_ends_early_stops_the_others(
    early_end: Callable[[asyncio.Event], Awaitable[object]], caplog: pytest.LogCaptureFixture
) -> None:
    log, stop = ServiceLog(), asyncio.Event()
    services = [log.service("claim"), log.service("reaper", early_end), log.service("heartbeat")]

    with pytest.raises(ServiceEnded, match="reaper ended unexpectedly"):
        await run_services(services, stop)
    assert stop.is_set()
    assert [line for line in log.lines if "reaper" not in line] == ["claim done", "heartbeat done"]
    assert "reaper ended unexpectedly" in caplog.text


async def test_ended_service_says_what_our_error_says(caplog: pytest.LogCaptureFixture) -> None:
    async def give_up(_stop: asyncio.Event) -> None:
        raise HorsiesError("gave up after 3 failed attempts", hint="wait longer")

    with pytest.raises(ServiceEnded, match="reaper ended unexpectedly: gave up after 3") as caught:
        await run_services([ServiceLog().service("reaper", give_up)], asyncio.Event())
    assert caught.value.help_text == "wait longer"
    assert [(record.message, record.exc_info) for record in caplog.records] == [
        ("reaper ended unexpectedly: gave up after 3 failed attempts, stopping the worker", None)
    ]


async def test_error_of_an_ended_service_is_the_cause() -> None:
    with pytest.raises(ServiceEnded) as caught:
        await run_services([ServiceLog().service("reaper", raise_early)], asyncio.Event())

    assert isinstance(caught.value.__cause__, RuntimeError)


async def test_failure_during_stop_lets_the_others_finish() -> None:
    log, stop = ServiceLog(), asyncio.Event()
    stop.set()

    with pytest.raises(ServiceEnded, match="claim"):
        await run_services([log.service("claim", raise_when_stopped), log.service("heartbeat")], stop)
    assert log.lines == ["heartbeat done"]


async def test_cancellation_cancels_all_services() -> None:
    log, stop = ServiceLog(), asyncio.Event()
    running = asyncio.create_task(run_services([log.service("finish", never_end), log.service("heartbeat")], stop))
    stop.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    running.cancel()

    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert sorted(log.lines) == ["finish cancelled", "heartbeat cancelled"]
