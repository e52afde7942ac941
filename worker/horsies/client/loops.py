"""One resource for each event loop, closed when its loop shuts down."""

from __future__ import annotations

import asyncio
import os
import weakref
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

R = TypeVar("R")


class PerLoop(Generic[R]):
    """Connections belong to the loop that made them, and a program may run several, one after the other or in threads.

    A loop that ends properly, as `asyncio.run` does it, closes its asynchronous generators; ours closes the resource.
    A forked child has no use for the parent's loops and begins with none.
    """

    def __init__(self, make: Callable[[], R], close: Callable[[R], Awaitable[None]]) -> None:
        self._make = make
        self._close = close
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    async def here(self) -> R:
        """The resource of the running loop, made on first use."""
        loop = asyncio.get_running_loop()
        if loop not in self._made:
            self._made[loop] = self._make()
            self._guards[loop] = self._until_the_loop_ends(self._made[loop])
            await anext(self._guards[loop])
        return self._made[loop]

    async def close(self) -> None:
        """Close the resource of the running loop; the next use makes a new one."""
        loop = asyncio.get_running_loop()
        if loop in self._guards:
            await self._guards.pop(loop).aclose()
            self._made.pop(loop, None)

    async def _until_the_loop_ends(self, resource: R) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await self._close(resource)

    def _forget(self) -> None:
        self._made: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, R] = weakref.WeakKeyDictionary()
        self._guards: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncGenerator[None]] = (
            weakref.WeakKeyDictionary()
        )
