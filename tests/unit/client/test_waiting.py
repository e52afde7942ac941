"""Many who wait, few statements."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from horsies.client.waiter import MAX_READ_IDS, BatchReader
from horsies.errors import DatabaseUnreachable
from horsies.store.tasks import TaskResultRow


class Rows:
    """A store that answers when it is told to, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[UUID]] = []
        self.may_answer = asyncio.Event()
        self.failure: BaseException | None = None

    async def read(self, task_ids: list[UUID]) -> list[TaskResultRow]:
        self.asked.append(task_ids)
        await self.may_answer.wait()
        if self.failure is not None:
            raise self.failure
        return [
            TaskResultRow(id=each, task_name="t", status="COMPLETED", document=None) for each in task_ids if each.int
        ]


async def settled(*tasks: asyncio.Task[TaskResultRow | None]) -> None:
    """Let every task run as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_all_who_ask_while_a_statement_is_on_its_way_share_the_next_one() -> None:
    rows = Rows()
    looks = BatchReader(rows.read)
    first = asyncio.create_task(looks.read(UUID(int=1)))
    await settled(first)
    others = [asyncio.create_task(looks.read(UUID(int=number))) for number in (2, 3, 3, 2)]
    await settled(*others)
    rows.may_answer.set()
    found = await asyncio.gather(first, *others)
    assert [row.id.int for row in found if row] == [1, 2, 3, 3, 2]
    assert [[each.int for each in ids] for ids in rows.asked] == [[1], [2, 3]]


async def test_a_statement_asks_for_a_limited_number() -> None:
    rows = Rows()
    rows.may_answer.set()
    looks = BatchReader(rows.read)
    await asyncio.gather(*(looks.read(UUID(int=number)) for number in range(1, 2 * MAX_READ_IDS + 2)))
    assert [len(ids) for ids in rows.asked] == [MAX_READ_IDS, MAX_READ_IDS, 1]


async def test_what_is_not_there_is_none() -> None:
    rows = Rows()
    rows.may_answer.set()
    assert await BatchReader(rows.read).read(UUID(int=0)) is None


async def test_a_failure_reaches_all_who_asked_and_none_who_ask_later() -> None:
    rows = Rows()
    rows.failure = DatabaseUnreachable("gone")
    rows.may_answer.set()
    looks = BatchReader(rows.read)
    found = await asyncio.gather(*(looks.read(UUID(int=n)) for n in (1, 2)), return_exceptions=True)
    assert found == [rows.failure, rows.failure]
    rows.failure = None
    assert await looks.read(UUID(int=1)) is not None


async def test_one_who_gives_up_does_not_disturb_the_others() -> None:
    rows = Rows()
    looks = BatchReader(rows.read)
    impatient, patient = (asyncio.create_task(looks.read(UUID(int=1))) for _ in range(2))
    await settled(impatient, patient)
    impatient.cancel()
    rows.may_answer.set()
    assert await patient is not None
    with pytest.raises(asyncio.CancelledError):
        await impatient
