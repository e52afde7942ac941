"""F18 with real processes: a worker is killed at each stage of a run, another of the same app carries on."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.flow_app import LOCATOR, add_flows
from tests.support.flow_specs import diamond, nested
from tests.support.ledger import Ledger
from tests.support.ledger_app import ledger_app
from tests.support.workers import horsies_worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from horsies import WorkflowSpec

STAGES = {
    "a task is claimed or runs": "SELECT FROM horsies_tasks WHERE status IN ('CLAIMED', 'RUNNING')",
    "an outcome is stored": "SELECT FROM horsies_tasks WHERE status = 'COMPLETED'",
    "a dependent is enqueued": "SELECT FROM horsies_workflow_tasks WHERE task_index = 1 AND status <> 'PENDING'",
}
OTHER_APP: dict[str, Any] = {"queue_mode": "custom", "custom_queues": [{"name": "other"}]}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("spec", "result"), [(diamond, 6), (nested, 20)], ids=["dag", "sub-workflow"])
async def test_a_run_survives_its_worker(
    database_url: str, spec: Callable[..., WorkflowSpec[int]], result: int, stage: str
) -> None:
    app = ledger_app(database_url)
    add_flows(app)
    async with (
        Ledger.open(database_url) as ledger,
        horsies_worker(database_url, "--processes", "1", config=OTHER_APP),
        horsies_worker(database_url, "--processes", "1", locator=LOCATOR) as first,
    ):
        handle = (await spec(app, seconds=0.2).start_async()).unwrap()
        await ledger.until(lambda: ledger.fetch(STAGES[stage]))
        first.signal(signal.SIGKILL)
        await first.until_gone()
        async with horsies_worker(database_url, "--processes", "1", locator=LOCATOR):
            ended = await handle.get_async(60_000)
        assert ended.ok_value == result, ended
        starts = await ledger.starts()
        assert len(starts) <= len({start.task_id for start in starts}) + 1, "one more start, of the interrupted node"
    await app.close_async()
