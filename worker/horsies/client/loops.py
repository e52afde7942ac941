"""One resource for each event loop, closed when its loop shuts down."""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Generic, TypeVar

from horsies.client.forks import in_each_child

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

R = TypeVar("R")

_OF_THE_PARENT: list[object] = []
_NOBODY = (None, None)


class PerLoop(Generic[R]):
    """Connections belong to the loop that made them, and a program may run several, one after the other or in threads.

    A loop that ends properly, as `asyncio.run` does it, closes its asynchronous generators; ours closes the resource.
    What a loop leaves behind that was closed without this is abandoned when the next resource is kept. A forked child
    has no use for the parent's loops and begins with none.
    """

    def __init__(self, close: Callable[[R], Awaitable[None]], abandon: Callable[[R], None]) -> None:
        self._close = close
        self._abandon = abandon
        self._begin()
        in_each_child(self._begin_in_child)

    @property
    def are_any(self) -> bool:
        """Whether any loop has one, running or not."""
        return bool(self._kept)

    def here(self) -> R | None:
        """The resource of the running loop; None where it has none."""
        loop, latest = asyncio.get_running_loop(), self.latest  # read once: another thread may have the next
        return latest[1] if loop is latest[0] else self._kept.get(loop)

    async def keep(self, resource: R) -> None:
        """Keep this one for the running loop, which has none; no other task runs before `here` finds it."""
        self._abandon_those_of_closed_loops()
        loop = asyncio.get_running_loop()
        self._kept[loop] = resource
        self.latest = loop, resource
        self._guards[loop] = self._until_the_loop_ends()
        await anext(self._guards[loop])

    async def close(self) -> None:
        """Close the resource of the running loop; safe where there is none."""
        if guard := self._guards.get(asyncio.get_running_loop()):
            await guard.aclose()

    async def _until_the_loop_ends(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            # Forgotten first: whoever asks while it closes gets another. Kept, it would keep its loop alive.
            loop = asyncio.get_running_loop()
            del self._guards[loop]
            if (resource := self._forgotten(loop)) is not None:
                await self._close(resource)

    def _abandon_those_of_closed_loops(self) -> None:
        # A resource keeps its loop alive, so the weak keys alone would let go of neither.
        for loop in [reference() for reference in self._kept.keyrefs()]:
            if loop is not None and loop.is_closed() and (resource := self._forgotten(loop)) is not None:
                self._guards.pop(loop, None)
                self._abandon(resource)

    def _forgotten(self, loop: asyncio.AbstractEventLoop) -> R | None:
        """What was kept for this loop, and is not from now on; None where another thread came first."""
        if loop is self.latest[0]:
            self.latest = _NOBODY
        return self._kept.pop(loop, None)

    def _begin_in_child(self) -> None:
        # Let go of here, they would be closed here: with a goodbye on sockets that the parent still uses.
        _OF_THE_PARENT.append((self._kept, self._guards))
        self._begin()

    def _begin(self) -> None:
        self.latest: tuple[asyncio.AbstractEventLoop, R] | tuple[None, None] = _NOBODY
        """The loop that got one last, and what it got: most programs have one loop, which need not be looked up."""
        self._kept: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, R] = weakref.WeakKeyDictionary()
        self._guards: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncGenerator[None]] = (
            weakref.WeakKeyDictionary()
        )
