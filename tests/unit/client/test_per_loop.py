"""One resource per event loop, closed with its loop."""

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


async def set_resource(resources: PerLoop[Resource]) -> Resource:
    """Set a resource that references its loop, as connections do."""
    resource = Resource(loop=asyncio.get_running_loop())
    await resources.set(resource)
    return resource


async def test_get_returns_the_resource_of_the_loop() -> None:
    resources = per_loop()
    assert resources.get() is None
    resource = await set_resource(resources)
    assert resources.get() is resource
    await resources.close()


def test_resource_is_closed_with_its_loop() -> None:
    resources = per_loop()

    async def found() -> Resource | None:
        return resources.get()

    resource = asyncio.run(set_resource(resources))
    assert len(resource.closed_in) == 1
    assert asyncio.run(found()) is None


async def test_close_removes_the_resource_and_can_be_repeated() -> None:
    resources = per_loop()
    resource = await set_resource(resources)
    await resources.close()
    await resources.close()
    assert len(resource.closed_in) == 1
    assert resources.get() is None
    assert not resources.has_any


def test_loops_in_threads_have_separate_resources() -> None:
    resources = per_loop()
    found: list[Resource] = []

    def work() -> None:
        found.append(asyncio.run(set_resource(resources)))

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [resource.closed_in for resource in found] == [[resource.loop] for resource in found]


def test_closed_loop_is_garbage_collected() -> None:
    resources = per_loop()

    async def use_loop() -> weakref.ref[asyncio.AbstractEventLoop]:
        await set_resource(resources)
        return weakref.ref(asyncio.get_running_loop())

    ended = asyncio.run(use_loop())
    gc.collect()
    assert ended() is None


def test_resource_of_an_abruptly_closed_loop_is_abandoned() -> None:
    resources = per_loop()
    loop = asyncio.new_event_loop()
    left = loop.run_until_complete(set_resource(resources))
    loop.close()
    other = asyncio.run(set_resource(resources))
    assert (left.is_abandoned, left.closed_in) == (True, [])
    assert (other.is_abandoned, len(other.closed_in)) == (False, 1)
    assert not resources.has_any


def test_forked_child_starts_without_resources() -> None:
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
        "if child == 0:\n"
        "    loop.run_until_complete(loop.shutdown_asyncgens())\n"
        "    os._exit(42 if here is None and not closed else 1)\n"
        "assert here is mine\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=20, env=dict(os.environ)
    )
    assert (done.stdout, done.stderr) == ("42\n", "")
