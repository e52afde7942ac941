"""Data passed between the tasks of a workflow, executed by a real worker."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from horsies.task_modules import import_module_or_file
from tests.support.cli import Executable

FLOWS = """
    from datetime import date, timedelta

    from horsies import (
        Horsies, NodeKey, SubWorkflowNode, TaskError, TaskResult, WorkflowContext, WorkflowDefinition, WorkflowMeta,
        WorkflowSpec, from_node,
    )

    app = Horsies()


    @app.task("day")
    def day(text: date) -> TaskResult[date, TaskError]:
        return TaskResult(ok=text)


    @app.task("after")
    async def after(start: TaskResult[date, TaskError], days: int) -> TaskResult[date, TaskError]:
        return TaskResult(ok=start.ok_value + timedelta(days=days))


    @app.task("told")
    def told(
        start: TaskResult[date, TaskError], workflow_ctx: WorkflowContext, workflow_meta: WorkflowMeta
    ) -> TaskResult[list[str], TaskError]:
        later, summary = workflow_ctx.result_for(weeks), workflow_ctx.summary_for(weeks)
        return TaskResult(ok=[
            f"{start.ok_value:%A}", f"{later.ok_value:%A}", f"{summary.completed_tasks}/{summary.total_tasks}",
            workflow_meta.workflow_id,
        ])


    class Weeks(WorkflowDefinition[date]):
        name = "weeks"
        definition_key = "weeks.v1"

        @classmethod
        def build_with(cls, app: Horsies, *, count: int, start: TaskResult[date, TaskError]) -> WorkflowSpec[date]:
            nodes = [day.node()(text=start.ok_value)]
            for _ in range(count):
                nodes.append(after.node()(start=from_node(nodes[-1]), days=8))
            return app.workflow("weeks", nodes, output=nodes[-1], definition_key=cls.definition_key)


    first = day.node(node_id="first")(text=date(2024, 2, 29))
    weeks = SubWorkflowNode(Weeks, {"count": 3, "start": from_node(first)}, node_id="weeks")
    last = told.node(args_from={"start": first}, waits_for=[first, weeks], workflow_ctx_from=[weeks])()
    spec = app.workflow("calendar", [first, weeks, last], output=last, definition_key="calendar.v1")
"""


async def test_typed_results_pass_through_tasks_and_sub_workflows(
    horsies: Executable, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "calendar_flows.py"
    path.write_text(dedent(FLOWS))
    monkeypatch.setenv("HORSIES_BROKER__DATABASE_URL", database_url)
    flows: Any = import_module_or_file(str(path))
    handle = (await flows.spec.start_async()).unwrap()
    with horsies.start("worker", f"{path}:app", HORSIES_BROKER__DATABASE_URL=database_url):
        result = await handle.get_async(timeout_ms=60_000)
    later = await handle.result_for_async(flows.first)
    results = (await handle.results_async()).unwrap()
    await flows.app.close_async()
    assert result.ok == ["Thursday", "Sunday", "4/4", handle.workflow_id]
    assert later.ok == date(2024, 2, 29)
    assert results["weeks"].ok == date(2024, 3, 24)
