"""Sub-workflows that cannot be started fail their node and nothing else."""

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


class FunctionDefinitions:
    """Definitions built by a function of their key and arguments."""

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
    """Set at teardown, so that no thread outlives its test."""
    event = threading.Event()
    yield event
    event.set()


def raising(error: BaseException) -> FunctionDefinitions:
    def make(key: str, _: Mapping[str, object]) -> WorkflowPlan:
        if key == "bad":
            raise error
        return LEAF

    return FunctionDefinitions(make)


async def test_plan_rejected_by_the_database_fails_its_node(database: Database, connection: Connection) -> None:
    # Too long for the index on names, and not compressible.
    name = "".join(chr(0x4E00 + (index * 7919) % 20_000) for index in range(6_500))
    driver = WorkflowDriver(database, known=FakeDefinitions({"bad": plan(node(0), name=name), "leaf": LEAF}))
    rejected, healthy = await driver.start_run(sub_node(0, "bad")), await driver.start_run(sub_node(0, "leaf"))
    await driver.run()
    assert (await node_row(connection, rejected, 0))["error"]["error_code"] == "WORKFLOW_ENQUEUE_FAILED"
    assert [(await run_row(connection, run))["status"] for run in (rejected, healthy)] == ["FAILED", "COMPLETED"]
    assert await connection.fetchval("SELECT count(*) FROM horsies_workflow_outbox") == 0


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (SystemExit(0), "SystemExit: 0"),
        (asyncio.CancelledError(), "CancelledError"),
        (KeyError(), "KeyError"),
        (TimeoutError(), "TimeoutError"),
        (ValueError("a\0b \ud800"), "ValueError: a"),
    ],
    ids=["exit", "cancelled", "without text", "timeout", "text the database cannot store"],
)
async def test_any_exception_of_a_definition_becomes_the_node_error(
    database: Database, connection: Connection, error: BaseException, text: str
) -> None:
    driver = WorkflowDriver(database, known=raising(error))
    root = await driver.start_run(sub_node(0, "bad"), sub_node(1, "leaf"))
    await driver.run()
    stored = (await node_row(connection, root, 0))["error"]
    assert stored["error_code"] == "WORKFLOW_ENQUEUE_FAILED"
    assert stored["message"].startswith(f"the sub-workflow could not be started: {text}")
    assert await node_statuses(connection, root) == ["FAILED", "COMPLETED"]


async def test_hanging_builds_time_out_without_blocking_others(
    database: Database, connection: Connection, hang: threading.Event
) -> None:
    is_built, loop = asyncio.Event(), asyncio.get_running_loop()

    def make(key: str, _: Mapping[str, object]) -> WorkflowPlan:
        if key == "bad":
            hang.wait()
        loop.call_soon_threadsafe(is_built.set)
        return LEAF

    driver = WorkflowDriver(database, known=FunctionDefinitions(make), build_timeout_s=1.5)
    hung = [await driver.start_run(sub_node(0, "bad")) for _ in range(40)]
    healthy = await driver.start_run(sub_node(0, "leaf"))
    working = asyncio.create_task(driver.run())
    async with asyncio.timeout(1.2):
        await is_built.wait()
    assert not working.done()
    await working
    assert (await run_row(connection, healthy))["status"] == "COMPLETED"
    errors = [(await node_row(connection, run, 0))["error"]["message"] for run in hung]
    assert set(errors) == {"the sub-workflow could not be started: building it took longer than 1.5 s"}


async def test_recursion_with_the_same_inputs_is_stopped(database: Database, connection: Connection) -> None:
    known = FunctionDefinitions(
        lambda key, _: plan(sub_node(0, "b" if key == "a" else "a"), name=key, definition_key=key)
    )
    driver = WorkflowDriver(database, known=known)
    root = await driver.start_run(sub_node(0, "a"))
    await driver.run()
    assert (await run_row(connection, root))["status"] == "FAILED"
    assert known.count == 2
    message = await connection.fetchval(
        """
        SELECT error ->> 'message' FROM horsies_workflow_tasks WHERE error ->> 'error_code' = 'WORKFLOW_ENQUEUE_FAILED'
        """
    )
    assert message == "the sub-workflow could not be started: endless recursion: a → b → a"


async def test_recursion_with_other_inputs_has_a_depth_limit(database: Database, connection: Connection) -> None:
    def count_down(key: str, kwargs: Mapping[str, object]) -> WorkflowPlan:
        left = kwargs["left"]
        assert isinstance(left, int)
        return LEAF if not left else plan(sub_node(0, key, kwargs_json=f'{{"left": {left - 1}}}'), definition_key=key)

    driver = WorkflowDriver(database, known=FunctionDefinitions(count_down))
    shallow = await driver.start_run(sub_node(0, "down", kwargs_json='{"left": 5}'))
    deep = await driver.start_run(sub_node(0, "down", kwargs_json='{"left": 1000}'))
    await driver.run()
    assert [(await run_row(connection, run))["status"] for run in (shallow, deep)] == ["COMPLETED", "FAILED"]
    assert await connection.fetchval("SELECT max(depth) FROM horsies_workflows") == 50


async def test_endlessly_growing_tree_can_be_cancelled(database: Database, connection: Connection) -> None:
    grown = asyncio.Event()
    loop = asyncio.get_running_loop()

    def add_two(key: str, kwargs: Mapping[str, object]) -> WorkflowPlan:
        path = str(kwargs.get("path", ""))
        if len(path) >= 4:
            loop.call_soon_threadsafe(grown.set)
        deeper = [sub_node(index, key, kwargs_json=f'{{"path": "{path}{index}"}}') for index in range(2)]
        return plan(*deeper, definition_key=key)

    driver = WorkflowDriver(database, known=FunctionDefinitions(add_two))
    root = await driver.start_run(sub_node(0, "tree"))
    growing = asyncio.create_task(driver.run())
    await grown.wait()
    async with asyncio.timeout(10):
        await control.cancel(database, root)
        await growing
    statuses = await connection.fetch("SELECT DISTINCT status FROM horsies_workflows")
    assert [row["status"] for row in statuses] == ["CANCELLED"]


async def test_start_request_of_a_finished_node_is_deleted(database: Database, connection: Connection) -> None:
    known = raising(ValueError("never"))
    driver = WorkflowDriver(database, known=known)
    root = await driver.start_run(sub_node(0, "bad"))
    await driver.run()
    await connection.execute(
        """
        INSERT INTO horsies_workflow_outbox (task_id, workflow_id, task_index, needs)
        SELECT id, workflow_id, task_index, 'bad' FROM horsies_workflow_tasks WHERE workflow_id = $1
        """,
        root,
    )
    async with asyncio.timeout(10):
        await driver.run()
    assert known.count == 2
    assert await connection.fetchval("SELECT count(*) FROM horsies_workflow_outbox") == 0


async def test_run_with_damaged_data_is_quarantined(database: Database, connection: Connection) -> None:
    driver = WorkflowDriver(database, known=raising(ValueError("never")))
    damaged, healthy = await driver.start_run(sub_node(0, "bad")), await driver.start_run(sub_node(0, "leaf"))
    await connection.execute("UPDATE horsies_workflows SET success_policy = '{}' WHERE id = $1", damaged)
    async with asyncio.timeout(10):
        await driver.run()
    assert (await run_row(connection, healthy))["status"] == "COMPLETED"
    assert await connection.fetchval("SELECT quarantined_at IS NOT NULL FROM horsies_workflow_outbox")
    assert await connection.fetchval("SELECT kind FROM horsies_events") == "outbox_quarantined"
