"""The pipeline: the caller prepares the next statement while one is running."""

from __future__ import annotations

import asyncio

import pytest

from horsies.store.tasks import Pipeline


async def test_caller_continues_while_statement_runs() -> None:
    steps: list[str] = []
    answered = asyncio.Event()

    async def statement(name: str) -> None:
        steps.append(f"{name} sent")
        await answered.wait()

    async with Pipeline() as pipeline:
        await pipeline.put(statement("first"))
        steps.append("second prepared")
        answered.set()
        await pipeline.put(statement("second"))
    assert steps == ["first sent", "second prepared", "second sent"]


async def test_error_stops_the_next_statement() -> None:
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


async def test_error_of_last_statement_is_raised_at_the_end() -> None:
    async def statement() -> None:
        await asyncio.sleep(0)
        raise LookupError

    with pytest.raises(LookupError):
        async with Pipeline() as pipeline:
            await pipeline.put(statement())


async def test_failing_caller_leaves_no_running_statement() -> None:
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
