"""A worker survives workflow definitions that hang or exit, and still stops on SIGTERM."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from horsies.task_modules import import_module_or_file
from tests.support.cli import Executable

FLOWS = """
    import sys
    import threading

    from horsies import Horsies, SubWorkflowNode, TaskError, TaskResult, WorkflowDefinition, WorkflowSpec

    app = Horsies()


    @app.task("one")
    def one() -> TaskResult[int, TaskError]:
        return TaskResult(ok=1)


    class Odd(WorkflowDefinition[int]):
        name = "odd"
        definition_key = "odd.v1"

        @classmethod
        def build_with(cls, app: Horsies, *, how: str) -> WorkflowSpec[int]:
            if how == "hang":
                threading.Event().wait()
            if how == "exit":
                sys.exit(0)
            node = one.node()()
            return app.workflow("odd", [node], output=node, definition_key=cls.definition_key)


    def flow(how: str):
        node = SubWorkflowNode(Odd, {"how": how})
        return app.workflow("flow", [node], output=node, definition_key="flow.v1")
"""


async def test_worker_survives_and_stops_despite_hanging_definition_builds(
    horsies: Executable, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "odd_flows.py"
    path.write_text(dedent(FLOWS))
    monkeypatch.setenv("HORSIES_BROKER__DATABASE_URL", database_url)
    flows: Any = import_module_or_file(str(path))
    hung, gone, fine = [(await flows.flow(how).start_async()).unwrap() for how in ("hang", "exit", "fine")]
    with horsies.start("worker", f"{path}:app", HORSIES_BROKER__DATABASE_URL=database_url) as worker:
        assert (await fine.get_async(timeout_ms=30_000)).ok == 1
        failure = (await gone.get_async(timeout_ms=30_000)).err_value
        worker.popen.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(worker.popen.wait, 20)
    is_hung = (await hung.get_async(timeout_ms=0)).err_value.error_code == "WAIT_TIMEOUT"
    await flows.app.close_async()
    assert (code, is_hung) == (0, True)
    assert "SystemExit: 0" in failure.message
