"""The write batcher with a database that answers late, refuses rows, or is unavailable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.engine.completer import UnstoredFailure, WriteBatcher, is_row_error, size_bytes
from horsies.engine.in_flight import CompletedTask
from horsies.engine.service import Backoff
from horsies.errors import DatabaseUnreachable
from horsies.model.settings.worker import WorkerResilienceConfig
from horsies.model.task import TaskAttemptOutcome
from horsies.store.claims import ClaimRef, FinishedAttempt
from horsies.store.connection import StatementFailed

UNAVAILABLE = DatabaseUnreachable("no answer")
REFUSED = StatementFailed("no text may hold it", sqlstate="22P05", retryable=False)
FORBIDDEN = StatementFailed("permission denied", sqlstate="42501", retryable=False)


async def no_delay(_seconds: float) -> None:
    await asyncio.sleep(0)


@dataclass
class Table:
    """A table of numbers that answers once `may_answer` is set, refuses `refuses` and raises `failures` first."""

    refuses: frozenset[int] = frozenset()
    failures: list[Exception] = field(default_factory=list[Exception])
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    statements: list[list[int]] = field(default_factory=list[list[int]])
    stored: list[int] = field(default_factory=list[int])
    batches: list[tuple[list[int], list[str]]] = field(default_factory=list[tuple[list[int], list[str]]])
    refused: list[tuple[int, StatementFailed]] = field(default_factory=list[tuple[int, StatementFailed]])
    sent: asyncio.Event = field(default_factory=asyncio.Event)
    on_rejected_row: Callable[[int], None] = lambda _: None

    async def send(self, rows: list[int]) -> list[str]:
        self.statements.append(rows)
        self.sent.set()
        await self.may_answer.wait()
        if self.failures:
            raise self.failures.pop(0)
        if self.refuses & set(rows):
            raise REFUSED
        self.stored += rows
        return [f"row {row}" for row in rows]

    def on_rejected(self, row: int, error: StatementFailed) -> None:
        self.refused.append((row, error))
        self.on_rejected_row(row)

    def batcher(
        self, *, max_rows: int = 500, max_bytes: int = 4_000_000, attempts: int = 0
    ) -> WriteBatcher[int, list[str]]:
        return WriteBatcher(
            "numbers",
            self.send,
            on_stored=lambda rows, answers: self.batches.append((rows, answers)),
            on_rejected=self.on_rejected,
            backoff=Backoff(WorkerResilienceConfig(db_retry_max_attempts=attempts), sleep=no_delay),
            size_of=lambda row: row,
            max_rows=max_rows,
            max_bytes=max_bytes,
        )


def open_table(*, refuses: frozenset[int] = frozenset(), failures: Sequence[Exception] = ()) -> Table:
    table = Table(refuses=refuses, failures=list(failures))
    table.may_answer.set()
    return table


@asynccontextmanager
async def running(batcher: WriteBatcher[int, list[str]]) -> AsyncGenerator[asyncio.Task[None]]:
    """Run the batcher; at the end stop it and wait until it has sent all rows."""
    stop = asyncio.Event()
    task = asyncio.create_task(batcher.run(stop))
    try:
        yield task
    finally:
        stop.set()
        with suppress(asyncio.CancelledError):
            await task


async def test_rows_put_during_a_statement_share_the_next_one() -> None:
    table = Table()
    batcher = table.batcher()
    async with running(batcher):
        batcher.put([1])
        await table.sent.wait()
        batcher.put([2])
        batcher.put([3, 4])
        table.may_answer.set()

    assert table.statements == [[1], [2, 3, 4]]
    assert table.batches == [([1], ["row 1"]), ([2, 3, 4], ["row 2", "row 3", "row 4"])]
    assert batcher.unstored == ()


@pytest.mark.parametrize(
    ("max_rows", "max_bytes", "statements"),
    [(2, 100, [[1, 2], [3, 4], [5]]), (500, 6, [[1, 2, 3], [4], [5]]), (500, 3, [[1, 2], [3], [4], [5]])],
)
async def test_batches_are_limited_in_rows_and_bytes(
    max_rows: int, max_bytes: int, statements: list[list[int]]
) -> None:
    table = open_table()
    batcher = table.batcher(max_rows=max_rows, max_bytes=max_bytes)
    async with running(batcher):
        batcher.put([1, 2, 3, 4, 5])

    assert table.statements == statements


@pytest.mark.parametrize(("text", "size"), [("", 0), ("abc", 3), ("äöü", 6), ("€", 3), ("😀", 4)])
def test_size_of_an_outcome_is_its_document_in_utf8(text: str, size: int) -> None:
    chunk: Any = None  # the size does not depend on it
    finish = FinishedAttempt(claim=ClaimRef(uuid4(), 1, uuid4()), outcome=TaskAttemptOutcome.FAILED, document=text)
    assert size_bytes(CompletedTask(chunk, 0, text, run_ms=1.0)) == size
    assert size_bytes(UnstoredFailure(chunk, 0, finish)) == size


async def test_refused_row_does_not_block_others() -> None:
    table = open_table(refuses=frozenset({3}))
    batcher = table.batcher()
    async with running(batcher):
        batcher.put(range(1, 9))

    assert table.stored == [1, 2, 4, 5, 6, 7, 8]
    assert table.refused == [(3, REFUSED)]
    assert batcher.unstored == ()


async def test_batch_is_sent_again_unchanged_after_an_outage() -> None:
    table = open_table(failures=[UNAVAILABLE, UNAVAILABLE])
    batcher = table.batcher()
    async with running(batcher):
        batcher.put([1, 2])

    assert table.statements == [[1, 2]] * 3
    assert table.stored == [1, 2]


async def test_batcher_keeps_its_rows_when_retries_run_out() -> None:
    table = open_table(failures=[UNAVAILABLE] * 3)
    batcher = table.batcher(attempts=3)
    batcher.put([1, 2])

    with pytest.raises(DatabaseUnreachable):
        await batcher.run(asyncio.Event())
    assert batcher.unstored == (1, 2)


async def test_statement_error_ends_the_batcher_and_refuses_no_row() -> None:
    table = open_table(failures=[FORBIDDEN])
    batcher = table.batcher()
    batcher.put([1, 2])

    with pytest.raises(StatementFailed):
        await batcher.run(asyncio.Event())
    assert (table.refused, batcher.unstored) == ([], (1, 2))


async def test_stopped_batcher_sends_its_remaining_rows() -> None:
    table = open_table()
    batcher = table.batcher(max_rows=1)
    stop = asyncio.Event()
    stop.set()
    batcher.put([1, 2, 3])
    await batcher.run(stop)

    assert table.stored == [1, 2, 3]


async def test_idle_batcher_ends_when_stopped() -> None:
    async with running(Table().batcher()) as task:
        await asyncio.sleep(0)

    assert task.done()


async def test_cancelled_batcher_knows_its_unstored_rows() -> None:
    table = Table()
    batcher = table.batcher(max_rows=2)
    async with running(batcher) as task:
        batcher.put([1, 2, 3])
        await table.sent.wait()
        task.cancel()

    assert batcher.unstored == (1, 2, 3)


async def test_replacement_of_a_refused_row_is_sent_last() -> None:
    table = open_table(refuses=frozenset({1}))
    table.on_rejected_row = lambda row: batcher.put([row + 100])
    batcher = table.batcher()
    async with running(batcher):
        batcher.put([1, 2])

    assert table.stored == [2, 101]


@pytest.mark.parametrize(
    ("sqlstate", "expected"), [("22P05", True), ("23514", True), ("54000", True), ("42501", False), ("25006", False)]
)
def test_row_errors_are_recognised_by_sqlstate(sqlstate: str, expected: bool) -> None:
    assert is_row_error(StatementFailed("no", sqlstate=sqlstate, retryable=False)) == expected
    assert not is_row_error(StatementFailed("no", sqlstate=sqlstate, retryable=True))


@given(
    puts=st.lists(st.integers(1, 9), max_size=30),
    refuses=st.frozensets(st.integers(0, 60), max_size=10),
    outages=st.integers(0, 5),
    max_rows=st.integers(1, 20),
)
def test_no_row_is_lost_duplicated_or_reordered(
    puts: list[int], refuses: frozenset[int], outages: int, max_rows: int
) -> None:
    """Put numbered groups of rows while the database is unavailable at first and refuses some rows."""

    async def put_all() -> Table:
        table = open_table(refuses=refuses, failures=[UNAVAILABLE] * outages)
        batcher = table.batcher(max_rows=max_rows)
        async with running(batcher):
            number = 0
            for size in puts:
                batcher.put(range(number, number + size))
                number += size
                await asyncio.sleep(0)
        return table

    table = asyncio.run(put_all())
    everything = list(range(sum(puts)))

    assert table.stored == [row for row in everything if row not in refuses]
    assert [row for rows, _ in table.batches for row in rows] == table.stored
    assert [row for row, _ in table.refused] == [row for row in everything if row in refuses]
