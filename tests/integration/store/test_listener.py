from __future__ import annotations

import asyncio

from horsies.store.connection import ConnectionSpec
from horsies.store.listen import Listener


def ignore(_: str) -> None:
    pass


async def test_listener_retries_when_server_refuses(database_url: str) -> None:
    """Any server rejects an empty channel name, as a standby rejects LISTEN until it is promoted."""
    changes: asyncio.Queue[bool] = asyncio.Queue()
    spec = ConnectionSpec(url=database_url, masked_url="test")
    running = asyncio.create_task(Listener(spec, {"": ignore}, on_change=changes.put_nowait).run())
    async with asyncio.timeout(10):
        assert [await changes.get(), await changes.get()] == [False, False]
    assert not running.done()
    running.cancel()
