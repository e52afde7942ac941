"""`horsies worker` runs tasks and replaces children."""

from __future__ import annotations

import json
import signal

from tests.support.cli import Executable
from tests.support.ledger import Ledger
from tests.support.ledger_app import ledger_app
from tests.support.workers import send, worker_process


async def test_worker_runs_tasks_and_stops_on_signal(database_url: str, horsies: Executable) -> None:
    app = ledger_app(database_url)
    async with Ledger.open(database_url) as ledger:
        async with worker_process(database_url, "--processes", "1") as worker:
            talk = await send(app, "print_lines", "good day")
            refused = await send(app, "return_error", "NOT_TODAY")
            await ledger.until_terminal(talk, refused)
            worker.signal(signal.SIGTERM)
            assert await worker.until_gone() == 0
            lines = [json.loads(line) for line in worker.log_text.splitlines() if line.startswith("{")]
        await app.close_async()
        printed = [(line["message"], line["level"]) for line in lines if line.get("task_id") == talk]
        assert printed == [("good day", "INFO"), ("GOOD DAY", "WARNING")]
        assert await ledger.fetch("SELECT state FROM horsies_workers") == [{"state": "stopped"}]
        assert await ledger.violations([talk, refused]) == []
        await ledger.until_connections_are(0)
    shown = horsies("task", "show", refused, "--json", "--database-url", database_url)
    assert shown.code == 0, shown.stderr
    assert "NOT_TODAY" in shown.stdout


async def test_children_are_replaced_without_losing_tasks(database_url: str) -> None:
    app = ledger_app(database_url)
    async with (
        Ledger.open(database_url) as ledger,
        worker_process(database_url, "--processes", "2", "--max-tasks-per-child", "5") as worker,
    ):
        before, ids = set(worker.children()), list[str]()

        async def one_is_replaced() -> bool:
            ids.extend([await send(app, "work", 0.02) for _ in range(5)])
            await ledger.until_terminal(*ids)
            return len({entry.pid for entry in await ledger.starts()} - before) >= 1

        await ledger.until(one_is_replaced, within_s=30)
        await app.close_async()
        assert {row["status"] for row in (await ledger.rows(*ids)).values()} == {"COMPLETED"}
        assert await ledger.violations(ids) == []
