"""Services run together, and stop one after another."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from horsies.engine.service import ServiceEnded, run_services


class Diary:
    """Services that write down when they begin and end."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def service(self, name: str, work: Callable[[asyncio.Event], Awaitable[object]] | None = None) -> Written:
        return Written(name, self, work or asyncio.Event.wait)


class Written:
    def __init__(self, name: str, diary: Diary, work: Callable[[asyncio.Event], Awaitable[object]]) -> None:
        self.name = name
        self._diary = diary
        self._work = work

    async def run(self, stop: asyncio.Event) -> None:
        try:
            await self._work(stop)
        except asyncio.CancelledError:
            self._diary.lines.append(f"{self.name} cancelled")
            raise
        self._diary.lines.append(f"{self.name} done")


async def raise_at_once(_stop: asyncio.Event) -> None:
    raise RuntimeError("out of luck")


async def raise_when_stopped(stop: asyncio.Event) -> None:
    await stop.wait()
    raise RuntimeError("out of luck")


async def return_at_once(_stop: asyncio.Event) -> None:
    return


async def never_end(_stop: asyncio.Event) -> None:
    await asyncio.Event().wait()


async def test_services_stop_in_the_order_given_each_after_the_one_before() -> None:
    diary, stop, draining, may_end = Diary(), asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow_to_stop(told: asyncio.Event) -> None:
        await told.wait()
        draining.set()
        await may_end.wait()

    services = [diary.service("claim", slow_to_stop), diary.service("finish"), diary.service("beats")]
    running = asyncio.create_task(run_services(services, stop))
    stop.set()
    await draining.wait()
    assert diary.lines == []
    may_end.set()
    await running

    assert diary.lines == ["claim done", "finish done", "beats done"]


@pytest.mark.parametrize("death", [raise_at_once, return_at_once])
async def test_one_that_ends_by_itself_stops_the_others_loudly(
    death: Callable[[asyncio.Event], Awaitable[object]], caplog: pytest.LogCaptureFixture
) -> None:
    diary, stop = Diary(), asyncio.Event()
    services = [diary.service("claim"), diary.service("reaper", death), diary.service("beats")]

    with pytest.raises(ServiceEnded, match="reaper ended unexpectedly"):
        await run_services(services, stop)
    assert stop.is_set()
    assert [line for line in diary.lines if "reaper" not in line] == ["claim done", "beats done"]
    assert "reaper ended unexpectedly" in caplog.text


async def test_the_error_behind_a_death_is_kept() -> None:
    with pytest.raises(ServiceEnded) as caught:
        await run_services([Diary().service("reaper", raise_at_once)], asyncio.Event())

    assert isinstance(caught.value.__cause__, RuntimeError)


async def test_one_that_fails_while_it_stops_lets_the_others_finish_first() -> None:
    diary, stop = Diary(), asyncio.Event()
    stop.set()

    with pytest.raises(ServiceEnded, match="claim"):
        await run_services([diary.service("claim", raise_when_stopped), diary.service("beats")], stop)
    assert diary.lines == ["beats done"]


async def test_given_up_all_are_cancelled() -> None:
    diary, stop = Diary(), asyncio.Event()
    running = asyncio.create_task(run_services([diary.service("finish", never_end), diary.service("beats")], stop))
    stop.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    running.cancel()

    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert sorted(diary.lines) == ["beats cancelled", "finish cancelled"]
