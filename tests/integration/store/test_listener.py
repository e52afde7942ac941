from __future__ import annotations

import asyncio

from horsies.store.connection import ConnectionSpec
from horsies.store.listen import Listener


def ignore(_: str) -> None:
    pass


async def test_listener_retries_when_server_refuses(database_url: str) -> None:
    """A standby refuses LISTEN, and may be promoted; a channel without a name is refused by any server."""
    hearing: asyncio.Queue[bool] = asyncio.Queue()
    link = ConnectionSpec(url=database_url, masked_url="test")
    running = asyncio.create_task(Listener(link, {"": ignore}, on_change=hearing.put_nowait).run())
    async with asyncio.timeout(10):
        assert [await hearing.get(), await hearing.get()] == [False, False]
    assert not running.done()
    running.cancel()
