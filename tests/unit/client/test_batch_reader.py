"""Reads of many waiters share statements."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from horsies.client.waiter import MAX_READ_IDS, BatchReader
from horsies.errors import DatabaseUnreachable
from horsies.store.tasks import TaskResultRow


class FakeStore:
    """Answers once `may_answer` is set, and records the requested ids."""

    def __init__(self) -> None:
        self.requested: list[list[UUID]] = []
        self.may_answer = asyncio.Event()
        self.failure: BaseException | None = None

    async def read(self, task_ids: list[UUID]) -> list[TaskResultRow]:
        self.requested.append(task_ids)
        await self.may_answer.wait()
        if self.failure is not None:
            raise self.failure
        return [
            TaskResultRow(id=task_id, task_name="t", status="COMPLETED", document=None)
            for task_id in task_ids
            if task_id.int
        ]


async def let_run(*tasks: asyncio.Task[TaskResultRow | None]) -> None:
    """Let every task run as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_reads_during_a_statement_share_the_next_one() -> None:
    store = FakeStore()
    reader = BatchReader(store.read)
    first = asyncio.create_task(reader.read(UUID(int=1)))
    await let_run(first)
    others = [asyncio.create_task(reader.read(UUID(int=number))) for number in (2, 3, 3, 2)]
    await let_run(*others)
    store.may_answer.set()
    found = await asyncio.gather(first, *others)
    assert [row.id.int for row in found if row] == [1, 2, 3, 3, 2]
    assert [[task_id.int for task_id in ids] for ids in store.requested] == [[1], [2, 3]]


async def test_a_statement_reads_a_limited_number_of_ids() -> None:
    store = FakeStore()
    store.may_answer.set()
    reader = BatchReader(store.read)
    await asyncio.gather(*(reader.read(UUID(int=number)) for number in range(1, 2 * MAX_READ_IDS + 2)))
    assert [len(ids) for ids in store.requested] == [MAX_READ_IDS, MAX_READ_IDS, 1]


async def test_missing_row_is_none() -> None:
    store = FakeStore()
    store.may_answer.set()
    assert await BatchReader(store.read).read(UUID(int=0)) is None


async def test_failure_reaches_all_pending_reads_but_no_later_ones() -> None:
    store = FakeStore()
    store.failure = DatabaseUnreachable("gone")
    store.may_answer.set()
    reader = BatchReader(store.read)
    found = await asyncio.gather(*(reader.read(UUID(int=n)) for n in (1, 2)), return_exceptions=True)
    assert found == [store.failure, store.failure]
    store.failure = None
    assert await reader.read(UUID(int=1)) is not None


async def test_cancelled_read_does_not_disturb_the_others() -> None:
    store = FakeStore()
    reader = BatchReader(store.read)
    cancelled, waiting = (asyncio.create_task(reader.read(UUID(int=1))) for _ in range(2))
    await let_run(cancelled, waiting)
    cancelled.cancel()
    store.may_answer.set()
    assert await waiting is not None
    with pytest.raises(asyncio.CancelledError):
        await cancelled
