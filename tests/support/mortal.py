"""A database for someone who dies: before or after a statement of one's choice, as a process that is killed does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horsies.store.database import Database, Transaction

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from horsies.store.connection import Link
    from horsies.store.queries import Query


class Killed(BaseException):
    """Nothing that catches errors may catch this."""


class Mortal(Database):
    """Dies at the statement with this number, from 0; what had not been committed is lost with the connection.

    `written` names the statements that were sent. Without a number it lives, and counts.
    """

    def __init__(self, link: Link, dies_at: int | None = None, *, is_after: bool = False) -> None:
        super().__init__(link)
        self.written: list[str] = []
        self._dies_at = dies_at
        self._is_after = is_after

    async def fetch(self, query: Query[Any], *arguments: object) -> list[Any]:
        return await self._at(query, lambda: super(Mortal, self).fetch(query, *arguments))

    async def execute(self, query: Query[None], *arguments: object) -> None:
        await self._at(query, lambda: super(Mortal, self).execute(query, *arguments))

    async def run(self, work: Callable[[Transaction], Awaitable[Any]]) -> Any:
        async def mortally(transaction: Transaction) -> Any:
            return await work(_MortalTransaction(transaction, self))

        return await super().run(mortally)

    async def _at(self, query: Query[Any], send: Callable[[], Awaitable[Any]]) -> Any:
        is_last = len(self.written) == self._dies_at
        self.written.append(query.name)
        if is_last and not self._is_after:
            raise Killed(query.name)
        answer = await send()
        if is_last:
            raise Killed(query.name)
        return answer


class _MortalTransaction(Transaction):
    def __init__(self, inner: Transaction, mortal: Mortal) -> None:
        super().__init__(inner.connection, timeout_s=None)
        self._mortal = mortal

    async def fetch(self, query: Query[Any], *arguments: object) -> list[Any]:
        return await self._mortal._at(query, lambda: super(_MortalTransaction, self).fetch(query, *arguments))

    async def execute(self, query: Query[None], *arguments: object) -> None:
        await self._mortal._at(query, lambda: super(_MortalTransaction, self).execute(query, *arguments))
