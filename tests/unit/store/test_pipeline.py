"""A statement under way while the next is made."""

from __future__ import annotations

import asyncio

import pytest

from horsies.store.tasks import Pipeline


async def test_the_maker_goes_on_while_a_statement_is_under_way() -> None:
    steps: list[str] = []
    answered = asyncio.Event()

    async def statement(name: str) -> None:
        steps.append(f"{name} left")
        await answered.wait()

    async with Pipeline() as pipeline:
        await pipeline.put(statement("first"))
        steps.append("second is made")
        answered.set()
        await pipeline.put(statement("second"))
    assert steps == ["first left", "second is made", "second left"]


async def test_the_error_of_a_statement_stops_the_next() -> None:
    sent: list[str] = []

    async def statement(name: str) -> None:
        sent.append(name)
        raise LookupError(name)

    async def put_both() -> None:
        async with Pipeline() as pipeline:
            await pipeline.put(statement("first"))
            await pipeline.put(statement("second"))

    with pytest.raises(LookupError, match="first"):
        await put_both()
    assert sent == ["first"]


async def test_the_error_of_the_last_statement_comes_out_at_the_end() -> None:
    async def statement() -> None:
        await asyncio.sleep(0)
        raise LookupError

    with pytest.raises(LookupError):
        async with Pipeline() as pipeline:
            await pipeline.put(statement())


async def test_a_maker_that_fails_leaves_no_statement_under_way() -> None:
    ended = asyncio.Event()

    async def statement() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def fail_after_one() -> None:
        async with Pipeline() as pipeline:
            await pipeline.put(statement())
            raise LookupError

    with pytest.raises(LookupError):
        await fail_after_one()
    assert ended.is_set()
