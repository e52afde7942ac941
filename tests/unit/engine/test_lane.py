"""Rows on their way to a database that answers late, refuses, or is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.engine.completer import WriteBatcher, is_row_error
from horsies.engine.service import Backoff
from horsies.errors import DatabaseUnreachable
from horsies.model.settings.worker import WorkerResilienceConfig
from horsies.store.connection import StatementFailed

AWAY = DatabaseUnreachable("no answer")
REFUSED = StatementFailed("no text may hold it", sqlstate="22P05", retryable=False)
FORBIDDEN = StatementFailed("permission denied", sqlstate="42501", retryable=False)


async def no_pause(_seconds: float) -> None:
    await asyncio.sleep(0)


@dataclass
class Table:
    """A database of numbers: it answers when it may, refuses what it was told to, and fails as often as it was told."""

    refuses: frozenset[int] = frozenset()
    failures: list[Exception] = field(default_factory=list[Exception])
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    statements: list[list[int]] = field(default_factory=list[list[int]])
    stored: list[int] = field(default_factory=list[int])
    answered: list[tuple[list[int], list[str]]] = field(default_factory=list[tuple[list[int], list[str]]])
    refused: list[tuple[int, StatementFailed]] = field(default_factory=list[tuple[int, StatementFailed]])
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    put_instead: Callable[[int], None] = lambda _: None

    async def send(self, rows: list[int]) -> list[str]:
        self.statements.append(rows)
        self.asked.set()
        await self.may_answer.wait()
        if self.failures:
            raise self.failures.pop(0)
        if self.refuses & set(rows):
            raise REFUSED
        self.stored += rows
        return [f"row {row}" for row in rows]

    def hear_refusal(self, row: int, error: StatementFailed) -> None:
        self.refused.append((row, error))
        self.put_instead(row)

    def lane(
        self, *, largest_rows: int = 500, largest_bytes: int = 4_000_000, attempts: int = 0
    ) -> WriteBatcher[int, str]:
        return WriteBatcher(
            "numbers",
            self.send,
            on_stored=lambda rows, answers: self.answered.append((rows, answers)),
            on_refused=self.hear_refusal,
            backoff=Backoff(WorkerResilienceConfig(db_retry_max_attempts=attempts), sleep=no_pause),
            size_of=lambda row: row,
            max_rows=largest_rows,
            max_bytes=largest_bytes,
        )


def open_table(*, refuses: frozenset[int] = frozenset(), failures: Sequence[Exception] = ()) -> Table:
    table = Table(refuses=refuses, failures=list(failures))
    table.may_answer.set()
    return table


@asynccontextmanager
async def running(lane: WriteBatcher[int, str]) -> AsyncGenerator[asyncio.Task[None]]:
    """The lane at work; at the end it has sent what it had."""
    stop = asyncio.Event()
    task = asyncio.create_task(lane.run(stop))
    try:
        yield task
    finally:
        stop.set()
        with suppress(asyncio.CancelledError):
            await task


async def test_what_arrives_while_a_statement_is_on_its_way_leaves_together_in_the_next() -> None:
    table = Table()
    lane = table.lane()
    async with running(lane):
        lane.put([1])
        await table.asked.wait()
        lane.put([2])
        lane.put([3, 4])
        table.may_answer.set()

    assert table.statements == [[1], [2, 3, 4]]
    assert table.answered == [([1], ["row 1"]), ([2, 3, 4], ["row 2", "row 3", "row 4"])]
    assert lane.unstored == ()


@pytest.mark.parametrize(
    ("largest_rows", "largest_bytes", "statements"),
    [(2, 100, [[1, 2], [3, 4], [5]]), (500, 6, [[1, 2, 3], [4], [5]]), (500, 3, [[1, 2], [3], [4], [5]])],
)
async def test_a_statement_is_bounded_in_rows_and_bytes_but_takes_one_row_of_any_size(
    largest_rows: int, largest_bytes: int, statements: list[list[int]]
) -> None:
    table = open_table()
    lane = table.lane(largest_rows=largest_rows, largest_bytes=largest_bytes)
    async with running(lane):
        lane.put([1, 2, 3, 4, 5])

    assert table.statements == statements


async def test_a_row_that_is_refused_holds_up_no_other() -> None:
    table = open_table(refuses=frozenset({3}))
    lane = table.lane()
    async with running(lane):
        lane.put(range(1, 9))

    assert table.stored == [1, 2, 4, 5, 6, 7, 8]
    assert table.refused == [(3, REFUSED)]
    assert lane.unstored == ()


async def test_a_batch_without_a_database_is_sent_again_as_it_was() -> None:
    table = open_table(failures=[AWAY, AWAY])
    lane = table.lane()
    async with running(lane):
        lane.put([1, 2])

    assert table.statements == [[1, 2]] * 3
    assert table.stored == [1, 2]


async def test_a_lane_gives_up_after_the_attempts_allowed_and_keeps_its_rows() -> None:
    table = open_table(failures=[AWAY] * 3)
    lane = table.lane(attempts=3)
    lane.put([1, 2])

    with pytest.raises(DatabaseUnreachable):
        await lane.run(asyncio.Event())
    assert lane.unstored == (1, 2)


async def test_an_error_that_is_no_rows_fault_ends_the_lane_and_blames_no_row() -> None:
    table = open_table(failures=[FORBIDDEN])
    lane = table.lane()
    lane.put([1, 2])

    with pytest.raises(StatementFailed):
        await lane.run(asyncio.Event())
    assert (table.refused, lane.unstored) == ([], (1, 2))


async def test_told_to_stop_a_lane_sends_what_it_has_and_ends() -> None:
    table = open_table()
    lane = table.lane(largest_rows=1)
    stop = asyncio.Event()
    stop.set()
    lane.put([1, 2, 3])
    await lane.run(stop)

    assert table.stored == [1, 2, 3]


async def test_an_idle_lane_ends_when_it_is_told() -> None:
    async with running(Table().lane()) as task:
        await asyncio.sleep(0)

    assert task.done()


async def test_a_lane_that_is_given_up_says_what_is_not_known_to_be_stored() -> None:
    table = Table()
    lane = table.lane(largest_rows=2)
    async with running(lane) as task:
        lane.put([1, 2, 3])
        await table.asked.wait()
        task.cancel()

    assert lane.unstored == (1, 2, 3)


async def test_what_takes_the_place_of_a_refused_row_leaves_after_those_that_waited() -> None:
    table = open_table(refuses=frozenset({1}))
    table.put_instead = lambda row: lane.put([row + 100])
    lane = table.lane()
    async with running(lane):
        lane.put([1, 2])

    assert table.stored == [2, 101]


@pytest.mark.parametrize(
    ("sqlstate", "expected"), [("22P05", True), ("23514", True), ("54000", True), ("42501", False), ("25006", False)]
)
def test_only_what_a_row_holds_is_a_rows_fault(sqlstate: str, expected: bool) -> None:
    assert is_row_error(StatementFailed("no", sqlstate=sqlstate, retryable=False)) == expected
    assert not is_row_error(StatementFailed("no", sqlstate=sqlstate, retryable=True))


@given(
    puts=st.lists(st.integers(1, 9), max_size=30),
    refuses=st.frozensets(st.integers(0, 60), max_size=10),
    outages=st.integers(0, 5),
    largest_rows=st.integers(1, 20),
)
def test_nothing_is_lost_doubled_or_reordered(
    puts: list[int], refuses: frozenset[int], outages: int, largest_rows: int
) -> None:
    """Groups of rows, numbered as they are put, pass a table that is away at first and refuses some of them."""

    async def pass_all() -> Table:
        table = open_table(refuses=refuses, failures=[AWAY] * outages)
        lane = table.lane(largest_rows=largest_rows)
        async with running(lane):
            number = 0
            for size in puts:
                lane.put(range(number, number + size))
                number += size
                await asyncio.sleep(0)
        return table

    table = asyncio.run(pass_all())
    everything = list(range(sum(puts)))

    assert table.stored == [row for row in everything if row not in refuses]
    assert [row for rows, _ in table.answered for row in rows] == table.stored
    assert [row for row, _ in table.refused] == [row for row in everything if row in refuses]
