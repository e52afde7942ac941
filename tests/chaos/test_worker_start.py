"""Database errors during a worker's start: it retries and registers once."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.faults import Proxy
from tests.support.ledger import Ledger
from tests.support.workers import worker_in_process

BUSY_TWICE = (
    "CREATE SEQUENCE tries",
    """
    CREATE FUNCTION be_busy() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF nextval('tries') <= 2 THEN
            RAISE EXCEPTION 'not now' USING ERRCODE = 'lock_not_available';
        END IF;
        RETURN NEW;
    END $$
    """,
    "CREATE TRIGGER busy BEFORE INSERT ON horsies_workers FOR EACH ROW EXECUTE FUNCTION be_busy()",
)


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    async with Ledger.open(database_url) as ledger:
        yield ledger


async def test_registration_is_retried_after_a_transient_error(ledger: Ledger, database_url: str) -> None:
    for statement in BUSY_TWICE:
        await ledger.fetch(statement)
    async with worker_in_process(database_url, processes=1) as worker:
        rows = await ledger.fetch("SELECT id::text, state FROM horsies_workers")
    assert rows == [{"id": worker.worker_id, "state": "running"}]


async def test_registration_with_lost_answer_succeeds_once(ledger: Ledger, database_url: str) -> None:
    async with Proxy(database_url).running() as proxy:
        proxy.lose_answer("workers.register", containing=b"")
        async with worker_in_process(database_url, config={"database_url": proxy.url}, processes=1) as worker:
            rows = await ledger.fetch("SELECT id::text, state FROM horsies_workers")
        assert proxy.lost == 1
    assert rows == [{"id": worker.worker_id, "state": "running"}]
