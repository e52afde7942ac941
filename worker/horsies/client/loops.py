"""One resource for each event loop, closed when its loop shuts down."""

from __future__ import annotations

import asyncio
import os
import weakref
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

R = TypeVar("R")

_OF_THE_PARENT: list[object] = []


class PerLoop(Generic[R]):
    """Connections belong to the loop that made them, and a program may run several, one after the other or in threads.

    A loop that ends properly, as `asyncio.run` does it, closes its asynchronous generators; ours closes the resource.
    A forked child has no use for the parent's loops and begins with none.
    """

    def __init__(self, make: Callable[[], R], close: Callable[[R], Awaitable[None]]) -> None:
        self._make = make
        self._close = close
        self._begin()
        os.register_at_fork(after_in_child=self._begin_in_child)

    async def here(self) -> R:
        """The resource of the running loop, made on first use."""
        loop = asyncio.get_running_loop()
        if loop not in self._made:
            self._made[loop] = self._make()
            self._guards[loop] = self._until_the_loop_ends()
            await anext(self._guards[loop])
        return self._made[loop]

    async def close(self) -> None:
        """Close the resource of the running loop; the next use makes a new one."""
        if guard := self._guards.get(asyncio.get_running_loop()):
            await guard.aclose()

    async def _until_the_loop_ends(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            # Forgotten first: whoever asks while it closes gets another. Kept, it would keep its loop alive.
            loop = asyncio.get_running_loop()
            del self._guards[loop]
            await self._close(self._made.pop(loop))

    def _begin_in_child(self) -> None:
        # Let go of here, they would be closed here: with a goodbye on sockets that the parent still uses.
        _OF_THE_PARENT.append((self._made, self._guards))
        self._begin()

    def _begin(self) -> None:
        self._made: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, R] = weakref.WeakKeyDictionary()
        self._guards: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncGenerator[None]] = (
            weakref.WeakKeyDictionary()
        )
