"""A prefetched task that passes its good_until is not started."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from horsies.engine.dispatcher import Capacity
from horsies.engine.in_flight import InFlightTask
from horsies.store.claims import ClaimKeyRow, ClaimRef, ClaimStore
from tests.support.ledger import Ledger
from tests.support.workers import worker_in_process

CLAIMED = "SELECT 1 FROM horsies_tasks WHERE id = $1::text::uuid AND status = 'CLAIMED'"
CLAIM_OF = """
SELECT claimed_at IS NOT NULL AS has_claim, claimed_by_worker_id::text AS owner,
       good_until < clock_timestamp() AS is_past
  FROM horsies_tasks
 WHERE id = $1::text::uuid
"""


async def test_claimed_task_past_good_until_expires(database_url: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    config = {"prefetch_buffer": 1, "claim_lease_ms": 60_000, "max_claim_renew_age_ms": 120_000}
    async with (
        Ledger.open(database_url) as ledger,
        worker_in_process(database_url, config=config, processes=1) as worker,
    ):
        slow = await worker.send("wait_for", str(gate))
        await ledger.until_started(slow)
        late = await worker.send("work", good_until=datetime.now(UTC) + timedelta(seconds=1))
        await ledger.until(lambda: ledger.fetch(CLAIMED, late))

        async def is_past() -> bool:
            return (await ledger.fetch(CLAIM_OF, late))[0]["is_past"]

        await ledger.until(is_past)
        gate.touch()
        row = (await ledger.until_terminal(late))[late]
        (claim,) = await ledger.fetch(CLAIM_OF, late)
        assert (row["status"], row["error_code"], row["attempts"]) == ("EXPIRED", "TASK_EXPIRED", 0)
        assert (claim["has_claim"], claim["owner"]) == (True, worker.worker_id)
        assert (await worker.app.get_result_async(late)).err_value.error_code == "TASK_EXPIRED"
        assert await ledger.starts(late) == []
        await ledger.until_terminal(slow)
        assert await ledger.violations([slow, late]) == []


async def test_task_started_with_an_expired_one_is_assigned_first(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the expiry is stored, the child of a started task may exit, and others may recover it."""
    gate, started = tmp_path / "gate", asyncio.Event()
    match_slots, expire = Capacity.match_slots, ClaimStore.expire
    config = {"prefetch_buffer": 2, "claim_lease_ms": 60_000, "max_claim_renew_age_ms": 120_000}
    async with (
        Ledger.open(database_url) as ledger,
        worker_in_process(database_url, config=config, processes=2) as worker,
    ):
        slow = [await worker.send("wait_for", str(gate)) for _ in range(2)]
        await ledger.until_started(*slow)
        sent = await worker.send("work")
        late = await worker.send("work", good_until=datetime.now(UTC) + timedelta(seconds=1))
        await ledger.until(lambda: ledger.fetch(CLAIMED, late))

        def match_both(capacity: Capacity, waiting: Iterable[InFlightTask]) -> Iterator[tuple[InFlightTask, int]]:
            slots = list(match_slots(capacity, waiting))
            yield from slots if len(slots) == 2 else ()

        async def expire_after_start(store: ClaimStore, documents: Mapping[ClaimRef, str]) -> list[ClaimKeyRow]:
            await started.wait()
            return await expire(store, documents)

        async def is_past() -> bool:
            return (await ledger.fetch(CLAIM_OF, late))[0]["is_past"]

        monkeypatch.setattr(Capacity, "match_slots", match_both)
        monkeypatch.setattr(ClaimStore, "expire", expire_after_start)
        await ledger.until(is_past)
        gate.touch()
        await ledger.until_started(sent)
        started.set()
        rows = await ledger.until_terminal(sent, late, *slow)
        assert (rows[sent]["status"], rows[late]["status"]) == ("COMPLETED", "EXPIRED")
        assert await ledger.violations([sent, late, *slow]) == []
