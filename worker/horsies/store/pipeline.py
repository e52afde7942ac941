"""One statement on its way to the server while the next is being made."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Coroutine


class Pipeline:
    """Statements on one connection, one after the other; the maker is let go as soon as one has left.

    The first that fails stops the rest: its error comes out of the next `put`, or of the end of the block.
    """

    def __init__(self) -> None:
        self._under_way: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if self._under_way is None:
            return
        if failure is not None:
            # The connection is wanted for a rollback, so the statement must be off it.
            self._under_way.cancel()
            await asyncio.wait([self._under_way])
            return
        await self._under_way

    async def put(self, statement: Coroutine[Any, Any, None]) -> None:
        """Send a statement once the one before it is done."""
        try:
            if self._under_way is not None:
                await self._under_way
        except BaseException:
            statement.close()
            raise
        self._under_way = asyncio.create_task(statement)
        # A turn of the loop, in which the statement is written to the connection.
        await asyncio.sleep(0)
