"""A workflow definition that hangs while it is built."""

from __future__ import annotations

import threading

from horsies import Horsies, SubWorkflowNode, WorkflowDefinition, WorkflowSpec
from horsies.engine import events
from tests.support.ledger import Ledger
from tests.support.workers import worker_in_process
from tests.support.workflow_app import LOCATOR, register_workflow_tasks, task_of

RELEASED = threading.Event()


class Hanging(WorkflowDefinition[int]):
    name = "hanging"
    definition_key = "tests.hanging"

    @classmethod
    def build_with(cls, app: Horsies) -> WorkflowSpec[int]:
        RELEASED.wait(30)
        first = task_of(app, "step").node()(value=1)
        return app.workflow("hanging", [first], output=first, definition_key="tests.hanging")


async def test_hanging_definition_does_not_block_the_reaper(database_url: str) -> None:
    async with (
        Ledger.open(database_url),
        worker_in_process(database_url, register=register_workflow_tasks, locator=LOCATOR) as worker,
    ):
        node: SubWorkflowNode[int] = SubWorkflowNode(Hanging)
        spec = worker.app.workflow("hangs", [node], output=node, definition_key="tests.hangs")
        handle = (await spec.start_async()).unwrap()
        before = len(worker.events_of(events.PassFinished))
        try:
            await worker.until(lambda: len(worker.events_of(events.PassFinished)) >= before + 3, within_s=8)
        finally:
            RELEASED.set()
        assert (await handle.get_async(20_000)).ok_value == 1
