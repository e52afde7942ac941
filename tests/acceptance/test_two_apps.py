"""Two apps on one database, each with a worker and sub-workflows unknown to the other."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from horsies.task_modules import import_module_or_file
from tests.support.cli import Executable, RunningCommand
from tests.support.ledger import Ledger

APP = """
    from horsies import (
        AppConfig, CustomQueueConfig, Horsies, NodeKey, QueueMode, SubWorkflowNode, TaskError, TaskResult,
        WorkflowDefinition, from_node,
    )

    app = Horsies(AppConfig(queue_mode=QueueMode.CUSTOM, custom_queues=[CustomQueueConfig(name="NAME")]))


    @app.task("NAME.add", queue_name="NAME")
    def add(a: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=a + 1)


    @app.task("NAME.more", queue_name="NAME")
    def more(a: TaskResult[int, TaskError]) -> TaskResult[int, TaskError]:
        return TaskResult(ok=a.unwrap() + 1)


    class Inner(WorkflowDefinition[int]):
        name = "NAME.inner"
        definition_key = "NAME.inner"
        first = add.node()(a=1)

        class Meta:
            output = NodeKey[int]("first")


    def outer():
        inner = SubWorkflowNode(Inner)
        last = more.node()(a=from_node(inner))
        return app.workflow("NAME.outer", [inner, last], output=last, definition_key="NAME.outer")
"""
LEFT_TO_OTHERS = "SELECT FROM horsies_workflow_outbox WHERE needs = 'here.inner' AND tries > 0"


async def test_two_apps_do_not_fail_each_others_runs(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HORSIES_BROKER__DATABASE_URL", database_url)
    here, there = _app(tmp_path, "here"), _app(tmp_path, "there")
    async with Ledger.open(database_url) as ledger:
        handles = [(await one.outer().start_async()).unwrap() for one in (here, there, here, there)]
        with _worker(tmp_path, "there", database_url):
            await ledger.until(lambda: ledger.fetch(LEFT_TO_OTHERS), within_s=30)
            with _worker(tmp_path, "here", database_url):
                assert [(await each.get_async(30_000)).ok_value for each in handles] == [3] * 4
        states = await ledger.fetch("SELECT DISTINCT status FROM horsies_workflow_tasks")
        for one in (here, there):
            await one.app.close_async()
    assert states == [{"status": "COMPLETED"}]


def _app(folder: Path, name: str) -> Any:
    (folder / name).mkdir()
    path = folder / name / f"{name}_flows.py"
    path.write_text(dedent(APP).replace("NAME", name))
    return import_module_or_file(str(path))


def _worker(folder: Path, name: str, database_url: str) -> AbstractContextManager[RunningCommand]:
    app = f"{folder / name / f'{name}_flows.py'}:app"
    return Executable(cwd=folder / name).start("worker", app, HORSIES_BROKER__DATABASE_URL=database_url)
