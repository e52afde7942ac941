"""Sub-workflows that cannot be started: their node fails for it, and nobody else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping

import pytest

from horsies.model.workflow.plan import WorkflowPlan
from horsies.store.database import Database
from horsies.workflows import control
from tests.support.store import Connection
from tests.support.workflows import (
    FakeDefinitions,
    WorkflowDriver,
    node,
    node_row,
    node_statuses,
    plan,
    run_row,
    sub_node,
)

LEAF = plan(node(0), name="leaf", definition_key="leaf", output_index=0)


class Built:
    """Definitions that are built by a function of their key and arguments."""

    def __init__(self, make: Callable[[str, Mapping[str, object]], WorkflowPlan | None]) -> None:
        self._make = make
        self.count = 0

    def build(
        self, definition_key: str, kwargs: Mapping[str, object], injected: Mapping[str, object]
    ) -> WorkflowPlan | None:
        assert "workflow_meta" in injected
        self.count += 1
        return self._make(definition_key, kwargs)


@pytest.fixture
def hang() -> Iterator[threading.Event]:
    """Set in the end, so that no thread outlives its test."""
    event = threading.Event()
    yield event
    event.set()


def raising(error: BaseException) -> Built:
    def make(key: str, _: Mapping[str, object]) -> WorkflowPlan:
        if key == "bad":
            raise error
        return LEAF

    return Built(make)


async def test_a_plan_that_the_server_refuses_fails_its_node_and_no_other_run(
    database: Database, connection: Connection
) -> None:
    # Too long for the index over names, and not to be compressed.
    name = "".join(chr(0x4E00 + (index * 7919) % 20_000) for index in range(6_500))
    bench = WorkflowDriver(database, known=FakeDefinitions({"bad": plan(node(0), name=name), "leaf": LEAF}))
    poisoned, healthy = await bench.start_run(sub_node(0, "bad")), await bench.start_run(sub_node(0, "leaf"))
    await bench.run()
    assert (await node_row(connection, poisoned, 0))["error"]["error_code"] == "WORKFLOW_ENQUEUE_FAILED"
    assert [(await run_row(connection, each))["status"] for each in (poisoned, healthy)] == ["FAILED", "COMPLETED"]
    assert await connection.fetchval("SELECT count(*) FROM horsies_workflow_outbox") == 0


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (SystemExit(0), "SystemExit: 0"),
        (asyncio.CancelledError(), "CancelledError"),
        (KeyError(), "KeyError"),
        (TimeoutError(), "TimeoutError"),
        (ValueError("a\0b \ud800"), "ValueError: a"),
    ],
    ids=["exit", "cancelled", "without text", "timeout", "text that no database holds"],
)
async def test_whatever_a_definition_raises_is_the_error_of_its_node(
    database: Database, connection: Connection, error: BaseException, says: str
) -> None:
    bench = WorkflowDriver(database, known=raising(error))
    root = await bench.start_run(sub_node(0, "bad"), sub_node(1, "leaf"))
    await bench.run()
    stored = (await node_row(connection, root, 0))["error"]
    assert stored["error_code"] == "WORKFLOW_ENQUEUE_FAILED"
    assert stored["message"].startswith(f"the sub-workflow could not be started: {says}")
    assert await node_statuses(connection, root) == ["FAILED", "COMPLETED"]


async def test_builds_that_hang_hold_up_nobody_and_fail_alone(
    database: Database, connection: Connection, hang: threading.Event
) -> None:
    is_reached, loop = asyncio.Event(), asyncio.get_running_loop()

    def make(key: str, _: Mapping[str, object]) -> WorkflowPlan:
        if key == "bad":
            hang.wait()
        loop.call_soon_threadsafe(is_reached.set)
        return LEAF

    bench = WorkflowDriver(database, known=Built(make), build_timeout_s=1.5)
    hung = [await bench.start_run(sub_node(0, "bad")) for _ in range(40)]
    healthy = await bench.start_run(sub_node(0, "leaf"))
    working = asyncio.create_task(bench.run())
    async with asyncio.timeout(1.2):
        await is_reached.wait()
    assert not working.done()
    await working
    assert (await run_row(connection, healthy))["status"] == "COMPLETED"
    errors = [(await node_row(connection, each, 0))["error"]["message"] for each in hung]
    assert set(errors) == {"the sub-workflow could not be started: building it took longer than 1.5 s"}


async def test_a_definition_that_contains_itself_is_stopped_where_it_repeats(
    database: Database, connection: Connection
) -> None:
    known = Built(lambda key, _: plan(sub_node(0, "b" if key == "a" else "a"), name=key, definition_key=key))
    bench = WorkflowDriver(database, known=known)
    root = await bench.start_run(sub_node(0, "a"))
    await bench.run()
    assert (await run_row(connection, root))["status"] == "FAILED"
    assert known.count == 2
    message = await connection.fetchval(
        """
        SELECT error ->> 'message' FROM horsies_workflow_tasks WHERE error ->> 'error_code' = 'WORKFLOW_ENQUEUE_FAILED'
        """
    )
    assert message == "the sub-workflow could not be started: endless recursion: a → b → a"


async def test_a_definition_that_contains_itself_with_other_arguments_may_until_it_is_too_deep(
    database: Database, connection: Connection
) -> None:
    def counting(key: str, kwargs: Mapping[str, object]) -> WorkflowPlan:
        left = kwargs["left"]
        assert isinstance(left, int)
        return LEAF if not left else plan(sub_node(0, key, kwargs_json=f'{{"left": {left - 1}}}'), definition_key=key)

    bench = WorkflowDriver(database, known=Built(counting))
    few = await bench.start_run(sub_node(0, "down", kwargs_json='{"left": 5}'))
    many = await bench.start_run(sub_node(0, "down", kwargs_json='{"left": 1000}'))
    await bench.run()
    assert [(await run_row(connection, each))["status"] for each in (few, many)] == ["COMPLETED", "FAILED"]
    assert await connection.fetchval("SELECT max(depth) FROM horsies_workflows") == 50


async def test_a_tree_that_grows_without_end_can_be_cancelled(database: Database, connection: Connection) -> None:
    grown = asyncio.Event()
    loop = asyncio.get_running_loop()

    def two_more(key: str, kwargs: Mapping[str, object]) -> WorkflowPlan:
        path = str(kwargs.get("path", ""))
        if len(path) >= 4:
            loop.call_soon_threadsafe(grown.set)
        deeper = [sub_node(index, key, kwargs_json=f'{{"path": "{path}{index}"}}') for index in range(2)]
        return plan(*deeper, definition_key=key)

    bench = WorkflowDriver(database, known=Built(two_more))
    root = await bench.start_run(sub_node(0, "tree"))
    growing = asyncio.create_task(bench.run())
    await grown.wait()
    async with asyncio.timeout(10):
        await control.cancel(database, root)
        await growing
    statuses = await connection.fetch("SELECT DISTINCT status FROM horsies_workflows")
    assert [row["status"] for row in statuses] == ["CANCELLED"]


async def test_what_asks_for_a_node_that_has_ended_is_forgotten(database: Database, connection: Connection) -> None:
    known = raising(ValueError("never"))
    bench = WorkflowDriver(database, known=known)
    root = await bench.start_run(sub_node(0, "bad"))
    await bench.run()
    await connection.execute(
        """
        INSERT INTO horsies_workflow_outbox (task_id, workflow_id, task_index, needs)
        SELECT id, workflow_id, task_index, 'bad' FROM horsies_workflow_tasks WHERE workflow_id = $1
        """,
        root,
    )
    async with asyncio.timeout(10):
        await bench.run()
    assert known.count == 2
    assert await connection.fetchval("SELECT count(*) FROM horsies_workflow_outbox") == 0


async def test_a_run_too_damaged_to_fail_is_set_aside(database: Database, connection: Connection) -> None:
    bench = WorkflowDriver(database, known=raising(ValueError("never")))
    damaged, healthy = await bench.start_run(sub_node(0, "bad")), await bench.start_run(sub_node(0, "leaf"))
    await connection.execute("UPDATE horsies_workflow_tasks SET dependencies = '{77}' WHERE workflow_id = $1", damaged)
    async with asyncio.timeout(10):
        await bench.run()
    assert (await run_row(connection, healthy))["status"] == "COMPLETED"
    assert await connection.fetchval("SELECT quarantined_at IS NOT NULL FROM horsies_workflow_outbox")
    assert await connection.fetchval("SELECT kind FROM horsies_events") == "outbox_quarantined"
