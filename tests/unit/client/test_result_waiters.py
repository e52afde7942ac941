"""Waits share statements, and each ends with its own row, error or timeout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from horsies.client.broker import ExpectedEnds
from horsies.client.results import WaitTimeout
from horsies.client.waiter import MAX_READ_IDS, ResultWaiters
from horsies.errors import BrokerError, DatabaseUnreachable
from horsies.model.task import TASK_TERMINAL_STATES
from horsies.store.connection import ConnectionSpec
from horsies.store.tasks import TaskResultRow

Waiters = ResultWaiters[TaskResultRow]
NOWHERE = ConnectionSpec(url="postgresql://nobody@127.0.0.1:1/nothing", masked_url="nowhere")


class FakeStore:
    """Reads `statuses` by id, answers once `may_answer` is set, and records the requested ids."""

    def __init__(self) -> None:
        self.statuses: dict[str, str] = {}
        self.requested: list[list[str]] = []
        self.is_reading = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.failure: BaseException | None = None

    async def read(self, task_ids: list[str]) -> list[TaskResultRow]:
        self.requested.append(task_ids)
        rows = [TaskResultRow(key, "t", self.statuses[key], None) for key in task_ids if key in self.statuses]
        self.is_reading.set()
        await self.may_answer.wait()
        if self.failure is not None:
            raise self.failure
        return rows


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
async def waiters(store: FakeStore) -> AsyncIterator[Waiters]:
    waiters = Waiters(
        NOWHERE, store.read, channel="done", done_states=TASK_TERMINAL_STATES, expected_ends=ExpectedEnds()
    )
    yield waiters
    await waiters.close()


async def start(*waits: Coroutine[Any, Any, TaskResultRow | None]) -> list[asyncio.Task[TaskResultRow | None]]:
    """Start the waits and let each run as far as it can."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


async def test_waits_during_a_statement_share_the_next_one(store: FakeStore, waiters: Waiters) -> None:
    store.statuses = dict.fromkeys("abc", "COMPLETED")
    first = await start(waiters.wait("a", 0))
    others = await start(*(waiters.wait(key, 0) for key in "bccb"))
    store.may_answer.set()
    found = await asyncio.gather(*first, *others)
    assert [row.id for row in found if row] == ["a", "b", "c", "c", "b"]
    assert store.requested == [["a"], ["b", "c"]]


async def test_running_statement_does_not_answer_a_later_wait(store: FakeStore, waiters: Waiters) -> None:
    store.statuses["a"] = "RUNNING"
    (early,) = await start(waiters.wait("a", 0))
    store.statuses["a"] = "COMPLETED"
    (late,) = await start(waiters.wait("a", 0))
    store.may_answer.set()
    with pytest.raises(WaitTimeout):
        await early
    row = await late
    assert row is not None
    assert row.status == "COMPLETED"


async def test_a_statement_reads_a_limited_number_of_ids(store: FakeStore, waiters: Waiters) -> None:
    store.may_answer.set()
    await asyncio.gather(*(waiters.wait(str(number), 0) for number in range(2 * MAX_READ_IDS + 1)))
    assert [len(ids) for ids in store.requested] == [MAX_READ_IDS, MAX_READ_IDS, 1]


@pytest.mark.parametrize("timeout_s", [0, 60, None])
async def test_missing_row_is_none(store: FakeStore, waiters: Waiters, timeout_s: float | None) -> None:
    store.may_answer.set()
    assert await waiters.wait("a", timeout_s) is None


async def test_failure_reaches_all_waits_but_no_later_ones(store: FakeStore, waiters: Waiters) -> None:
    store.failure = DatabaseUnreachable("gone")
    store.may_answer.set()
    found = await asyncio.gather(*(waiters.wait(key, 60) for key in "ab"), return_exceptions=True)
    assert found == [store.failure, store.failure]
    store.failure = None
    assert await waiters.wait("a", 60) is None


async def test_cancelled_wait_does_not_disturb_the_others(store: FakeStore, waiters: Waiters) -> None:
    store.statuses["a"] = "COMPLETED"
    cancelled, waiting = await start(waiters.wait("a", None), waiters.wait("a", None))
    cancelled.cancel()
    store.may_answer.set()
    assert await waiting is not None
    with pytest.raises(asyncio.CancelledError):
        await cancelled


async def test_cancelled_wait_leaves_no_request_behind(store: FakeStore, waiters: Waiters) -> None:
    store.statuses["b"] = "COMPLETED"
    store.may_answer.set()
    (cancelled,) = await start(waiters.wait("a", None))
    cancelled.cancel()
    assert await waiters.wait("b", None) is not None


async def test_single_check_reports_the_status(store: FakeStore, waiters: Waiters) -> None:
    store.statuses["a"] = "PENDING"
    store.may_answer.set()
    with pytest.raises(WaitTimeout) as timeout:
        await waiters.wait("a", 0)
    assert (timeout.value.status, timeout.value.seen_s_ago) == ("PENDING", 0)


async def test_first_read_may_take_longer_than_the_timeout(store: FakeStore, waiters: Waiters) -> None:
    store.statuses["a"] = "COMPLETED"
    (waiting,) = await start(waiters.wait("a", 0))
    store.may_answer.set()
    assert await waiting is not None


@pytest.mark.parametrize("timeout_s", [0, 0.01])
async def test_first_read_without_an_answer_is_a_plain_timeout(
    waiters: Waiters, monkeypatch: pytest.MonkeyPatch, timeout_s: float
) -> None:
    monkeypatch.setattr("horsies.client.waiter.FIRST_READ_TIMEOUT_S", 0.02)
    with pytest.raises(TimeoutError) as timeout:
        await waiters.wait("a", timeout_s)
    assert not isinstance(timeout.value, WaitTimeout)


async def test_later_read_without_answer_times_out_with_the_last_status(
    store: FakeStore, waiters: Waiters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horsies.client.waiter.POLL_NOT_LISTENING_S", 0)
    store.statuses["a"] = "RUNNING"
    store.may_answer.set()
    (waiting,) = await start(waiters.wait("a", 0.1))
    store.may_answer.clear()
    with pytest.raises(WaitTimeout, match="RUNNING"):
        await waiting


async def test_poll_finds_a_result_that_is_not_notified(
    store: FakeStore, waiters: Waiters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horsies.client.waiter.POLL_NOT_LISTENING_S", 0)
    store.statuses["a"] = "RUNNING"
    store.may_answer.set()
    (waiting,) = await start(waiters.wait("a", None))
    store.statuses["a"] = "COMPLETED"
    assert await waiting is not None


async def test_row_is_not_read_again_after_its_wait_has_ended(
    store: FakeStore, waiters: Waiters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horsies.client.waiter.POLL_NOT_LISTENING_S", 0)
    store.statuses["a"] = "COMPLETED"
    (waiting,) = await start(waiters.wait("a", None))
    await start()  # polls request the row while it is read
    store.may_answer.set()
    assert await waiting is not None
    await start()
    assert store.requested == [["a"]]


async def test_closing_ends_waits_even_during_a_statement(store: FakeStore, waiters: Waiters) -> None:
    (waiting,) = await start(waiters.wait("a", None))
    assert store.is_reading.is_set()
    await waiters.close()
    with pytest.raises(BrokerError, match="closed while waiting"):
        await waiting


async def test_wait_on_closed_waiters_is_refused(store: FakeStore, waiters: Waiters) -> None:
    (waiting,) = await start(waiters.wait("a", None))
    closing = asyncio.create_task(waiters.close())
    await asyncio.sleep(0)
    for timeout_s in (0, None):  # during the close, and after it
        with pytest.raises(BrokerError, match="closed while waiting"):
            await waiters.wait("b", timeout_s)
        await closing
    with pytest.raises(BrokerError, match="closed while waiting"):
        await waiting
    assert store.requested == [["a"]]
