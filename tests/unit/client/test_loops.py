from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import weakref
from dataclasses import dataclass, field

from horsies.client.broker import PerLoop


@dataclass(eq=False)
class Resource:
    closed_in: list[object] = field(default_factory=list[object])
    loop: asyncio.AbstractEventLoop | None = None
    is_abandoned: bool = False

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed_in.append(asyncio.get_running_loop())

    def abandon(self) -> None:
        self.is_abandoned = True


def per_loop() -> PerLoop[Resource]:
    return PerLoop(Resource.close, Resource.abandon)


async def kept_in(resources: PerLoop[Resource]) -> Resource:
    """A resource that holds its loop, as connections do."""
    resource = Resource(loop=asyncio.get_running_loop())
    await resources.set(resource)
    return resource


async def test_what_a_loop_keeps_is_found_there() -> None:
    resources = per_loop()
    assert resources.get() is None
    kept = await kept_in(resources)
    assert resources.get() is kept
    await resources.close()


def test_a_resource_is_closed_with_its_loop_and_is_not_the_next_loops() -> None:
    resources = per_loop()

    async def found() -> Resource | None:
        return resources.get()

    kept = asyncio.run(kept_in(resources))
    assert len(kept.closed_in) == 1
    assert asyncio.run(found()) is None


async def test_what_was_closed_is_forgotten_and_closing_twice_is_harmless() -> None:
    resources = per_loop()
    kept = await kept_in(resources)
    await resources.close()
    await resources.close()
    assert len(kept.closed_in) == 1
    assert resources.get() is None
    assert not resources.has_any


def test_loops_in_threads_have_resources_of_their_own() -> None:
    resources = per_loop()
    found: list[Resource] = []

    def work() -> None:
        found.append(asyncio.run(kept_in(resources)))

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.closed_in for each in found] == [[each.loop] for each in found]


def test_a_loop_that_has_ended_is_not_kept() -> None:
    resources = per_loop()

    async def keep() -> weakref.ref[asyncio.AbstractEventLoop]:
        await kept_in(resources)
        return weakref.ref(asyncio.get_running_loop())

    ended = asyncio.run(keep())
    gc.collect()
    assert ended() is None


def test_what_a_carelessly_closed_loop_leaves_behind_is_abandoned_when_another_loop_comes() -> None:
    resources = per_loop()
    loop = asyncio.new_event_loop()
    left = loop.run_until_complete(kept_in(resources))
    loop.close()
    other = asyncio.run(kept_in(resources))
    assert (left.is_abandoned, left.closed_in) == (True, [])
    assert (other.is_abandoned, len(other.closed_in)) == (False, 1)
    assert not resources.has_any


def test_a_forked_child_begins_with_none() -> None:
    code = (
        "import asyncio, os\n"
        "from horsies.client.broker import PerLoop\n"
        "closed = []\n"
        "async def close(resource): closed.append(resource)\n"
        "resources = PerLoop(close, closed.append)\n"
        "loop = asyncio.new_event_loop()\n"
        "mine = object()\n"
        "async def here(): return resources.get()\n"
        "loop.run_until_complete(resources.set(mine))\n"
        "child = os.fork()\n"
        "here = loop.run_until_complete(here())\n"
        "if child == 0: os._exit(42 if here is None and not closed else 1)\n"
        "assert here is mine\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=20, env=dict(os.environ)
    )
    assert (done.stdout, done.stderr) == ("42\n", "")
