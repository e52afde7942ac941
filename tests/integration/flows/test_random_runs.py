"""Random graphs, run for real, end in the state that the graph alone determines."""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import TYPE_CHECKING

import asyncpg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from horsies.flows import control
from horsies.model.workflow.outcome import outcome_of
from horsies.store.db import Database
from horsies.store.link import Link
from tests.support.dags import Dag, dags
from tests.support.flows import Bench, node, nodes_of, run_of

if TYPE_CHECKING:
    from uuid import UUID

    from horsies.model.workflow.plan import NodePlan

CHANCES = st.integers(0, 2**32).map(Random)


@given(dag=dags(), chance=CHANCES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_random_run_ends_as_its_graph_says(database_url: str, dag: Dag, chance: Random) -> None:
    asyncio.run(_live(database_url, dag, chance))


async def _live(database_url: str, dag: Dag, chance: Random) -> None:
    async with Database(Link(url=database_url, masked_url=database_url)) as database:
        bench = Bench(database)
        workflow_id = await bench.start(*_nodes(dag), on_error=dag.on_error, success=dag.success)
        await _run(bench, workflow_id, dag, chance)
        connection = await asyncpg.connect(database_url)
        try:
            run, states = await run_of(connection, workflow_id), await nodes_of(connection, workflow_id)
        finally:
            await connection.close()
        assert states == dag.last_states()
        assert run["status"] == outcome_of(dag.last_states(), dag.success).status
        assert len(bench.started) == sum(state != "SKIPPED" for state in states), "each once"


async def _run(bench: Bench, workflow_id: UUID, dag: Dag, chance: Random) -> None:
    """Any number of tasks at a time, pauses between them, and outcomes whose advance comes late."""
    while True:
        await bench.outbox.work_off()
        await control.resume(bench.database, workflow_id)  # where a failure has paused it
        rows = await bench.claim(chance.randint(1, 8))
        if not rows:
            return
        if chance.random() < 0.2:
            await control.pause(bench.database, workflow_id)
        await bench.finish(rows, lambda name: "ok" if dag.nodes[int(name[1:])].succeeds else "err")


def _nodes(dag: Dag) -> list[NodePlan]:
    return [
        node(
            index,
            *each.dependencies,
            join=each.join,
            min_success=each.min_success,
            allow_failed_deps=each.allow_failed_deps,
            ctx_from=tuple(f"n{one}" for one in each.context) or None,
            kwargs_json=json.dumps({"index": index}),
        )
        for index, each in enumerate(dag.nodes)
    ]
