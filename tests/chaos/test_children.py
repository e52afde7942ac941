"""F3, F4, F5, F8: children that die or stand still cost what ran inside them, and no more."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from tests.support.ledger import Ledger
from tests.support.workers import running

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_killed_child_costs_its_own_task_and_nothing_else(database_url: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with Ledger.open(database_url) as ledger, running(database_url, processes=4) as worker:
        ids = [await worker.send("wait_for", str(gate)) for _ in range(4)]
        await ledger.until_started(*ids)
        victim = (await ledger.starts())[0]
        others = {child.pid for child in worker.children} - {victim.pid}
        os.kill(victim.pid, signal.SIGKILL)
        row = (await ledger.until_terminal(victim.task_id, within_s=1))[victim.task_id]
        assert (row["status"], row["error_code"], row["crash_count"]) == ("FAILED", "WORKER_CRASHED", 1)
        await worker.until(lambda: len(worker.children) == 4)
        assert others < {child.pid for child in worker.children}
        gate.touch()
        await ledger.until_terminal(*ids)
        assert await ledger.verdict(ids) == []
