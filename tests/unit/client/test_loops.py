from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import weakref
from dataclasses import dataclass, field

from horsies.client.loops import PerLoop


@dataclass(eq=False)
class Resource:
    closed_in: list[object] = field(default_factory=list[object])

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed_in.append(asyncio.get_running_loop())


def per_loop() -> PerLoop[Resource]:
    return PerLoop(Resource, Resource.close)


async def test_one_loop_has_one_resource_whoever_asks() -> None:
    resources = per_loop()
    found = await asyncio.gather(*(resources.here() for _ in range(10)))
    assert len(set(map(id, found))) == 1
    await resources.close()


def test_a_resource_is_closed_with_its_loop_and_the_next_loop_has_another() -> None:
    resources = per_loop()
    first, second = asyncio.run(resources.here()), asyncio.run(resources.here())
    assert first is not second
    assert [len(each.closed_in) for each in (first, second)] == [1, 1]


async def test_what_was_closed_is_made_anew_and_closing_twice_is_harmless() -> None:
    resources = per_loop()
    first = await resources.here()
    await resources.close()
    await resources.close()
    assert len(first.closed_in) == 1
    assert await resources.here() is not first
    await resources.close()


def test_loops_in_threads_have_resources_of_their_own() -> None:
    resources = per_loop()
    found: list[Resource] = []

    def work() -> None:
        found.append(asyncio.run(resources.here()))

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 5
    assert all(len(each.closed_in) == 1 for each in found)


def test_a_loop_that_has_ended_is_not_kept() -> None:
    resources = per_loop()

    async def here() -> weakref.ref[asyncio.AbstractEventLoop]:
        resource = await resources.here()
        resource.closed_in.append(asyncio.get_running_loop())
        return weakref.ref(asyncio.get_running_loop())

    ended = asyncio.run(here())
    gc.collect()
    assert ended() is None


def test_a_forked_child_begins_with_none() -> None:
    code = (
        "import asyncio, os\n"
        "from horsies.client.loops import PerLoop\n"
        "closed = []\n"
        "async def close(resource): closed.append(resource)\n"
        "resources = PerLoop(object, close)\n"
        "loop = asyncio.new_event_loop()\n"
        "mine = loop.run_until_complete(resources.here())\n"
        "child = os.fork()\n"
        "here = loop.run_until_complete(resources.here())\n"
        "if child == 0: os._exit(42 if here is not mine and not closed else 1)\n"
        "assert here is mine\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=20, env=dict(os.environ)
    )
    assert (done.stdout, done.stderr) == ("42\n", "")
