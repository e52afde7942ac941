"""`horsies metrics`, scraped over HTTP."""

from __future__ import annotations

import asyncio
import re
import urllib.request

import asyncpg

from tests.support.cli import Executable, RunningCommand
from tests.support.rows import HOUR, insert_old_worker, insert_task


def scraped(at_work: RunningCommand) -> str:
    at_work.wait_for_output("/metrics")
    address = re.search(r"http://\S+", at_work.stderr)
    assert address is not None
    with urllib.request.urlopen(address[0], timeout=30) as answer:  # noqa: S310  # our own
        return answer.read().decode()


def test_metrics_export_gauges_and_counters(horsies: Executable, database_url: str) -> None:
    async def prepare() -> str:
        await insert_old_worker(database_url, state="running", age=HOUR / 3600)
        await insert_task(database_url, queue_name="mail")
        return str(await insert_task(database_url, queue_name="mail"))

    async def finish(task_id: str) -> None:
        connection = await asyncpg.connect(database_url)
        ended = "status = 'COMPLETED', terminal_at = now()"
        await connection.execute(f"UPDATE horsies_tasks SET {ended} WHERE id = $1", task_id)
        await connection.close()

    task_id = asyncio.run(prepare())
    with horsies.start("metrics", "--port", "0", "--database-url", database_url) as at_work:
        before = scraped(at_work)
        asyncio.run(finish(task_id))
        after = scraped(at_work)
        assert at_work.stop() == 0
    assert "horsies_up 1.0" in before
    assert 'horsies_tasks{queue="mail",status="PENDING"} 2.0' in before
    assert 'horsies_workers{state="running"} 1.0' in before
    assert re.search(r'horsies_oldest_due_seconds\{queue="mail"\} \d', before)
    assert "horsies_stale_candidates 0.0" in before
    assert "horsies_late_results_total 0.0" in before
    assert 'horsies_task_seconds_bucket{le="+Inf"} 0.0' in before
    assert 'horsies_tasks_finished_total{queue="mail",status="COMPLETED"} 1.0' in after


def test_occupied_port_is_a_clear_error(horsies: Executable, database_url: str) -> None:
    with horsies.start("metrics", "--port", "0", "--database-url", database_url) as at_work:
        at_work.wait_for_output("/metrics")
        port = re.search(r":(\d+)/metrics", at_work.stderr)
        assert port is not None
        answer = horsies("metrics", "--port", port[1], "--database-url", database_url)
    assert (answer.code, "cannot listen on 127.0.0.1" in answer.stderr) == (1, True)


def test_metrics_do_not_start_without_a_database(horsies: Executable) -> None:
    assert horsies("metrics", "--port", "0", "--database-url", "postgresql://127.0.0.1:1/db").code == 7
