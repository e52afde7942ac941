"""The completer with a database that becomes unavailable between two of its statements."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast
from uuid import uuid4

from horsies.engine import events
from horsies.engine.completer import Completer, finished_attempt
from horsies.engine.in_flight import CompletedTask, InFlight, InFlightTask
from horsies.engine.pool.protocol import EncodedOutcome
from horsies.engine.reporter import Reporter
from horsies.engine.service import Backoff
from horsies.errors import DatabaseUnreachable
from horsies.model.capacity import Fence
from horsies.model.settings import RecoveryConfig
from horsies.model.settings.worker import WorkerResilienceConfig
from horsies.model.task import TaskAttemptOutcome
from horsies.store.claims import AttemptOutcomeRow, ClaimedRow, ClaimRef, ClaimStatusRow, ClaimStore, FinishedAttempt

CHILD: Any = type("Child", (), {"pid": 1})()
FAILED = EncodedOutcome(outcome=TaskAttemptOutcome.FAILED, document='{"err": {}}', error_code="ODD")


class Claims:
    """Stores failures once; completed tasks were lost. The first look-up fails."""

    def __init__(self) -> None:
        self.stored: list[FinishedAttempt] = []
        self.lookups = 0

    async def complete(self, *_columns: object, **_: object) -> int:
        return 0

    async def finish(self, finishes: Sequence[FinishedAttempt], **_: object) -> list[ClaimStatusRow]:
        new = [finish for finish in finishes if finish not in self.stored]
        self.stored += new
        return [ClaimStatusRow(finish.claim.task_id, finish.claim.claim_token, "FAILED") for finish in new]

    async def recorded_outcomes(self, claims: Sequence[ClaimRef]) -> list[AttemptOutcomeRow]:
        self.lookups += 1
        if self.lookups == 1:
            raise DatabaseUnreachable("no answer")
        return [
            AttemptOutcomeRow(id=id_, claim_token=token, outcome=finish.outcome, error_code=finish.error_code)
            for finish in self.stored
            for id_, token, _ in [finish.claim]
            if finish.claim in claims
        ]

    async def current_states(self, _ids: object) -> list[Any]:
        return []


def claimed_row() -> ClaimedRow:
    columns: dict[str, Any] = dict.fromkeys(ClaimedRow._fields, "")
    columns |= {"id": uuid4(), "claim_token": 1, "sent_at": datetime.now(UTC), "details": None}
    return ClaimedRow(**columns)


async def test_stored_failure_is_not_late_if_the_look_up_of_another_failed() -> None:
    in_flight, config, emitted = InFlight(), WorkerResilienceConfig(db_retry_initial_ms=100), list[events.Event]()
    reporter = Reporter(cast("Any", None), Backoff(config))
    reporter.add_listener(emitted.append)
    is_stored, stop = asyncio.Event(), asyncio.Event()
    completer = Completer(
        cast("ClaimStore", Claims()),
        in_flight,
        reporter,
        fence=Fence(RecoveryConfig(), now=time.monotonic()),
        backoff=Backoff(config),
        on_stored=is_stored.set,
        on_retry=lambda _: None,
        on_nodes_finished=lambda: None,
    )
    chunk = in_flight.add_chunk(CHILD, [claimed_row(), claimed_row()], uuid4(), coroutines=0, expected_ms=1.0)
    failed = InFlightTask(chunk.rows[0], chunk.worker_id, chunk, 0)
    completer.store(failed, finished_attempt(failed, FAILED))
    completer.complete([CompletedTask(chunk, 1, '{"ok": 1}', run_ms=1.0)])
    running = asyncio.create_task(completer.run(stop))
    async with asyncio.timeout(5):
        await is_stored.wait()
        stop.set()
        await running
    late = [event.task_id for event in emitted if isinstance(event, events.LateResultRefused)]
    assert late == [str(chunk.rows[1].id)]
